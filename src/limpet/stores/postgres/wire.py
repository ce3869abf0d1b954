"""Statements on a connection, below psycopg's cursors: many in one round trip, each prepared when it is first used.

A cursor takes longer for a small statement than the server does. Statements with no decision between them are sent
together, and their results are read together.
"""

import struct
from collections.abc import Mapping, Sequence
from select import POLLIN, POLLOUT, poll
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from limpet.stores.backend import SchemaViolation
from limpet.stores.postgres.connection import Connection
from limpet.stores.postgres.parameters import Statement, booleans, byte_strings, hashes, int8, integers, texts
from limpet.stores.postgres.text import safe_text
from limpet.stores.writes import Extension

__all__ = ["BoundStatement", "Result", "Wire", "decoded"]

MOST_PREPARED = 200
"""How many statements a connection prepares; the others are planned each time."""
Result = pq.abc.PGresult
_PLACE_AND_NUMBER = struct.Struct(">qq")
_BINARY = pq.Format.BINARY
_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class BoundStatement(NamedTuple):
    """A statement with its encoded values."""

    statement: Statement
    values: Sequence[bytes | None] = ()


class Wire:
    """Runs statements on connections, and knows which of them are prepared there."""

    def __init__(self, sql: Mapping[str, str], *, prepare: bool) -> None:
        self._extend = {name: Statement(sql[name]) for name in ("extend", "extend_one", "extend_two")}
        self._settings = sql["settings"]
        self._prepare = prepare
        self._prepared: WeakKeyDictionary[Connection, set[Statement]] = WeakKeyDictionary()

    def make_ready(self, db: Connection, *, writes: bool) -> None:
        """Prepare statements on this connection from now on, unless a pooler may switch connections."""
        if self._prepare:
            if writes:
                self.run(db, self._settings)
            self._prepared[db] = set()

    def run(self, db: Connection, commands: str) -> None:
        """Run commands that have neither values nor results."""
        _check(db, db.pgconn.exec_(commands.encode()))

    def call(self, db: Connection, call: BoundStatement) -> Result:
        """Run one statement; return its result."""
        if call.statement not in self._prepared.get(db, ()):
            return self.send(db, [call])[0]
        values = cast("Sequence[bytes]", call.values)  # It takes None, too.
        result = db.pgconn.exec_prepared(call.statement.name, values, [_BINARY] * len(values), _BINARY)
        _check(db, result)
        return result

    def send(self, db: Connection, calls: Sequence[BoundStatement]) -> list[Result]:
        """Run statements in one round trip; return their results. Nothing that follows an error was run."""
        try:
            db.pgconn.enter_pipeline_mode()
            expected = self._queue(db, calls)
            db.pgconn.pipeline_sync()
            results = _results(db)
            db.pgconn.exit_pipeline_mode()
        except BaseException:
            db.close()  # Results that were not read would be taken for those of the next statements.
            raise
        found = []
        for (statement, is_call), result in zip(expected, results, strict=True):
            _check(db, result)
            if is_call:
                found.append(result)
            else:
                self._prepared[db].add(statement)
        return found

    def _queue(self, db: Connection, calls: Sequence[BoundStatement]) -> list[tuple[Statement, bool]]:
        """Queue statements, and the preparation of those that are new. Returns what results to expect: of a
        statement's call, or of its preparation.
        """
        pg, prepared = db.pgconn, self._prepared.get(db)
        new: set[Statement] = set()
        expected = []
        for statement, values in calls:
            formats = [_BINARY] * len(values)
            is_known = prepared is not None and (statement in prepared or statement in new)
            if prepared is not None and not is_known and len(prepared) + len(new) < MOST_PREPARED:
                pg.send_prepare(statement.name, statement.text)
                expected.append((statement, False))
                new.add(statement)
                is_known = True
            if is_known:
                pg.send_query_prepared(statement.name, values, formats, _BINARY)
            else:
                pg.send_query_params(statement.text, values, None, formats, _BINARY)
            expected.append((statement, True))
        return expected

    def extend(
        self, db: Connection, extensions: Sequence[Extension], before: Sequence[BoundStatement] = ()
    ) -> dict[int, int]:
        """Extend streams, after other statements; return the positions (from 1) of the heads that moved, with their
        stream numbers.
        """
        name, values = _statement(extensions)
        call = BoundStatement(self._extend[name], values)
        result = self.send(db, [*before, call])[-1] if before else self.call(db, call)
        found = {}
        for row in range(result.ntuples):
            place, number = result.get_value(row, 0), result.get_value(row, 1)
            assert place is not None
            assert number is not None
            at, stream = _PLACE_AND_NUMBER.unpack(place + number)
            found[at] = stream
        return found


