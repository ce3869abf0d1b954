"""Secrets: tools get them, and nothing else does: every shape of one, through every place where it could be seen."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, SecretBytes, SecretStr

import limpet
from limpet import Secret, SecretWithheld, testing
from limpet.context.brief import shown
from limpet.engine.definitions import tools
from limpet.events import inline
from limpet.redaction import Redaction
from tests.behaviour.steps.secret_leaks import CONTROL, PATTERNED, SHAPES, SINKS, TYPED, Shape, World, collect
from tests.unit.credentials import letters

RISKY = limpet.Approvals("external_action", to="finance")
VALUE = "open sesame at the rock"
CREDENTIAL = "gh" + "p_" + letters(99, 36)
# These hold no text of users at all; they are looked at all the same.
WORDLESS = {"request rows", "contracts", "limpet diff", "limpet doctor"}


class Login(BaseModel):
    """What a tool needs to come in."""

    user: str
    key: Secret


# The matrix


@pytest.fixture(scope="module")
def shapes(request: pytest.FixtureRequest) -> list[Shape]:
    """All of them with --full; else enough."""
    return [*TYPED, *PATTERNED] if request.config.getoption("--full") else SHAPES


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, shapes: list[Shape]) -> World:
    """What could be seen of them, anywhere."""
    before = dict(tools._tools)
    try:
        return collect(tmp_path_factory.mktemp("leaks"), shapes)
    finally:
        tools._tools.clear()
        tools._tools.update(before)


def test_there_are_many_shapes_and_many_places(world: World, shapes: list[Shape]) -> None:
    """Fifty and twelve at the least, and no place that is not looked at."""
    assert len({shape.needle for shape in shapes}) == len(shapes) >= 50
    assert set(world.sinks) == set(SINKS)
    assert len(SINKS) >= 12


@pytest.mark.parametrize("sink", SINKS)
def test_no_secret_of_any_shape_is_seen(world: World, shapes: list[Shape], sink: str) -> None:
    """Neither a Secret, nor what looks like one."""
    seen = bytes(world.sinks[sink])
    assert [shape.name for shape in shapes if any(form in seen for form in shape.forms)] == []


@pytest.mark.parametrize("sink", sorted(set(SINKS) - WORDLESS))
def test_what_is_no_secret_is_seen_there(world: World, sink: str) -> None:
    """So a secret would be, if it were not taken out."""
    assert CONTROL.needle.encode() in world.sinks[sink]


def test_tools_had_the_real_ones(world: World, shapes: list[Shape]) -> None:
    """In every shape, at each of their calls."""
    wrong = [
        shape.name
        for shape in shapes
        if len(world.received[shape.name]) != 3
        or not all(shape.needle in _told(it) for it in world.received[shape.name])
    ]
    assert wrong == []


def _told(value: Any) -> str:
    """Everything that is in a value, secrets revealed."""
    match value:
        case Secret():
            return _told(value.reveal())
        case SecretStr() | SecretBytes():
            return _told(value.get_secret_value())
        case str() | bytes():
            return value if isinstance(value, str) else value.decode()
        case dict():
            return " ".join(map(_told, value.values()))
        case list() | tuple() | set() | frozenset():
            return " ".join(map(_told, value))
        case msgspec.Struct():
            return _told(msgspec.structs.asdict(value))
        case _:
            return _told(vars(value)) if hasattr(value, "__dict__") else ""


# What tools get


async def test_a_killed_step_gets_its_secret_again() -> None:
    """The code is executed again, and gives it again; the log never held it."""
    got: list[str] = []

    @limpet.tool(effect="idempotent")
    async def enter(login: Login, key: Secret) -> str:
        got.append(f"{login.key.reveal()} {key.reveal()}")
        return "in"

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        return await run.step(enter, Login(user="ann", key=Secret(VALUE)), Secret(VALUE))

    async with testing.app(agent) as app:
        app.crash_at("after", "step.started", tool="enter")
        app.crash_at("before", "step.completed")
        handle = await app.start(agent)
        assert await handle.result() == "in"
        assert app.crashes == 2
        assert VALUE not in str(await app.log(handle.id))
    assert set(got) == {f"{VALUE} {VALUE}"}
    assert len(got) >= 2


async def test_every_attempt_gets_it() -> None:
    """So does `verify`; the undoing, which is done from the log alone, does not."""
    got: list[str] = []

    @limpet.tool(effect="once", retry=limpet.Retry(3))
    async def enter(key: Secret) -> str:
        got.append(key.reveal())
        if len(got) < 3:
            raise ConnectionError(key.reveal())
        return "in"

    @enter.verify
    async def _looked(key: Secret) -> None:
        got.append(key.reveal())

    @enter.compensate
    async def _left(_: str | None, key: Secret) -> None:
        with pytest.raises(SecretWithheld):
            key.reveal()
        got.append("undone")

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(enter, Secret(VALUE))
        raise ValueError("undo it")

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed):
            await handle.result()
    assert got == [*[VALUE] * (len(got) - 1), "undone"]
    assert len(got) > 3


async def test_a_secret_that_was_rotated_is_no_divergence() -> None:
    """What is compared is what is recorded, and no digest of a secret is."""
    keys = [VALUE]
    got: list[str] = []

    @limpet.tool(effect="idempotent")
    async def enter(key: Secret) -> str:
        got.append(key.reveal())
        return "in"

    @limpet.tool(effect="idempotent")
    async def leave(key: Secret) -> str:
        got.append(key.reveal())
        return "out"

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        await run.step(enter, Secret(keys[-1]))
        await run.ask("go on?")
        return await run.step(leave, Secret(keys[-1]))

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        keys.append("another one than before")
        await app.crash()
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == "out"
        asked = {event.body["asked"] for event in await app.log(handle.id) if event.kind == "step.started"}
        assert len(asked) == 1
    assert got == keys


async def test_one_that_looks_like_the_default_is_not_taken_for_it() -> None:
    """All look alike in the log."""
    got: list[str] = []

    @limpet.tool(effect="none")
    async def enter(door: str, key: Secret = Secret("by default")) -> None:  # noqa: B008 - just that
        got.append(f"{door} {key.reveal()}")

    @limpet.tool(effect="none")
    async def enter_many(*keys: Secret, **named: Secret) -> None:
        got.append(" ".join(each.reveal() for each in (*keys, *named.values())))

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(enter, "a")
        await run.step(enter, "b", Secret(VALUE))
        await run.step(enter_many, Secret("one of many"), Secret("two of many"), x=Secret("three of many"))

    async with testing.app(agent) as app:
        await app.run(agent)
    assert got == ["a by default", f"b {VALUE}", "one of many two of many three of many"]


async def test_what_comes_from_the_log_is_withheld() -> None:
    """Inputs, results, the state and other agents' inputs, live and replayed alike."""
    seen: list[bool] = []

    @limpet.tool(effect="none")
    async def make() -> Login:
        return Login(user="ann", key=Secret(VALUE))

    @limpet.agent()
    async def other(run: limpet.Run, key: Secret) -> Secret:
        seen.append(key.is_withheld)
        return key

    @limpet.agent()
    async def agent(run: limpet.Run[dict[str, Secret]], key: Secret) -> Secret:
        made = await run.step(make)
        await run.patch(facts={"key": made.key}, data={"key": Secret(VALUE)})
        back = await run.call(other, Secret(VALUE))
        seen.extend((key.is_withheld, made.key.is_withheld, run.state.data["key"].is_withheld, back.is_withheld))
        assert run.state.facts["key"] == "[secret]"
        return made.key

    async with testing.app(agent, other) as app:
        assert (await app.run(agent, Secret(VALUE))).is_withheld
    assert seen == [True] * 5


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        (None, f"ann {VALUE}"),
        ({"user": "bob"}, f"bob {VALUE}"),
        ({"key": "[secret]"}, f"ann {VALUE}"),
        ({"key": "typed by ann"}, "ann typed by ann"),
        ({"key": Secret("not typed")}, f"ann {VALUE}"),
    ],
    ids=str,
)
async def test_what_a_person_typed_is_used_and_else_the_secret(edited: dict[str, Any] | None, expected: str) -> None:
    """They see that there is one, and not which."""
    got: list[str] = []

    @limpet.tool(effect="once", risk="external_action")
    async def enter(user: str, key: Secret) -> None:
        got.append(f"{user} {key.reveal()}")

    @limpet.agent(approvals=RISKY)
    async def agent(run: limpet.Run) -> None:
        await run.step(enter, "ann", Secret(VALUE))

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        assert request.args == {"user": "ann", "key": "[secret]"}
        await app.approve(request, by="ann", args=edited)
        await handle.result()
    assert got == [expected]


