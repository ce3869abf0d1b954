"""Open zip files from untrusted sources: the unpacked size is checked before anything is read."""

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
# Larger archives may contain at most this many times their compressed size.
SMALL, MAX_RATIO = 64 * 1024**2, 200
LEVEL = 1
# The end record of a zip file, its maximum distance from the end, and its 64-bit version: they have the entry count.
_END, _END_SIZE, _LONGEST_COMMENT = b"PK\5\6", 22, 65_535
_LOCATOR, _LOCATOR_SIZE, _END_64_SIZE = b"PK\6\7", 20, 56
_ENCRYPTED = 1

# Raised by zipfile and by decoders for damaged files. RuntimeError means that an entry needs an unsupported feature.
_DAMAGED = (BadZipFile, EOFError, LookupError, RuntimeError, ValueError, struct.error, zlib.error, msgspec.MsgspecError)


@contextmanager
def unpacking(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[ZipFile]:
    """Open an archive if its sizes, compression ratio and number of entries are within limits. Raises InvalidBundle.

    Errors while reading its entries inside the context raise InvalidBundle, too.
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
        raise InvalidBundle(path=str(path), reason="JSON nested too deeply") from error
    except _DAMAGED as error:
        raise InvalidBundle(path=str(path), reason=f"{type(error).__name__}: {error}") from error


def compression_of(data: bytes) -> int:
    """Return the compression for an entry: none if the compressed entry would be mistaken for a zip bomb."""
    return ZIP_STORED if len(zlib.compress(data, LEVEL)) * MAX_RATIO < len(data) else ZIP_DEFLATED


class _Refused(Exception):
    """The archive exceeds a limit."""


def _check_count(path: Path) -> None:
    """Check the number of entries in the end record, before the directory is read."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _END_SIZE - _LONGEST_COMMENT - _LOCATOR_SIZE, 0))
        tail = file.read()
        place = tail.rfind(_END)
        if place < 0:
            return  # ZipFile raises the error
        (count,) = struct.unpack_from("<H", tail, place + 10)
        before = tail[max(place - _LOCATOR_SIZE, 0) : place]
        if before.startswith(_LOCATOR):
            (offset,) = struct.unpack_from("<Q", before, 8)
            file.seek(offset)
            (count,) = struct.unpack_from("<Q", file.read(_END_64_SIZE), 32)
    if count > MAX_ENTRIES:
        raise _Refused(f"{count} entries, more than {MAX_ENTRIES}")


def _check_sizes(entries: list[ZipInfo], size: int, max_bytes: int) -> None:
    unpacked, packed = sum(each.file_size for each in entries), sum(each.compress_size for each in entries)
    if len(entries) > MAX_ENTRIES:
        raise _Refused(f"{len(entries)} entries, more than {MAX_ENTRIES}")
    if any(each.flag_bits & _ENCRYPTED for each in entries):
        raise _Refused("the archive is encrypted; unpack it, and pack it again without a password")
    if any(each.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for each in entries):
        raise _Refused("unsupported compression; `limpet export` writes stored or deflated entries")
    if unpacked > max_bytes:
        raise _Refused(f"unpacks to {unpacked} bytes, more than max_bytes={max_bytes}")
    if packed > size or (unpacked > SMALL and unpacked > MAX_RATIO * packed):
        raise _Refused(f"{size} bytes unpack to {unpacked}, which no file of `limpet export` does")
