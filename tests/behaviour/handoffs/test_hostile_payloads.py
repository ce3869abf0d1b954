"""Hostile payloads are refused by the sender with a path, or arrive unchanged.

With `--full`, every payload is sent to every agent by every route; otherwise each to every other agent by one route, in
turn.
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

ROUTES = ("call", "name", "handoff", "start")
BY_OBJECT = ("call", "handoff")
MODELS = ("pydantic", "closed")
PATIENCE = 20


class Sent:
    """The payload that is sent in this process, and its outcome."""

    payload: Any = None
    error: Exception | None = None
    got: list[Any] = []


def agent_of(target: str) -> limpet.Agent[Any, Any]:
    """Return an agent that declares this type."""

    async def typed(run: limpet.Run, sent: Any) -> None:
        Sent.got.append(sent)

    typed.__annotations__["sent"] = TARGETS[target]
    return limpet.agent(name=f"hostile_{target}")(typed)


AGENTS = {target: agent_of(target) for target in TARGETS}


@limpet.agent(name="hostile_sender")
async def sender(run: limpet.Run, how: list[str]) -> None:
    """Send the current payload."""
    route, target = how
    agent = AGENTS[target]
    try:
        if route == "handoff":
            await run.handoff(agent, Sent.payload)
        else:
            await run.call(agent if route == "call" else agent.name, Sent.payload)
    except Exception as error:
        Sent.error = error
        raise


def is_converted(target: str, payload: Payload) -> bool:
    """Return whether the payload is converted to the declared type: a date to text, or a set to a list."""
    name = payload.name
    return (target in ("dataclass", "msgspec", "typeddict") and name.startswith(CONVERTED)) or (
        target in ("dataclass", "msgspec") and "tags set" in name
    )


VALIDATED = ("refused by its validator", "refused by a validator with a bug")
"""A schema cannot express validators: sent by name, these are refused by the receiver."""
CONVERTED = ("id is a Colour", "id is a date", "id is a timedelta", "tags is a set", "tags is a frozenset")


def cases(target: str, route: str, *, full: bool) -> Iterator[Payload]:
    """Yield the payloads for this agent and route."""
    first, every = ROUTES.index(route) + [*TARGETS].index(target), 2 * len(ROUTES)
    for place, payload in enumerate(payloads_of(target), first):
        if (full or place % every == 0) and not is_converted(target, payload):
            yield payload


async def send(app: TestApp, target: str, route: str, payload: Payload) -> None:
    """Send a payload by a route, and record its outcome in `Sent`."""
    Sent.payload, Sent.error, Sent.got = payload.make(), None, []
    if route == "start":
        try:
            await app.start(AGENTS[target].name, Sent.payload)
        except limpet.LimpetError as error:
            Sent.error = error
    else:
        await app.start(sender, [route, target])
    async with asyncio.timeout(PATIENCE):
        await app.settle()


def check_refused(target: str, route: str, payload: Payload) -> None:
    """Check that the error is typed and names a place, and that the payload was really invalid."""
    error = Sent.error
    assert isinstance(error, limpet.ContractError | limpet.InvalidValue)
    faults = error.faults if isinstance(error, limpet.ContractError) else (error.at("sent"),)
    assert faults
    assert all(": " in fault and not fault.startswith("$:") for fault in faults)
    assert Sent.got == []
    is_object_wanted = target in MODELS and route in BY_OBJECT and type(Sent.payload) is dict
    assert is_object_wanted or not payload.arrives(target), f"{payload.name}: {error}"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("target", TARGETS)
async def test_a_hostile_payload_is_refused_or_arrives_unchanged(target: str, route: str, full: bool) -> None:
    """A refused payload creates no run. The receiver's code gets the declared type."""
    async with testing.app(sender, AGENTS[target]) as app:
        created = 0
        for payload in cases(target, route, full=full):
            await send(app, target, route, payload)
            if Sent.error is not None:
                check_refused(target, route, payload)
                created += route == "name" and payload.name in VALIDATED
            else:
                created += 1
                [got] = Sent.got
                assert is_well_formed(target, got), payload.name
                assert is_same(Sent.payload, got), payload.name
        assert len(await app.runs(agent=AGENTS[target].name, last=1000)) == created


def test_there_are_at_least_200_distinct_payloads() -> None:
    """At most a tenth is left out because it is converted."""
    names = [payload.name for payload in PAYLOADS]
    assert len(set(names)) == len(names)
    sent = sum(len(list(cases(target, route, full=True))) for target in TARGETS for route in ROUTES)
    known = sum(len(payloads_of(target)) for target in TARGETS) * len(ROUTES) - sent
    print(f"{len(names)} payloads for all, {sum(map(len, OWN.values()))} for some; {sent} sent, {known} left out")
    assert len(names) + sum(map(len, OWN.values())) >= 200
    assert known < sent / 10