async def test_a_secret_inside_of_something_edited_is_withheld() -> None:
    """The rest of it is the person's by then."""

    @limpet.tool(effect="once", risk="external_action")
    async def enter(login: Login) -> str:
        return f"{login.user} {login.key.is_withheld}"

    @limpet.agent(approvals=RISKY)
    async def agent(run: limpet.Run) -> str:
        return await run.step(enter, Login(user="ann", key=Secret(VALUE)))

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann", args={"login": {"user": "bob", "key": "[secret]"}})
        assert await handle.result() == "bob True"


# Patterns in what is recorded


async def test_without_redact_results_are_recorded_as_they_are() -> None:
    """What is said about them is not: a message, a progress note, a brief."""

    @limpet.tool(effect="none")
    async def look() -> str:
        limpet.current().progress(f"with {CREDENTIAL}")
        await asyncio.sleep(0)  # noqa: TID251 - a turn, in which that is recorded
        return CREDENTIAL

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        found = await run.step(look)
        await run.ask(f"is {found} right?")
        return found

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        assert CREDENTIAL not in request.question
        assert CREDENTIAL not in str(request.context)
        notes = [event.body["note"] for event in await app.log(handle.id) if event.kind == "step.progressed"]
        assert set(notes) == {"with [redacted: github token]"}
        await app.approve(request, by="ann")
        assert await handle.result() == CREDENTIAL


