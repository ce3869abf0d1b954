"""Zip files from elsewhere: what they would unpack to is bounded before anything of it is read."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import msgspec

from limpet.errors import InvalidBundle

__all__ = ["LEVEL", "MAX_BYTES", "compression_of", "unpacking"]

MAX_BYTES = 1024**3
MAX_ENTRIES = 100_000
# An archive above this size holds no more than so many times its packed bytes.
SMALL, MAX_RATIO = 64 * 1024**2, 200
LEVEL = 1
# A file's end record, at most this far from its end, and the larger one before it: how many entries there are.
_END, _END_SIZE, _LONGEST_COMMENT = b"PK\5\6", 22, 65_535
_LOCATOR, _LOCATOR_SIZE, _END_64_SIZE = b"PK\6\7", 20, 56
_ENCRYPTED = 1

# What zipfile and what is inside raise for damaged files; a RuntimeError for what an entry needs and we do not have.
_DAMAGED = (BadZipFile, EOFError, LookupError, RuntimeError, ValueError, struct.error, zlib.error, msgspec.MsgspecError)


@contextmanager
def unpacking(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[ZipFile]:
    """Open an archive whose sizes, ratio and number of entries are within bounds; raises InvalidBundle.

    Errors of whatever is read from it inside are InvalidBundle, too.
    """
    try:
        _check_count(path)
        with ZipFile(path) as file:
            _check_sizes(file.infolist(), path.stat().st_size, max_bytes)
            yield file
    except _Refused as error:
        raise InvalidBundle(path=str(path), reason=str(error)) from error
    except OSError as error:
        raise InvalidBundle(path=str(path), reason=(error.strerror or str(error)).lower()) from error
    except RecursionError as error:
        raise InvalidBundle(path=str(path), reason="its JSON is nested too deep") from error
    except _DAMAGED as error:
        raise InvalidBundle(path=str(path), reason=f"{type(error).__name__}: {error}") from error


def compression_of(data: bytes) -> int:
    """How an entry is written: not deflated where that would look like a bomb when it is read."""
    return ZIP_STORED if len(zlib.compress(data, LEVEL)) * MAX_RATIO < len(data) else ZIP_DEFLATED


class _Refused(Exception):
    """An archive that is not read."""


def _check_count(path: Path) -> None:
    """Refuse an archive of too many entries by its end record, before its directory is read."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _END_SIZE - _LONGEST_COMMENT - _LOCATOR_SIZE, 0))
        tail = file.read()
        place = tail.rfind(_END)
        if place < 0:
            return  # ZipFile says what it is
        (count,) = struct.unpack_from("<H", tail, place + 10)
        before = tail[max(place - _LOCATOR_SIZE, 0) : place]
        if before.startswith(_LOCATOR):
            (offset,) = struct.unpack_from("<Q", before, 8)
            file.seek(offset)
            (count,) = struct.unpack_from("<Q", file.read(_END_64_SIZE), 32)
    if count > MAX_ENTRIES:
        raise _Refused(f"it has {count} entries, and {MAX_ENTRIES} are the most that are read")


def _check_sizes(entries: list[ZipInfo], size: int, max_bytes: int) -> None:
    unpacked, packed = sum(each.file_size for each in entries), sum(each.compress_size for each in entries)
    if len(entries) > MAX_ENTRIES:
        raise _Refused(f"it has {len(entries)} entries, and {MAX_ENTRIES} are the most that are read")
    if any(each.flag_bits & _ENCRYPTED for each in entries):
        raise _Refused("it is encrypted: unpack it, and pack it without a password")
    if any(each.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for each in entries):
        raise _Refused("it is compressed in another way than `limpet export` does")
    if unpacked > max_bytes:
        raise _Refused(f"it holds {unpacked} bytes, more than {max_bytes}: raise max_bytes to read it all the same")
    if packed > size or (unpacked > SMALL and unpacked > MAX_RATIO * packed):
        raise _Refused(f"it would unpack {size} bytes to {unpacked}, as no file of `limpet export` does")
