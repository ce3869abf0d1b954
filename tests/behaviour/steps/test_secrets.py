"""Secrets: only tools receive them. Every form of a secret is sent through every place where it could leak."""

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
# These sinks contain no user text, but are searched all the same.
WITHOUT_USER_TEXT = {"request rows", "contracts", "limpet diff", "limpet doctor"}


class Login(BaseModel):
    """Credentials of a tool."""

    user: str
    key: Secret


# The matrix


@pytest.fixture(scope="module")
def shapes(request: pytest.FixtureRequest) -> list[Shape]:
    """All forms with --full, otherwise a sample."""
    return [*TYPED, *PATTERNED] if request.config.getoption("--full") else SHAPES


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, shapes: list[Shape], request: pytest.FixtureRequest) -> World:
    """Everything that was visible outside of tools. Every form is used with every command with --full."""
    before = dict(tools._tools)
    try:
        return collect(tmp_path_factory.mktemp("leaks"), shapes, every_command=request.config.getoption("--full"))
    finally:
        tools._tools.clear()
        tools._tools.update(before)


def test_the_matrix_covers_fifty_forms_and_every_sink(world: World, shapes: list[Shape]) -> None:
    """Half of them, without --full."""
    assert len({shape.needle for shape in shapes}) == len(shapes) >= 25
    assert len({shape.needle for shape in (*TYPED, *PATTERNED)}) >= 50
    assert set(world.sinks) == set(SINKS)
    assert len(SINKS) >= 12


@pytest.mark.parametrize("sink", SINKS)
def test_no_secret_appears_in_any_sink(world: World, shapes: list[Shape], sink: str) -> None:
    """Neither a `Secret` nor text that looks like a credential."""
    seen = bytes(world.sinks[sink])
    assert [shape.name for shape in shapes if any(form in seen for form in shape.forms)] == []


@pytest.mark.parametrize("sink", sorted(set(SINKS) - WITHOUT_USER_TEXT))
def test_ordinary_text_appears_in_every_sink(world: World, sink: str) -> None:
    """This proves that the search would find a secret."""
    assert CONTROL.needle.encode() in world.sinks[sink]


def test_tools_receive_the_real_secrets(world: World, shapes: list[Shape]) -> None:
    """In every form, at each of three calls."""
    wrong = [
        shape.name
        for shape in shapes
        if len(world.received[shape.name]) != 3
        or not all(shape.needle in _revealed(it) for it in world.received[shape.name])
    ]
    assert wrong == []


def _revealed(value: Any) -> str:
    """Return all text inside a value, with secrets revealed."""
    match value:
        case Secret():
            return _revealed(value.reveal())
        case SecretStr() | SecretBytes():
            return _revealed(value.get_secret_value())
        case str() | bytes():
            return value if isinstance(value, str) else value.decode()
        case dict():
            return " ".join(map(_revealed, value.values()))
        case list() | tuple() | set() | frozenset():
            return " ".join(map(_revealed, value))
        case msgspec.Struct():
            return _revealed(msgspec.structs.asdict(value))
        case _:
            return _revealed(vars(value)) if hasattr(value, "__dict__") else ""


# Values that tools receive


async def test_a_step_repeated_after_a_crash_receives_its_secret() -> None:
    """The agent's code runs again and passes the secret again; the log does not contain it."""
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


async def test_every_attempt_and_verify_receive_the_secret() -> None:
    """The compensation, which works from the log alone, does not."""
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


async def test_a_rotated_secret_is_no_divergence() -> None:
    """Replay compares only what is recorded, and no digest of a secret is recorded."""
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


async def test_a_secret_argument_is_not_mistaken_for_the_default() -> None:
    """All secrets look alike in the log."""
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


async def test_secrets_read_from_the_log_are_withheld() -> None:
    """Inputs, results, state and the inputs of other agents, both live and on replay."""
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
async def test_an_approver_may_replace_a_secret_argument(edited: dict[str, Any] | None, expected: str) -> None:
    """The person sees that there is a secret, but not its value. An unedited secret is passed on."""
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


async def test_a_secret_inside_an_edited_argument_is_withheld() -> None:

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


# Patterns in recorded values


async def test_without_redact_results_are_recorded_unchanged() -> None:
    """Texts about them (a question, a progress note, a brief) are redacted."""

    @limpet.tool(effect="none")
    async def look() -> str:
        limpet.current().progress(f"with {CREDENTIAL}")
        await asyncio.sleep(0)  # noqa: TID251 - a turn, to record the progress
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


async def test_with_redact_the_code_sees_redacted_values_live_and_on_replay() -> None:
    """Tools receive the real arguments."""
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


async def test_redact_hides_an_argument_named_password() -> None:
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


def test_text_is_redacted_before_it_is_truncated() -> None:
    """Half a credential in a brief would still be a leak."""
    for before in range(150, 200, 3):
        assert CREDENTIAL[4:10] not in shown(inline(["x" * before, CREDENTIAL, "y" * 500]))


@pytest.mark.parametrize(("said", "is_on"), [("1", True), ("0", False), ("", False)])
def test_limpet_redact_turns_redaction_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, is_on: bool
) -> None:
    """The argument `redact=` takes precedence. Another store of the same app uses the same redaction."""
    monkeypatch.setenv("LIMPET_REDACT", said)
    assert limpet.open("memory:").store.redaction.is_on is is_on
    assert not limpet.open("memory:", redact=False).store.redaction.is_on
    app = limpet.open("memory:", redact=["ACME-[0-9]{4}"])
    assert app.replace(store=limpet.open_store("memory:")).store.redaction.value("ACME-1234") == "[redacted]"


@pytest.mark.parametrize("takes", [Secret, Secret[bytes], Secret | None], ids=str)
async def test_text_where_a_secret_is_declared_is_refused(takes: Any) -> None:
    """The log would contain it, although the annotation says that it must not."""
    given: Any = VALUE.encode() if takes == Secret[bytes] else VALUE

    async def take(key: Any) -> str:
        return "taken"

    take.__annotations__["key"] = takes
    tool = limpet.tool(effect="none")(take)

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        with pytest.raises(limpet.InvalidArgument, match=r"key: expected Secret, got \w+; pass limpet\.Secret"):
            await run.step(tool, given)
        return await run.step(tool, Secret(given))

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r1")
        assert await handle.result() == "taken"
        assert VALUE not in str([event.body for event in await app.log("r1")])
