"""Limpet: the state layer that production AI agents are missing.

This is the composition root: it alone chooses a store by its address.
"""

import importlib
import os
from urllib.parse import unquote, urlsplit

from limpet.clock import Clock
from limpet.errors import (
    AlreadyAnswered,
    BlobDamaged,
    CommandConflict,
    ConnectionLost,
    DefinitionError,
    Divergence,
    Expired,
    ExtraMissing,
    InputConflict,
    InvalidAppend,
    InvalidDuration,
    InvalidId,
    InvalidPatch,
    InvalidUrl,
    InvalidValue,
    KeyMissing,
    LeaseLost,
    LimpetError,
    NotDurable,
    NotFound,
    SchemaTooNew,
    StaleServer,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
    Tampered,
    UnknownEvent,
    UnscopedParallel,
    Unsupported,
    WorkerAlive,
    WrongKeys,
    WrongState,
)
from limpet.stores import Backend, Store
from limpet.stores.cipher import MasterKeys
from limpet.stores.memory import MemoryBackend
from limpet.stores.sqlite import SqliteBackend

__all__ = [
    "AlreadyAnswered",
    "BlobDamaged",
    "CommandConflict",
    "ConnectionLost",
    "DefinitionError",
    "Divergence",
    "Expired",
    "ExtraMissing",
    "InputConflict",
    "InvalidAppend",
    "InvalidDuration",
    "InvalidId",
    "InvalidPatch",
    "InvalidUrl",
    "InvalidValue",
    "KeyMissing",
    "LeaseLost",
    "LimpetError",
    "MasterKeys",
    "NotDurable",
    "NotFound",
    "SchemaTooNew",
    "StaleServer",
    "Store",
    "StoreBusy",
    "StoreRefused",
    "StoreUnavailable",
    "Tampered",
    "UnknownEvent",
    "UnscopedParallel",
    "Unsupported",
    "WorkerAlive",
    "WrongKeys",
    "WrongState",
    "__version__",
    "open_store",
]

DEFAULT_URL = "sqlite:///limpet.db"


def open_store(
    url: str | None = None, *, clock: Clock | None = None, keys: MasterKeys | None = None, compress: bool = False
) -> Store:
    """A store by its address: `sqlite:///file.db` (four slashes for an absolute path), `postgresql://…` or `memory:`.

    Without one, LIMPET_URL says which, else it is `sqlite:///limpet.db`. With `keys` it is encrypted; LIMPET_KEYS (the
    keys themselves) or LIMPET_KEYS_FILE (a file with them) may say so too. Nothing is touched until it is entered.
    """
    backend = _backend(url or os.environ.get("LIMPET_URL") or DEFAULT_URL, clock)
    return Store(backend, keys=keys or _keys(), compress=compress)


def __getattr__(name: str) -> str:
    """`limpet.__version__`, looked up when somebody asks: it costs a fifth of the import."""
    if name == "__version__":
        metadata = importlib.import_module("importlib.metadata")
        return str(metadata.version("limpet"))
    raise AttributeError(name)


def _keys() -> MasterKeys | None:
    if "LIMPET_KEYS" in os.environ:
        return MasterKeys.from_env("LIMPET_KEYS")
    if "LIMPET_KEYS_FILE" in os.environ:
        return MasterKeys.from_file(os.environ["LIMPET_KEYS_FILE"])
    return None


def _backend(url: str, clock: Clock | None) -> Backend:
    parts = urlsplit(url)
    if parts.scheme == "memory" and not parts.netloc and not parts.path:
        return MemoryBackend(clock)
    if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1 and not parts.query:
        return SqliteBackend(unquote(parts.path[1:]), clock)
    if parts.scheme in ("postgresql", "postgres"):
        return _postgres(url, clock)
    raise InvalidUrl(url=f"{parts.scheme}:…" if parts.password else url)


def _postgres(url: str, clock: Clock | None) -> Backend:
    try:
        found = importlib.import_module("limpet.stores.postgres")
    except ImportError as error:
        raise ExtraMissing(extra="postgres") from error
    backend: Backend = found.PostgresBackend(url, clock)
    return backend
