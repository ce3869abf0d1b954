"""Stores of logs, in memory or in a database, and the conformance suite for new ones."""

from limpet.stores.backend import Backend, Capabilities, Tables
from limpet.stores.blobs import Blob
from limpet.stores.cipher import MasterKeys
from limpet.stores.rows import (
    ContractRow,
    DutyRow,
    Feed,
    Late,
    Place,
    RequestFilter,
    RequestRow,
    RowPage,
    RunFilter,
    RunRow,
    Snapshot,
    TokenRow,
    WorkerRow,
)
from limpet.stores.store import Store
from limpet.stores.threads import Executor, Inline, Threads
from limpet.stores.watch import Watch
from limpet.stores.writes import (
    Appended,
    Claimed,
    Create,
    DutyTurn,
    Extend,
    Leg,
    Missed,
    NotClaimed,
    Release,
    Renewal,
    SendCommands,
    Taken,
    Transacted,
    Work,
)

__all__ = [
    "Appended",
    "Backend",
    "Blob",
    "Capabilities",
    "Claimed",
    "ContractRow",
    "Create",
    "DutyRow",
    "DutyTurn",
    "Executor",
    "Extend",
    "Feed",
    "Inline",
    "Late",
    "Leg",
    "MasterKeys",
    "Missed",
    "NotClaimed",
    "Place",
    "Release",
    "Renewal",
    "RequestFilter",
    "RequestRow",
    "RowPage",
    "RunFilter",
    "RunRow",
    "SendCommands",
    "Snapshot",
    "Store",
    "Tables",
    "Taken",
    "Threads",
    "TokenRow",
    "Transacted",
    "Watch",
    "Work",
    "WorkerRow",
]