async def test_with_redact_the_code_sees_what_was_recorded_live_and_replayed() -> None:
    """Tools get the real arguments; everything else is what the log says."""
    got: list[str] = []
    seen: list[tuple[str, str]] = []

    @limpet.tool(effect="once")
    async def echo(text: str) -> str:
        got.append(text)
        return text

    @limpet.agent()
    async def agent(run: limpet.Run, text: str) -> str:
        back = await run.step(echo, f"use {CREDENTIAL}")
        seen.append((text, back))
        await run.ask("go on?")
        return back

    async with testing.app(agent) as app:
        app.store.redaction = Redaction(patterns=True)
        app.crash_at("after", "step.completed")
        handle = await app.start(agent, f"given {CREDENTIAL}", id="r")
        await app.settle()
        assert (await app.start(agent, f"given {CREDENTIAL}", id="r")).id == handle.id
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == "use [redacted: github token]"
        assert app.crashes == 1
    assert got == [f"use {CREDENTIAL}"]
    assert set(seen) == {("given [redacted: github token]", "use [redacted: github token]")}


async def test_a_name_says_that_an_argument_is_a_secret() -> None:
    """Where patterns are looked for in what is recorded."""
    got: list[str] = []

    @limpet.tool(effect="none")
    async def enter(user: str, password: str) -> dict[str, str]:
        got.append(password)
        return {"user": user, "password": password}

    @limpet.agent()
    async def agent(run: limpet.Run) -> dict[str, str]:
        return await run.step(enter, "ann", "sesame")

    async with testing.app(agent) as app:
        app.store.redaction = Redaction(patterns=True)
        handle = await app.start(agent)
        assert await handle.result() == {"user": "ann", "password": "[redacted: password]"}
        assert "sesame" not in str(await app.log(handle.id))
    assert got == ["sesame"]


def test_what_is_cut_is_looked_through_before() -> None:
    """Half a credential in a brief is one still."""
    for before in range(150, 200, 3):
        assert CREDENTIAL[4:10] not in shown(inline(["x" * before, CREDENTIAL, "y" * 500]))


@pytest.mark.parametrize(("said", "is_on"), [("1", True), ("0", False), ("", False)])
def test_the_environment_may_say_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, is_on: bool) -> None:
    """An argument counts more; another store of the same app does likewise."""
    monkeypatch.setenv("LIMPET_REDACT", said)
    assert limpet.open("memory:").store.redaction.is_on is is_on
    assert not limpet.open("memory:", redact=False).store.redaction.is_on
    app = limpet.open("memory:", redact=["ACME-[0-9]{4}"])
    assert app.replace(store=limpet.open_store("memory:")).store.redaction.value("ACME-1234") == "[redacted]"
