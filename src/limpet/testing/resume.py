"""`always_resume`: restart an agent's function after every commit, and check that it behaves the same."""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple, TypeVar

from limpet.engine.definitions.agents import Agent
from limpet.errors import NotResumable, TrialStuck
from limpet.events import bodies as b
from limpet.testing.app import TestApp, app
from limpet.testing.crash_points import Bodies, CrashPoint
from limpet.testing.trials import related_agents, run_to_end

__all__ = ["always_resume"]

In = TypeVar("In")
RUN = "trial"


class _Seen(NamedTuple):
    """How a run ended, what it did, and after which events its process died."""

    end: list[Any]
    done: dict[str, Any]
    place: str


async def always_resume(
    agent: Agent[In, Any],
    input: In,
    *,
    answers: Mapping[str, Any] = {},
    prepare: Callable[[TestApp], object] = lambda _: None,
) -> int:
    """Run an agent in memory once for each of its commits, with a crash after that commit. Returns the number of
    crashes.

    Raises NotResumable if the result or the effects differ from a run without a crash, for example because a local
    variable is carried over turns. `prepare` is called with each app before the run: `lambda app: app.stub(pay,
    "R-1")`; tools that are not stubbed are called. `answers` is used as in `crash_everywhere`.
    """

    async def trial(nth: int) -> _Seen:
        async with app(*related_agents(agent)) as world:
            prepare(world)
            world._test_settings.faulty.faults.append(CrashPoint("after", _starts_no_effect, nth))
            await world.start(agent, input, id=RUN)
            try:
                end = await run_to_end(world, RUN, answers)
            except TrialStuck as stuck:
                if stuck.asks or not nth:
                    raise
                end = ["stuck", stuck.reason]
            return _Seen(end, await _done(world), world._test_settings.faulty.died_at)

    usual = await trial(0)
    _compare(agent.name, usual, await trial(0), "was run a second time")
    for nth in count(1):
        seen = await trial(nth)
        if not seen.place:
            break
        _compare(agent.name, usual, seen, f"was resumed after {seen.place}")
    return nth - 1


def _starts_no_effect(bodies: Bodies) -> bool:
    """Return whether a commit starts no effect: the outcome of an interrupted effect does not depend on agent code."""
    return bool(bodies) and not isinstance(bodies[-1], b.StepStarted)


async def _done(world: TestApp) -> dict[str, Any]:
    """Return the calls of a run that have effects, by their name in the log."""
    bodies = [each.body for each in await world.log(RUN) if each.kind in ("step.started", "agent.called")]
    return {each["name"]: each["asked"] for each in bodies if each.get("effect") != "none"}


def _compare(agent: str, usual: _Seen, seen: _Seen, when: str) -> None:
    if usual.end != seen.end:
        ends = [" with ".join(str(part)[:200] for part in each.end) for each in (seen, usual)]
        raise NotResumable(agent=agent, when=when, difference=f"{ends[0]}; without the restart, {ends[1]}")
    names = sorted(usual.done.keys() | seen.done.keys())
    others = ", ".join(name for name in names if usual.done.get(name) != seen.done.get(name))
    if others:
        raise NotResumable(agent=agent, when=when, difference=f"new, missing or changed calls: {others}")
