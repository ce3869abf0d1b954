"""What nobody should be sent: refused on the sending side with its path, or it arrives as what it is.

With `--full` everything goes through every door; else each payload through one door of each agent, another each time.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.testing import TestApp
from tests.behaviour.handoffs.hostile_payloads import (
    OWN,
    PAYLOADS,
    TARGETS,
    Payload,
    is_same,
    is_well_formed,
    payloads_of,
)

DOORS = ("call", "name", "handoff", "start")
BY_OBJECT = ("call", "handoff")
MODELS = ("pydantic", "closed")
PATIENCE = 20


class Here:
    """What is sent in this process, what came of it."""

    payload: Any = None
    error: Exception | None = None
    got: list[Any] = []


def agent_of(target: str) -> limpet.Agent[Any, Any]:
    """An agent that declares this."""

    async def typed(run: limpet.Run, sent: Any) -> None:
        Here.got.append(sent)

    typed.__annotations__["sent"] = TARGETS[target]
    return limpet.agent(name=f"hostile_{target}")(typed)


AGENTS = {target: agent_of(target) for target in TARGETS}


@limpet.agent(name="hostile_sender")
async def sender(run: limpet.Run, how: list[str]) -> None:
    """Send what there is to be sent."""
    door, target = how
    agent = AGENTS[target]
    try:
        if door == "handoff":
            await run.handoff(agent, Here.payload)
        else:
            await run.call(agent if door == "call" else agent.name, Here.payload)
    except Exception as error:
        Here.error = error
        raise


def is_turned(target: str, payload: Payload) -> bool:
    """Whether it is turned into what was declared: a date into text, a set into a list, as any sequence is."""
    name = payload.name
    return (target in ("dataclass", "msgspec", "typeddict") and name.startswith(TURNED)) or (
        target in ("dataclass", "msgspec") and "tags set" in name
    )


VALIDATED = ("refused by its validator", "refused by a validator with a bug")
"""A schema does not say what a validator does: by name they leave, and are refused where they arrive."""
TURNED = ("id is a Colour", "id is a date", "id is a timedelta", "tags is a set", "tags is a frozenset")


def cases(target: str, door: str, *, full: bool) -> Iterator[Payload]:
    """What goes through this door to this agent."""
    first = DOORS.index(door) + [*TARGETS].index(target)
    for place, payload in enumerate(payloads_of(target), first):
        if (full or place % len(DOORS) == 0) and not is_turned(target, payload):
            yield payload


async def send(app: TestApp, target: str, door: str, payload: Payload) -> None:
    """Let it go through a door; what came of it is here."""
    Here.payload, Here.error, Here.got = payload.make(), None, []
    if door == "start":
        try:
            await app.start(AGENTS[target].name, Here.payload)
        except limpet.LimpetError as error:
            Here.error = error
    else:
        await app.start(sender, [door, target])
    async with asyncio.timeout(PATIENCE):
        await app.settle()


def check_refused(target: str, door: str, payload: Payload) -> None:
    """By a typed error that names a path; what is declared is not refused."""
    error = Here.error
    assert isinstance(error, limpet.ContractError | limpet.InvalidValue)
    paths = error.faults if isinstance(error, limpet.ContractError) else (error.path,)
    assert paths
    assert all(path.startswith("$") for path in paths)
    assert Here.got == []
    is_object_wanted = target in MODELS and door in BY_OBJECT and type(Here.payload) is dict
    assert is_object_wanted or not payload.arrives(target), f"{payload.name}: {error}"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("target", TARGETS)
async def test_nothing_malformed_arrives(target: str, door: str, full: bool) -> None:
    """No run for what was refused; the callee's code sees the declared type, with what was sent in it."""
    async with testing.app(sender, AGENTS[target]) as app:
        created = 0
        for payload in cases(target, door, full=full):
            await send(app, target, door, payload)
            if Here.error is not None:
                check_refused(target, door, payload)
                created += door == "name" and payload.name in VALIDATED
            else:
                created += 1
                [got] = Here.got
                assert is_well_formed(target, got), payload.name
                assert is_same(Here.payload, got), payload.name
        assert len(await app.runs(agent=AGENTS[target].name, last=1000)) == created


def test_there_are_enough_of_them() -> None:
    """Each is another one, and few are left out."""
    names = [payload.name for payload in PAYLOADS]
    assert len(set(names)) == len(names)
    sent = sum(len(list(cases(target, door, full=True))) for target in TARGETS for door in DOORS)
    known = sum(len(payloads_of(target)) for target in TARGETS) * len(DOORS) - sent
    print(f"{len(names)} payloads for all, {sum(map(len, OWN.values()))} for some; {sent} sent, {known} left out")
    assert len(names) + sum(map(len, OWN.values())) >= 200
    assert known < sent / 10
