"""Convert between rows and columns, the same way in every database: lists and mappings are JSON text."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from limpet.errors import Tampered
from limpet.events import Event
from limpet.events.values import encode
from limpet.stores.rows import ContractRow, DutyRow, Late, RequestRow, RunRow, ScoreRow, TokenRow, WorkerRow

__all__ = [
    "OF_A_STREAM",
    "as_text",
    "columns",
    "contract_of",
    "duty_of",
    "enough",
    "late_of",
    "readable",
    "request_of",
    "row_of",
    "saved_columns",
    "score_of",
    "token_columns",
    "token_of",
    "worker_of",
]

F = TypeVar("F")

_tuple = msgspec.json.Decoder(tuple[str, ...])
_labels = msgspec.json.Decoder(dict[str, str])
_agents = msgspec.json.Decoder(dict[str, tuple[str, ...]])
_NOTHING = "[]"
OF_A_STREAM = ("slots", "snapshots", "late", "labels", "requests", "scores", "blob_refs", "events", "streams")
"""The tables of a stream, in an order in which their rows can be deleted."""


def columns(row: RunRow) -> tuple[Any, ...]:
    """Return the stored columns of a stream's row, without its number."""
    _, *values, labels = astuple(row)
    values[_WAITS] = as_text(row.waits)
    return (*values, as_text(labels))


_WAITS = RunRow.__struct_fields__.index("waits") - 1


def saved_columns(row: RunRow) -> tuple[Any, ...]:
    """Return the columns of a stream's row that may change."""
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
        row.deadline,
        row.cost,
        row.engine,
    )


def row_of(found: Sequence[Any]) -> RunRow:
    """Return a stream's row from the columns of a query."""
    values = dict(zip(RunRow.__struct_fields__, found, strict=True))
    try:
        values["waits"] = () if values["waits"] == _NOTHING else _tuple.decode(values["waits"])
        values["labels"] = _labels.decode(values["labels"])
    except msgspec.MsgspecError as error:
        raise Tampered(run=values["id"], seq=values["seq"], reason=f"the row cannot be read ({error})") from error
    for flag in ("alone", "undoing", "cancelling"):
        values[flag] = bool(values[flag])
    return RunRow(**values)


def readable(found: Iterable[Sequence[Any]]) -> list[RunRow]:
    """Return the readable rows, for claiming. Other runs are skipped; reading one raises Tampered."""
    rows = []
    for each in found:
        with suppress(Tampered):
            rows.append(row_of(each))
    return rows


def enough(
    fetch: Callable[[int], Sequence[F]], good: Callable[[Sequence[F]], list[RunRow]], limit: int
) -> list[RunRow]:
    """Return up to `limit` good rows, fetching more while others are in between."""
    wanted = limit
    while True:
        found = fetch(wanted)
        rows = good(found)
        if len(rows) >= limit or len(found) < wanted:
            return rows[:limit]
        wanted *= 4


def request_of(found: Sequence[Any]) -> RequestRow:
    """Return a request's row."""
    values = dict(zip(RequestRow.__struct_fields__, found, strict=True))
    values["to"] = _tuple.decode(values["to"])
    return RequestRow(**values)


def score_of(found: Sequence[Any]) -> ScoreRow:
    """Return a score's row."""
    return ScoreRow(**dict(zip(ScoreRow.__struct_fields__, found, strict=True)))


def worker_of(found: Sequence[Any]) -> WorkerRow:
    """Return a worker's row."""
    values = dict(zip(WorkerRow.__struct_fields__, found, strict=True))
    values["agents"] = _agents.decode(values["agents"])
    return WorkerRow(**values)


def duty_of(found: Sequence[Any]) -> DutyRow:
    """Return a duty's row."""
    return DutyRow(**dict(zip(DutyRow.__struct_fields__, found, strict=True)))


def token_columns(row: TokenRow) -> tuple[Any, ...]:
    """Return the stored columns of a token's row."""
    lists = {name: as_text(getattr(row, name)) for name in _TOKEN_LISTS}
    return tuple(lists.get(name, getattr(row, name)) for name in TokenRow.__struct_fields__)


def token_of(found: Sequence[Any]) -> TokenRow:
    """Return a token's row."""
    values = dict(zip(TokenRow.__struct_fields__, found, strict=True))
    return TokenRow(**values | {name: _tuple.decode(values[name]) for name in _TOKEN_LISTS})


_TOKEN_LISTS = ("groups", "roles", "rights")


def contract_of(found: Sequence[Any]) -> ContractRow:
    """Return a contract's row, as stored."""
    return ContractRow(**dict(zip(ContractRow.__struct_fields__, found, strict=True)))


def late_of(run: str, found: Sequence[Any]) -> Late:
    """Return a late event."""
    return Late(Event(run, *found[:-1]), found[-1])


def as_text(value: object) -> str:
    """Return a list or a mapping as JSON text."""
    return encode(value).decode()
