"""Versioned types: values stored under an older version are upgraded when they are read."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import limpet
from limpet import testing
from limpet.engine.definitions import tools
from limpet.engine.definitions.types import codec_of
from limpet.engine.definitions.upgrades import versions_of


class LineOne(BaseModel):
    text: str


@limpet.versioned(2, name="Line", upgrades={1: lambda old: {"words": old["text"].split()}})
class Line(BaseModel):
    words: list[str]


class TicketOne(BaseModel):
    order: str
    line: LineOne


@limpet.versioned(
    3,
    name="Ticket",
    upgrades={
        1: lambda old: {"orders": [old["order"]], "line": old["line"]},
        2: lambda old: {"orders": old["orders"], "lines": [old["line"]]},
    },
)
class Ticket(BaseModel):
    orders: list[str]
    lines: list[Line]


OLD = {"order": "o1", "line": {"text": "it broke"}}
NEW = Ticket(orders=["o1"], lines=[Line(words=["it", "broke"])])


def test_versioned_types_are_upgraded_anywhere_in_an_annotation() -> None:
    """At the top level, in collections, unions and fields of every kind of record."""

    @dataclass
    class Held:
        ticket: Ticket | None

    class Typed(TypedDict):
        ticket: Ticket

    class Model(BaseModel):
        ticket: Ticket = Field(alias="theTicket")

    cases: list[tuple[Any, Any, Any]] = [
        (Ticket, OLD, NEW),
        (Ticket | None, OLD, NEW),
        (Ticket | None, None, None),
        (list[Ticket], [OLD, OLD], [NEW, NEW]),
        (dict[str, Ticket], {"a": OLD}, {"a": NEW}),
        (tuple[int, Ticket], [1, OLD], (1, NEW)),
        (tuple[Ticket, ...], [OLD], (NEW,)),
        (int | Ticket, OLD, NEW),
        (int | Ticket, 5, 5),
        (Held, {"ticket": OLD}, Held(NEW)),
        (Typed, {"ticket": OLD}, {"ticket": NEW}),
        (Model, {"ticket": OLD}, Model(theTicket=NEW)),
        (Model, {"theTicket": OLD}, Model(theTicket=NEW)),
    ]
    for hint, old, new in cases:
        assert versions_of(hint) == {"Ticket": 3, "Line": 2}, hint
        assert codec_of(hint).load(old, {}) == new, hint
        now = codec_of(hint).plain(new)
        assert codec_of(hint).load(now, codec_of(hint).versions) == new, hint


@limpet.versioned(2, upgrades={1: lambda old: {"x": old["y"]}})
@dataclass
class Dot:
    x: int


def test_versioned_types_are_upgraded_in_renamed_struct_fields() -> None:

    class Struct(msgspec.Struct, rename="camel"):
        my_dots: list[Dot]

    assert versions_of(Struct) == {"Dot": 2}
    assert codec_of(Struct).load({"myDots": [{"y": 5}]}, {}) == Struct([Dot(5)])


def test_only_missing_upgrades_are_applied_and_newer_versions_are_refused() -> None:
    middle = {"orders": ["o1"], "line": {"words": ["it", "broke"]}}
    assert codec_of(Ticket).load(middle, {"Ticket": 2, "Line": 2}) == NEW
    with pytest.raises(limpet.InvalidValue, match="version 4 of Ticket"):
        codec_of(Ticket).load({}, {"Ticket": 4})
    with pytest.raises(limpet.InvalidValue, match="version 2 of Gone"):
        codec_of(int).load(1, {"Gone": 2})
    with pytest.raises(limpet.InvalidValue, match=r"upgrading Ticket from version 1 failed: KeyError"):
        codec_of(Ticket).load({"nothing": 1}, {})


def test_incomplete_upgrades_and_duplicate_names_are_refused() -> None:
    for version, upgrades in ((2, {}), (3, {1: str}), (1, {1: str}), (2, {2: str})):
        with pytest.raises(limpet.DefinitionError):
            limpet.versioned(version, upgrades=upgrades)

    @limpet.versioned(2, name="Ticket", upgrades={1: lambda old: old})
    class Other(BaseModel):
        ticket: int

    with pytest.raises(limpet.DefinitionError, match="two types"):
        versions_of(Other | Ticket)


async def test_a_live_run_continues_with_newer_types() -> None:  # noqa: C901 - the old code and the new
    """Its input, data and results are upgraded; arguments of changed types are not compared."""
    seen: list[Any] = []

    async def old(run: limpet.Run[TicketOne], ticket: TicketOne) -> TicketOne:
        found = await run.step(first, ticket)
        await run.patch(data=found)
        called = await run.call(child, ticket)
        await run.step(act, called)
        await run.ask("go on?")
        return run.state.data

    async def new(run: limpet.Run[Ticket], ticket: Ticket) -> Ticket:
        found = await run.step(second, ticket)
        seen.append(found)
        await run.patch(data=found)
        called = await run.call(newer, ticket)
        seen.append(called)
        await run.step(acts, called)
        await run.ask("go on?")
        seen.append(run.state.data)
        return run.state.data

    @limpet.tool(effect="none", name="versions_look")
    async def first(ticket: TicketOne) -> TicketOne:
        return ticket

    @limpet.tool(effect="once", name="versions_act")
    async def act(ticket: TicketOne) -> None: ...

    @limpet.agent(name="versions_child")
    async def child(run: limpet.Run, ticket: TicketOne) -> TicketOne:
        return ticket

    async with testing.app(limpet.agent(name="versions")(old), child) as app:
        handle = await app.start("versions", OLD, id="r")
        await app.settle()
        await app.start("versions_child", OLD, id="done")
        await app.settle()

        tools._tools.clear()

        @limpet.tool(effect="none", name="versions_look")
        async def second(ticket: Ticket) -> Ticket:
            raise AssertionError

        @limpet.tool(effect="once", name="versions_act")
        async def acts(ticket: Ticket) -> None:
            raise AssertionError

        @limpet.agent(name="versions_child")
        async def newer(run: limpet.Run, ticket: Ticket) -> Ticket:
            return ticket

        today = limpet.agent(name="versions")(new)
        app.deploy(today, newer)
        assert [each.problem async for each in app.replay_all()] == [None, None, None]
        await app.crash()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await (await app.get("r", today)).result() == NEW
        assert seen[-3:] == [NEW, NEW, NEW]
        assert await (await app.get("done", newer)).result() == NEW
        again = await app.start(today, NEW, id="fresh")
        await app.settle()
        created = (await app.log("fresh"))[0].body
        assert created["input"]["versions"] == {"Ticket": 3, "Line": 2}
        assert (await app.state("r")).working.data_versions == {}
        assert handle.id == "r"
        assert again.id == "fresh"


async def test_replay_all_reports_live_runs_whose_upgrade_fails() -> None:

    class Plain(BaseModel):
        n: int

    def halve(old: dict[str, int]) -> dict[str, float]:
        return {"half": 10 / old["n"]}

    @limpet.versioned(2, name="Plain", upgrades={1: halve})
    class Halved(BaseModel):
        half: float

    @limpet.tool(effect="none", name="versions_give")
    async def give(n: int) -> Plain:
        return Plain(n=n)

    async def before(run: limpet.Run[Plain], given: Plain) -> int:
        await run.patch(data=await run.step(give, given.n))
        await run.ask("go on?")
        return run.state.data.n

    async def after(run: limpet.Run[Halved], given: Halved) -> float:
        await run.patch(data=await run.step(gives, 3))
        await run.ask("go on?")
        return run.state.data.half

    async with testing.app(limpet.agent(name="versions_dry")(before)) as app:
        for n in (0, 5):
            await app.start("versions_dry", {"n": n}, id=f"r{n}")
        await app.settle()

        tools._tools.clear()

        @limpet.tool(effect="none", name="versions_give")
        async def gives(n: int) -> Halved:
            raise AssertionError

        app.deploy(limpet.agent(name="versions_dry")(after))
        found = {each.run: each.problem async for each in app.replay_all(status=("waiting",))}
        assert found["r5"] is None or "other arguments" in found["r5"]
        assert "ZeroDivisionError" in (found["r0"] or "")


async def test_a_compensation_receives_upgraded_arguments_and_result() -> None:
    undone: list[Any] = []

    async def code(run: limpet.Run) -> None:
        await run.step(act, TicketOne.model_validate(OLD))
        await run.ask("go on?")

    async def today(run: limpet.Run) -> None:
        await run.step(acts, NEW)
        await run.ask("go on?")

    @limpet.tool(effect="once", name="versions_undone")
    async def act(ticket: TicketOne) -> TicketOne:
        return ticket

    @act.compensate
    async def undo(result: TicketOne | None, ticket: TicketOne) -> None: ...

    async with testing.app(limpet.agent(name="versions_undoing")(code)) as app:
        await app.start("versions_undoing", None, id="r")
        await app.settle()
        tools._tools.clear()

        @limpet.tool(effect="once", name="versions_undone")
        async def acts(ticket: Ticket) -> Ticket:
            raise AssertionError

        @acts.compensate
        async def undoes(result: Ticket | None, ticket: Ticket) -> None:
            undone.append((result, ticket))

        app.deploy(limpet.agent(name="versions_undoing")(today))
        await app.crash()
        await app.cancel("r", reason="enough")
        await app.settle()
        assert undone == [(NEW, NEW)]


async def test_a_source_is_read_again_with_upgraded_arguments() -> None:
    """`run.read_again` repeats the last recorded arguments."""
    asked: list[Any] = []

    @limpet.external(ttl="5m", name="versions_source")
    async def first(ticket: TicketOne) -> str:
        return ticket.order

    @limpet.external(ttl="5m", name="versions_source")
    async def second(ticket: Ticket) -> str:
        asked.append(ticket)
        return "new"

    async def code(run: limpet.Run) -> str:
        await run.read(first, TicketOne.model_validate(OLD))
        await run.ask("go on?")
        return "old"

    async def today(run: limpet.Run) -> str:
        await run.read(second, NEW)
        await run.ask("go on?")
        return str(await run.read_again(second))

    async with testing.app(limpet.agent(name="versions_reading")(code)) as app:
        handle = await app.start("versions_reading", None)
        await app.settle()
        app.deploy(limpet.agent(name="versions_reading")(today))
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "new"
    assert asked == [NEW]
