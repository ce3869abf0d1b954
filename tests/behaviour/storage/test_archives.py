"""Foreign, damaged or hostile files are refused as bundles with InvalidBundle."""

import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import limpet
from limpet import testing
from limpet.ids import SeededIds
from limpet.service import archives
from limpet.service.bundles import verify_bundle


@limpet.agent(name="archived")
async def archived(run: limpet.Run, size: int) -> int:
    await run.artifact(bytes(size), type="zeros", summary="Nothing but zeros.")
    await run.ask("Go on?")
    return size


async def export_run(path: Path, size: int = 100) -> None:
    """Write a valid bundle."""
    async with testing.app(archived) as app:
        await app.start(archived, size, id="r1")
        await app.settle()
        await app.export("r1", path)


def rewrite(path: Path, **parts: bytes) -> None:
    """Replace parts of a bundle."""
    with zipfile.ZipFile(path) as file:
        held = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in held.items():
            file.writestr(name, parts.get(name.partition(".")[0], data))


async def load(path: Path) -> None:
    async with testing.app() as app:
        await app.load(path)


def bomb(path: Path) -> None:
    rewrite(path, log=bytes(100 * 1024**2))


def deep(path: Path) -> None:
    rewrite(path, log=b'{"run":"r1","seq":1,"body":' + b"[" * 200_000)


def deep_manifest(path: Path) -> None:
    rewrite(path, manifest=b'{"more":' + b"[" * 200_000)


def many_lines(path: Path) -> None:
    rewrite(path, log=b"\n" * 60_000_000)


def encrypted(path: Path) -> None:
    change_byte(path, 8, b"\x01")


def unknown_compression(path: Path) -> None:
    change_byte(path, 10, b"\x63")


def change_byte(path: Path, place: int, value: bytes) -> None:
    """Change a byte of the first entry in the zip directory."""
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") + place
    data[at : at + 1] = value
    path.write_bytes(data)


def huge(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") + 24
    data[at : at + 4] = (3 * 1024**3).to_bytes(4, "little")
    path.write_bytes(data)


def another_codec(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        held = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as file:
        for name, data in held.items():
            file.writestr(name, data)


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def too_many(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as file:
        for number in range(archives.MAX_ENTRIES):
            file.writestr(f"x{number}", b"")


def no_text(path: Path) -> None:
    rewrite(path, log=b"\xff\xfe\n", manifest=b"\xff")


HARMFUL = [
    bomb,
    deep,
    deep_manifest,
    many_lines,
    encrypted,
    unknown_compression,
    huge,
    another_codec,
    damaged,
    cut_off,
    too_many,
    no_text,
]


@pytest.mark.parametrize("harm", HARMFUL)
async def test_a_hostile_bundle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], full: bool
) -> None:
    """A zip bomb, deeply nested JSON, a password, another compression or damage.

    Without --full, fewer entries are too many.
    """
    if not full:
        monkeypatch.setattr(archives, "MAX_ENTRIES", 1_000)
    path = tmp_path / "run.zip"
    await export_run(path)
    harm(path)
    with pytest.raises(limpet.InvalidBundle):
        await load(path)
    with pytest.raises(limpet.InvalidBundle):
        await verify_bundle(path)


async def test_a_bundle_with_random_damage_raises_only_limpet_errors(tmp_path: Path, full: bool) -> None:
    """A file that is accepted contains the run unchanged."""
    path, other = tmp_path / "run.zip", tmp_path / "other.zip"
    await export_run(path)
    good, bits = path.read_bytes(), SeededIds(7).bits
    for _ in range(5_000 if full else 500):
        data = bytearray(good)
        for _ in range(1 + bits(2)):
            data[bits(32) % len(data)] = bits(8)
        other.write_bytes(data[: bits(32) % len(data)] if bits(1) else data)
        with suppress(limpet.LimpetError):
            assert (await verify_bundle(other)).runs == 1


async def test_a_highly_compressible_export_can_be_loaded(tmp_path: Path) -> None:
    """An export is never mistaken for a zip bomb."""
    path = tmp_path / "run.zip"
    await export_run(path, size=archives.SMALL + 1)
    await load(path)


async def test_max_bytes_limits_the_size_of_a_loaded_bundle(tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    await export_run(path)
    async with testing.app() as app:
        with pytest.raises(limpet.InvalidBundle, match="max_bytes"):
            await app.load(path, max_bytes=1_000)
        assert (await app.load(path, max_bytes=1_000_000)).id == "r1"


@pytest.mark.parametrize("held", [b"[" * 200_000, b"\xff\n", b"x" * 100_000])
async def test_an_invalid_heads_file_is_refused(tmp_path: Path, held: bytes) -> None:
    """Deeply nested JSON, invalid UTF-8, or a line without end."""
    path = tmp_path / "heads.jsonl"
    path.write_bytes(held)
    async with testing.app() as app:
        with pytest.raises(limpet.InvalidBundle):
            await app.verify(heads=path)
