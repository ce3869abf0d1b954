"""Rows as columns, the same in every database: lists and mappings are JSON text."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from limpet.errors import Tampered
from limpet.events import Event
from limpet.events.values import encode
from limpet.stores.rows import ContractRow, Late, RequestRow, RunRow, WorkerRow

__all__ = [
    "OF_A_STREAM",
    "as_text",
    "columns",
    "contract_of",
    "enough",
    "late_of",
    "readable",
    "request_of",
    "row_of",
    "saved_columns",
    "worker_of",
]

F = TypeVar("F")

_tuple = msgspec.json.Decoder(tuple[str, ...])
_labels = msgspec.json.Decoder(dict[str, str])
_agents = msgspec.json.Decoder(dict[str, tuple[str, ...]])
_NOTHING = "[]"
OF_A_STREAM = ("slots", "snapshots", "late", "labels", "requests", "blob_refs", "events", "streams")
"""The tables of what belongs to a stream, and itself, in an order that references allow."""


def columns(row: RunRow) -> tuple[Any, ...]:
    """What is stored of a stream's row, but its number."""
    _, *values, labels = astuple(row)
    values[_WAITS] = as_text(row.waits)
    return (*values, as_text(labels))


_WAITS = RunRow.__struct_fields__.index("waits") - 1


def saved_columns(row: RunRow) -> tuple[Any, ...]:
    """What may change of a stream's row."""
    return (
        row.status,
        as_text(row.waits),
        row.ready_at,
        row.seq,
        row.hash,
        row.time,
        row.fence,
        row.worker,
        row.deaths,
        row.alone,
        row.ended,
        row.goal,
        row.step,
        row.item,
        row.items,
        row.undoing,
        row.cancelling,
    )


def row_of(found: Sequence[Any]) -> RunRow:
    """A stream's row, from the columns that the statements give."""
    values = dict(zip(RunRow.__struct_fields__, found, strict=True))
    try:
        values["waits"] = () if values["waits"] == _NOTHING else _tuple.decode(values["waits"])
        values["labels"] = _labels.decode(values["labels"])
    except msgspec.MsgspecError as error:
        raise Tampered(run=values["id"], seq=values["seq"], reason=f"its row cannot be read ({error})") from error
    for flag in ("alone", "undoing", "cancelling"):
        values[flag] = bool(values[flag])
    return RunRow(**values)


def readable(found: Iterable[Sequence[Any]]) -> list[RunRow]:
    """Rows for claiming: one that cannot be read is not driven, tells why when it is asked for, and stops nobody."""
    rows = []
    for each in found:
        with suppress(Tampered):
            rows.append(row_of(each))
    return rows


def enough(
    fetch: Callable[[int], Sequence[F]], good: Callable[[Sequence[F]], list[RunRow]], limit: int
) -> list[RunRow]:
    """So many good rows, or all there are: those that are not do not stand in the way."""
    wanted = limit
    while True:
        found = fetch(wanted)
        rows = good(found)
        if len(rows) >= limit or len(found) < wanted:
            return rows[:limit]
        wanted *= 4


def request_of(found: Sequence[Any]) -> RequestRow:
    """A request's row."""
    values = dict(zip(RequestRow.__struct_fields__, found, strict=True))
    values["to"] = _tuple.decode(values["to"])
    return RequestRow(**values)


def worker_of(found: Sequence[Any]) -> WorkerRow:
    """A worker's row."""
    values = dict(zip(WorkerRow.__struct_fields__, found, strict=True))
    values["agents"] = _agents.decode(values["agents"])
    return WorkerRow(**values)


def contract_of(found: Sequence[Any]) -> ContractRow:
    """A contract, as it is stored."""
    return ContractRow(**dict(zip(ContractRow.__struct_fields__, found, strict=True)))


def late_of(run: str, found: Sequence[Any]) -> Late:
    """What came too late."""
    return Late(Event(run, *found[:-1]), found[-1])


def as_text(value: object) -> str:
    """A list or a mapping as JSON text."""
    return encode(value).decode()
