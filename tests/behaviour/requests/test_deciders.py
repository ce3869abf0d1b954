"""Who may decide which request: addressees, groups of the caller, services, and the person who started the run."""

from typing import Any, NamedTuple

import pytest

import limpet
from limpet import Approvals, Principal


@limpet.tool(effect="once", name="deciders_pay", risk="pay")
async def pay(cents: int) -> int:
    """Pays."""
    return cents


@limpet.agent(name="deciders_payer", approvals=Approvals("pay", to="finance"))
async def payer(run: limpet.Run, cents: int) -> int:
    return await run.step(pay, cents)


@limpet.agent(name="deciders_trusting_payer", approvals=Approvals("pay", to="finance", self_approval=True))
async def trusting(run: limpet.Run, cents: int) -> int:
    return await run.step(pay, cents)


@limpet.agent(name="deciders_asker")
async def asker(run: limpet.Run, cents: int) -> bool:
    return bool(await run.ask(f"Pay {cents}?", to="finance"))


@limpet.agent(name="deciders_caller")
async def caller(run: limpet.Run, cents: int) -> int:
    return await run.call(payer, cents)


class Case(NamedTuple):
    """Who decides a request of an agent that ann started, and the reason of the refusal, if it is refused."""

    agent: limpet.Agent[Any, Any]
    who: Principal
    refusal: str | None = None


def person(name: str, *groups: str) -> Principal:
    return Principal(name=name, groups=groups, roles=("approver",))


def service(name: str, **more: Any) -> Principal:
    return Principal(name=name, kind="service", groups=("finance",), roles=("approver",), **more)


OTHERS = ""
STARTER = "the person who started a run does not approve its steps"
SERVICE = "only people decide approvals"
CASES = {
    "an addressee": Case(payer, person("bob", "finance")),
    "a member of another group": Case(payer, person("bob", "sales"), OTHERS),
    "a person in no group": Case(payer, person("bob"), OTHERS),
    "a member of a group in the app": Case(payer, person("carol")),
    "groups of the caller replace those in the app": Case(payer, person("carol", "sales"), OTHERS),
    "the starter": Case(payer, person("ann", "finance"), STARTER),
    "the starter, where that is allowed": Case(trusting, person("ann", "finance")),
    "the starter of the calling run": Case(caller, person("ann", "finance"), STARTER),
    "the starter, asked a question": Case(asker, person("ann", "finance")),
    "a service": Case(payer, service("bot"), SERVICE),
    "a service with the right": Case(payer, service("bot", rights=("approve-by-agent",))),
    "a service that started it, with the right": Case(payer, service("ann", rights=("approve-by-agent",)), STARTER),
    "a service, asked a question": Case(asker, service("bot")),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_request_is_decided_only_by_those_who_may(name: str) -> None:
    """A refused decision leaves the request open, and it can be given by others."""
    agent, who, refusal = CASES[name]
    agents = [payer, trusting, asker, caller]
    async with limpet.open("memory:", agents=agents, people={"finance": ["carol", "dan"]}) as app:
        handle = await app.start(agent, 5, id="r", by=person("ann"))
        [request] = await opened(app)
        if refusal is not None:
            with pytest.raises(limpet.NotAllowed) as refused:
                await app.approve(request, by=who)
            assert refused.value.reason == refusal
            with pytest.raises(limpet.NotAllowed):
                await app.reject(request, by=who, because="no")
        await app.approve(request, by=person("dan") if refusal is not None else who)
        assert await handle.result() in (5, True)


async def test_a_fork_belongs_to_the_person_who_forked() -> None:
    """They cannot approve its steps; the person who started the original can."""
    async with limpet.open("memory:", agents=[payer]) as app:
        await app.start(payer, 5, id="r", by=person("ann"))
        [request] = await opened(app)
        await app.approve(request, by=person("bob", "finance"))
        await (await app.get("r")).result()
        fork = await app.fork("r", at=1, id="r.1", effects="ask", by=person("bob"))
        [request] = await opened(app)
        with pytest.raises(limpet.NotAllowed, match="started"):
            await app.approve(request, by=person("bob", "finance"))
        await app.approve(request, by=person("ann", "finance"))
        assert await fork.result() == 5


async def test_names_are_not_checked_where_people_do_not_authenticate() -> None:
    """In a script, or at the terminal, one person starts and approves."""
    async with limpet.open("memory:", agents=[payer]) as app:
        handle = await app.start(payer, 5, by="ann")
        [request] = await opened(app)
        await app.approve(request, by="ann")
        assert await handle.result() == 5


async def opened(app: limpet.App) -> list[limpet.Request]:
    """Return the open requests, once there is one."""
    found: list[limpet.Request] = []
    while not found:
        found = [*await app.inbox()]
    return found
