"""The reads of a backend through named statements, the same for every SQL database."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import Any

from limpet.errors import NotFound, StoreUnavailable
from limpet.events import Event, Packed
from limpet.stores.blobs import BlobRow
from limpet.stores.columns import contract_of, duty_of, late_of, request_of, row_of, score_of, token_of, worker_of
from limpet.stores.fork_reads import LAST, EventRange, Origin, StepRange, read_log, read_steps
from limpet.stores.rows import (
    ContractRow,
    DutyRow,
    KeyRow,
    Late,
    Place,
    RequestFilter,
    RequestRow,
    RowPage,
    RunFilter,
    RunRow,
    ScoreCondition,
    ScoreFilter,
    ScoreRow,
    Snapshot,
    TokenRow,
    WorkerRow,
)

__all__ = ["SqlReads"]


class SqlReads(ABC):
    """The reads of a backend. A subclass runs statements and binds some values."""

    _sql: Mapping[str, str]

    @property
    def failure(self) -> StoreUnavailable | None:
        """None: a server is waited for, however long it is unavailable."""
        return None

    @abstractmethod
    def _ask(self, statement: str, values: Any) -> Sequence[Sequence[Any]]:
        """Return the rows of a statement, for values in order or by name."""

    @abstractmethod
    def _bound(self, name: str, value: Any) -> Any:
        """Return a filter's value in the form that this database needs."""

    def get(self, run: str) -> RunRow | None:
        """Return a stream's row."""
        found = self._all("peek", run)
        return row_of(found[0]) if found else None

    def read(self, run: str, after: int, before: int | None, limit: int, backwards: bool) -> list[Event]:
        """Return events with sequences strictly between `after` and `before`."""
        return read_log(self._own, self._origin, run, EventRange(after, before, limit, backwards))

    def _own(self, run: str, span: EventRange) -> list[Event]:
        name = "read_backwards" if span.backwards else "read"
        found = self._all(name, run, span.after, LAST if span.before is None else span.before, span.limit)
        return list(starmap(partial(Event, run), found))

    def read_steps(self, run: str, span: StepRange) -> list[Event]:
        """Return all events of some steps, and those that concern all steps, in order."""
        return read_steps(self._own_steps, self._origin, run, span)

    def _own_steps(self, run: str, span: StepRange) -> list[tuple[int, Event]]:
        name = "read_steps_backwards" if span.backwards else "read_steps"
        found = self._all(name, run, span.after, span.before, span.limit, span.upto)
        return [(step, Event(run, *each)) for step, *each in found]

    def _origin(self, run: str) -> Origin | None:
        found = self._all("origin", run)
        if not found:
            raise NotFound(what="run", id=run)
        return None if None in found[0] else Origin(*found[0])

    def runs(self, where: RunFilter, before: int | None, limit: int) -> RowPage:
        """Return matching rows with numbers below `before`, newest first."""
        parts, values = self._where("runs", where)
        if before is not None:
            parts.append(self._sql["runs.before"])
            values["before"] = before
        values["limit"] = limit + 1
        rows = [row_of(found) for found in self._search([*parts, self._sql["runs.order"]], values)]
        return RowPage(tuple(rows[:limit]), rows[limit - 1].number if len(rows) > limit else None)

    def latest(self, where: RunFilter, before: Place | None, limit: int) -> list[RunRow]:
        """Return matching rows before a place in the order of last events, the newest first."""
        values: dict[str, Any] = {} if before is None else {"before_time": before.time, "before_number": before.number}
        parts = [self._sql["latest.start"]]
        for each in ("held", "rested"):
            filters, given = self._where(f"latest.{each}_runs", where)
            values |= given
            places = [] if before is None else [self._sql[f"latest.{each}_before"]]
            parts += [*filters, self._sql[f"latest.{each}"], *places, self._sql[f"latest.{each}_order"]]
            parts.append(self._sql["latest.middle" if each == "held" else "latest.end"])
        return [row_of(found) for found in self._search(parts, {**values, "limit": limit})]

    def count(self, where: RunFilter) -> int:
        """Return the number of matching rows."""
        found: int = self._search(*self._where("count", where))[0][0]
        return found

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of runs by (agent, status)."""
        return {(agent, status): n for agent, status, n in self._all("counts")}

    def miscounted(self) -> list[tuple[str, str, int, int]]:
        """Return each wrong counter, with the true number."""
        found = self._all("miscounted")
        return [(_readable(agent), _readable(status), kept, there) for agent, status, kept, there in found]

    def strays(self) -> list[tuple[str, int, int]]:
        """Return rows without their stream or blob."""
        return [(table, number, rows) for table, number, rows in self._all("strays")]

    def streams(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Return the numbers and ids of all streams after a number."""
        return [(number, _readable(id)) for number, id in self._all("streams", after, limit)]

    def commands(self, run: str) -> list[tuple[int, str]]:
        """Return the commands among a stream's own events."""
        return [(seq, command) for seq, command in self._all("commands", self._number(run))]

    def steps(self, run: str) -> list[tuple[int, int]]:
        """Return the sequences of a stream's own events that are found by step, each with its step."""
        return [(seq, step) for seq, step in self._all("steps", self._number(run))]

    def labels(self, run: str) -> list[tuple[str, str]]:
        """Return the labels by which a stream is found."""
        return [(name, value) for name, value in self._all("labels", self._number(run))]

    def requests(self, where: RequestFilter, limit: int) -> list[RequestRow]:
        """Return matching requests, oldest first."""
        given = {name: getattr(where, name) for name in ("status", "id", "run", "to", "risk", "opened_until")}
        values = {name: self._bound(name, value) for name, value in given.items() if value is not None}
        parts = [self._sql["requests"], *(self._sql[f"requests.{name}"] for name in values)]
        if where.after is not None:
            parts.append(self._sql["requests.after"])
            values |= {"after_opened": where.after[0], "after_id": where.after[1]}
        found = self._search([*parts, self._sql["requests.order"]], {**values, "limit": limit})
        return [request_of(each) for each in found]

    def count_requests(self) -> int:
        """Return the number of open requests."""
        found: int = self._all("count_requests")[0][0]
        return found

    def scores(self, where: ScoreFilter, limit: int) -> list[ScoreRow]:
        """Return matching scores, newest first."""
        given = {name: getattr(where, name) for name in ("run", "name", "by", "step", "time_from")}
        values = {name: value for name, value in given.items() if value is not None}
        parts = [self._sql["scores"], *(self._sql[f"scores.{name}"] for name in values)]
        if where.before is not None:
            parts.append(self._sql["scores.before"])
            values |= dict(zip(("before_time", "before_run", "before_seq"), where.before, strict=True))
        found = self._search([*parts, self._sql["scores.order"]], {**values, "limit": limit})
        return [score_of(each) for each in found]

    def workers(self) -> list[WorkerRow]:
        """Return all workers."""
        return [worker_of(found) for found in self._all("workers")]

    def slot_holder(self, run: str) -> str | None:
        """Return another run that holds a slot which this one needs."""
        holder: str | None = next((found for (found,) in self._all("slot_holder", run)), None)
        return holder

    def due(self, engine: str, after: tuple[int, int], until: int, limit: int) -> list[RunRow]:
        """Return the runs of an engine that no worker holds and that are ready by a time, longest ready first."""
        return [row_of(found) for found in self._all("due", engine, *after, until, limit)]

    def duties(self) -> list[DutyRow]:
        """Return all duties, by name."""
        return [duty_of(found) for found in self._all("duties")]

    def read_token(self, token: str) -> TokenRow | None:
        """Return a token's row."""
        found = self._all("token", token)
        return token_of(found[0]) if found else None

    def read_tokens(self, before: tuple[int, str] | None, limit: int) -> list[TokenRow]:
        """Return tokens, newest first."""
        created, id = before or (LAST, "")
        return [token_of(found) for found in self._all("tokens", created, id, limit)]

    def snapshot(self, run: str, at_most: int | None) -> Snapshot | None:
        """Return the newest snapshot, or the newest at or before a sequence."""
        found = self._all("snapshot", self._number(run), LAST if at_most is None else at_most)
        return Snapshot(*found[0]) if found else None

    def snapshots(self, run: str) -> list[tuple[int, int]]:
        """Return the (sequence, time) of every snapshot of a run."""
        return [(seq, time) for seq, time in self._all("snapshots", self._number(run))]

    def late(self, run: str) -> list[Late]:
        """Return the late events of a run."""
        return [late_of(run, found) for found in self._all("late", self._number(run))]

    def contracts(self, agent: str | None) -> list[ContractRow]:
        """Return the contracts of an agent, or of all agents."""
        found = self._all("contracts") if agent is None else self._all("contracts_of", agent)
        return [contract_of(each) for each in found]

    def references(self, run: str) -> list[str]:
        """Return the blobs that a stream refers to."""
        return [blob for (blob,) in self._all("references", self._number(run))]

    def blob(self, blob: str) -> BlobRow | None:
        """Return a stored blob's row."""
        found = self._all("blob", blob)
        return BlobRow(*found[0]) if found else None

    def chunk(self, blob: str, place: int) -> Packed | None:
        """Return one chunk of a stored blob."""
        found = self._all("chunk", blob, place)
        return Packed(*found[0]) if found else None

    def small_blobs(self, blobs: Sequence[str]) -> list[tuple[BlobRow, Packed]]:
        """Return those of the blobs that have one chunk, with it."""
        found = self._all("small_blobs", self._bound("blobs", blobs))
        return [(BlobRow(id, size, 1, name), Packed(*chunk)) for id, size, name, *chunk in found]

    def setting(self, name: str) -> str | None:
        """Return the value of a setting, or None."""
        found = self._all("setting", name)
        return str(found[0][0]) if found else None

    def keys(self) -> list[KeyRow]:
        """Return the wrapped keys, oldest first."""
        return [KeyRow(*found) for found in self._all("keys")]

    def _where(self, start: str, where: RunFilter) -> tuple[list[str], dict[str, Any]]:
        given = {
            "waits": None if where.waits is None else f'%"{where.waits}:%',
            "agent": where.agent,
            "session": where.session,
            "user": where.user,
            "parent": where.parent,
            "origin": where.origin,
            "conversation": where.conversation,
            "created_from": where.created_from,
            "created_before": where.created_before,
            "status": where.status[0] if len(where.status) == 1 else None,
            "statuses": where.status if len(where.status) > 1 else None,
            "text": None if where.text is None else f"%{_escape(where.text)}%",
        }
        values = {name: self._bound(name, value) for name, value in given.items() if value is not None}
        parts = [self._sql[start], *(self._sql[f"runs.{name}"] for name in values)]
        for place, (name, value) in enumerate(where.labels.items()):
            parts.append(self._sql["runs.label"] % (place, place))
            values |= {f"label_name_{place}": name, f"label_value_{place}": value}
        if where.scored is not None:
            parts.append(self._sql[f"runs.{_scored(where.scored)}"])
            values |= {f"scored_{name}": value for name, value in where.scored._asdict().items() if value is not None}
        return parts, {**values, "type": where.type}

    def _number(self, run: str) -> int:
        found = self._all("number", run)
        if not found:
            raise NotFound(what="run", id=run)
        number: int = found[0][0]
        return number

    def _all(self, name: str, *values: Any) -> Sequence[Sequence[Any]]:
        return self._ask(self._sql[name], values)

    def _search(self, parts: list[str], values: dict[str, Any]) -> Sequence[Sequence[Any]]:
        return self._ask("\n".join(parts), values)


def _scored(wanted: ScoreCondition) -> str:
    """Return the name of the statement's part that finds runs with such a score."""
    return "scored_text" if wanted.text is not None else "scored" if wanted.least is None else "scored_number"


def _readable(word: str | bytes) -> str:
    """Return text, even if its bytes are not valid UTF-8."""
    return word if isinstance(word, str) else word.decode(errors="replace")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