def decoded(db: Connection, result: Result) -> list[tuple[Any, ...]]:
    """Return the rows of a result."""
    if not result.ntuples:
        return []
    reader = Transformer(db)
    reader.set_pgresult(result)
    return reader.load_rows(0, result.ntuples, tuple)


def _results(db: Connection) -> list[Result]:
    """Send what is queued, and return all results. Other threads run while this one waits for the server."""
    pg, server = db.pgconn, poll()
    server.register(pg.socket, POLLIN | POLLOUT)
    while pg.flush():
        if server.poll()[0][1] & ~POLLOUT:
            pg.consume_input()
    server.modify(pg.socket, POLLIN)
    results: list[Result] = []
    while True:
        while pg.is_busy():
            server.poll()
            pg.consume_input()
        result = pg.get_result()
        if result is None:  # the end of one statement's results, or of the connection
            if pg.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError(pg.get_error_message())
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        else:
            results.append(result)


def _check(db: Connection, result: Result) -> None:
    """Raise the error of a statement that failed."""
    if result.status in _DONE:
        return
    if db.pgconn.status != pq.ConnStatus.OK or result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        raise psycopg.OperationalError(db.pgconn.get_error_message())
    raise error_from_result(result)


def _statement(extensions: Sequence[Extension]) -> tuple[str, list[bytes]]:
    """Return the statement for a batch and its values. A single caller's events need no arrays."""
    try:
        if len(extensions) > 1 or len(extensions[0].events) > 2:
            return "extend", _all(extensions)
        return ("extend_one" if len(extensions[0].events) == 1 else "extend_two"), _few(extensions[0])
    except struct.error as error:
        raise SchemaViolation(f"an integer that no column can store: {error}") from error


def _few(extension: Extension) -> list[bytes]:
    """Return the values of the statements for one or two events: the head first, which is the last event."""
    after, fence, head = extension.after, extension.fence, extension.events[-1]
    values = [
        extension.run.encode(),
        int8(after.seq),
        after.hash,
        int8(-1 if fence is None else fence),
        int8(head.seq),
        head.hash,
        int8(head.time),
        int8(extension.step),
        b"\1" if extension.settled else b"\0",
    ]
    for event, step in zip(extension.events, extension.steps, strict=True):
        if event is not head:
            values += [int8(event.seq), int8(event.time)]
        values += [
            event.kind.encode(),
            int8(event.version),
            safe_text(event.actor).encode(),
            event.codec.encode(),
            event.key_id.encode(),
            event.body,
        ]
        if event is not head:
            values.append(event.hash)
        values.append(int8(_number(step)))
    return values


def _all(extensions: Sequence[Extension]) -> list[bytes]:
    """Return the values of the statement for many events: an array per column."""
    heads = [each.events[-1] for each in extensions]
    places = [place for place, each in enumerate(extensions, start=1) for _ in each.events]
    events = [event for each in extensions for event in each.events]
    return [
        texts([each.run for each in extensions]),
        integers([each.after.seq for each in extensions]),
        hashes([each.after.hash for each in extensions]),
        integers([-1 if each.fence is None else each.fence for each in extensions]),
        integers([head.seq for head in heads]),
        hashes([head.hash for head in heads]),
        integers([head.time for head in heads]),
        integers([each.step for each in extensions]),
        booleans([each.settled for each in extensions]),
        integers(places),
        integers([event.seq for event in events]),
        integers([event.time for event in events]),
        texts([event.kind for event in events]),
        integers([event.version for event in events]),
        texts([safe_text(event.actor) for event in events]),
        texts([event.codec for event in events]),
        texts([event.key_id for event in events]),
        byte_strings([event.body for event in events]),
        hashes([event.hash for event in events]),
        integers([_number(step) for each in extensions for step in each.steps]),
    ]


def _number(step: int | None) -> int:
    """Return -1 for None, since an array without nulls is shorter."""
    return -1 if step is None else step
