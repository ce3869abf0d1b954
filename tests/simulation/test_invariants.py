"""The invariants can fail: each reports its name if the engine, the store or a log is faulty."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

import limpet
from limpet.engine.approvals.approvals import ApprovalGate
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.handle import Result
from limpet.engine.execution.recorder import Recorder
from limpet.engine.waits import waits
from limpet.engine.waits.notifications import NotificationRuns
from limpet.engine.worker import run_driver
from limpet.engine.worker.worker import WorkerLoop
from limpet.engine.worker.worker_settings import StoreClock
from limpet.events import Event, inline
from limpet.events import bodies as b
from limpet.policy import risk
from limpet.service.app import App
from limpet.service.deciders import Deciders
from limpet.stores import claim
from tests.simulation import invariants, world
from tests.simulation.invariants import Watcher, check_end
from tests.simulation.world import World, simulate

Seen = tuple[Event, Any, int]
Change = Callable[[Seen], list[Seen]]


def again(seen: Seen) -> list[Seen]:
    """Duplicate the event."""
    return [seen, (replace(seen[0], seq=seen[0].seq + 1), *seen[1:])]


def lost(_: Seen) -> list[Seen]:
    """Drop the event."""
    return []


def under(**envelope: Any) -> Change:
    """Return a change of the envelope."""
    return lambda seen: [(replace(seen[0], **envelope), *seen[1:])]


def saying(**body: Any) -> Change:
    """Return a change of the body."""
    return lambda seen: [(seen[0], replace(seen[1], **body), seen[2])]


def another_key(seen: Seen) -> list[Seen]:
    """Change the idempotency key of the event."""
    return saying(key=f"{seen[1].key}0")(seen)


def another_run(seen: Seen) -> list[Seen]:
    """Change the run that the event names."""
    return saying(run=f"{seen[1].run}0")(seen)


def of_something_else(seen: Seen) -> list[Seen]:
    """Add a request with the same digest and other arguments."""
    more = (replace(seen[0], seq=seen[0].seq + 1), replace(seen[1], request="more", args=inline({"n": 0})), seen[2])
    return [seen, more]


def other_arguments(seen: Seen) -> list[Seen]:
    """Change the arguments that were approved."""
    return saying(args=inline({**seen[1].args.value(), "cents": 1}))(seen)


def an_hour_early(seen: Seen) -> list[Seen]:
    """Move the store's time an hour back."""
    return [(*seen[:2], seen[2] - 3600 * 1_000_000)]


def ended(seen: Seen) -> list[Seen]:
    """Replace the event by the completion of the run."""
    body = b.RunCompleted(output=inline(None))
    return [(replace(seen[0], kind="run.completed"), body, seen[2])]


def is_once(body: Any) -> bool:
    return isinstance(body, b.StepStarted) and body.effect == "once"


def of(*kinds: type) -> Callable[[Any], bool]:
    return lambda body: isinstance(body, kinds)


def after_it(kind: str, body: Any) -> Change:
    """Return a change that adds an event."""
    return lambda seen: [seen, (replace(seen[0], seq=seen[0].seq + 1, kind=kind), body, seen[2])]


def is_for_risk(body: Any) -> bool:
    return isinstance(body, b.StepStarted) and body.grant is not None


def is_asked_in_a_fork(body: Any) -> bool:
    return isinstance(body, b.StepStarted) and body.grant is not None and body.risk is None


def is_approved_by_a_member(body: Any) -> bool:
    """Return whether the request was for a group, not for anyone: only then is eve not allowed to decide."""
    return isinstance(body, b.RequestAnswered) and body.decision == "approved" and body.by in ("dan", "bob")


STRANGE: list[tuple[str, Callable[[Any], bool], Change]] = [
    ("I2", of(b.StepCompleted), lost),
    ("I2", of(b.StepStarted), under(time=0)),
    ("I2", lambda body: isinstance(body, b.WaitEnded) and body.how == "fired", again),
    ("I3", of(b.RunClaimed), under(fence=0)),
    ("I3", of(b.StepCompleted), under(fence=0)),
    ("I3", of(b.StepCompleted), under(actor="another worker")),
    ("I4", is_once, again),
    ("I4", lambda body: isinstance(body, b.StepStarted) and body.attempt == 2 and bool(body.key), another_key),
    ("I5", of(b.RunCompleted), again),
    (
        "I5",
        lambda body: isinstance(body, b.AgentCalled) and body.mode == "handoff",
        after_it("timer.set", b.TimerSet(name="sleep#9", wake=0)),
    ),
    ("I6", of(b.RequestAnswered), again),
    ("I6", lambda body: isinstance(body, b.RequestOpened) and body.kind == "approval", of_something_else),
    ("I6", lambda body: isinstance(body, b.RequestAnswered) and body.decision == "approved", saying(digest="other")),
    ("I6", is_approved_by_a_member, saying(by="eve")),
    ("I6", is_for_risk, saying(grant=None)),
    ("I6", is_for_risk, saying(grant="revoked")),
    ("I6", is_for_risk, other_arguments),
    ("I6", of(b.GrantGiven), again),
    ("I6", lambda body: isinstance(body, b.AgentCalled) and body.mode == "notify", another_run),
    ("I9", is_once, saying(key="r9:step_1:sim_mail:0")),
    ("I9", is_once, saying(args=inline({"n": 9000}))),
    ("I9", of(b.RequestAnswered), saying(request="another")),
    ("I9", of(b.AgentReturned), saying(run="r9.sim_child-1")),
    ("I9", of(b.RunClaimed), saying(alone=True)),
    (
        "I11",
        lambda body: isinstance(body, b.StepUnknown) and body.reason == "died",
        lambda seen: [seen, *ended(again(seen)[1])],
    ),
    ("I6", is_asked_in_a_fork, saying(grant=None)),
    ("I13", of(b.StepStarted), saying(attempt=99)),
    ("I13", of(b.StepCompleted), under(body=b" " * 10_000)),
    ("I14", lambda body: isinstance(body, b.WaitEnded) and body.how == "fired", an_hour_early),
    ("I14", of(b.RequestExpired), an_hour_early),
    ("I15", of(b.RunForked), saying(at=10_000)),
]


@cache
def tape(seed: int) -> list[Seen]:
    """Return the events of a simulation."""
    return simulate(seed).watcher.tape


def tapes() -> Iterator[list[Seen]]:
    """Return the events of simulations, as many as a test needs to find its event."""
    return map(tape, range(40))


@pytest.mark.parametrize(("name", "where", "change"), STRANGE, ids=[f"{each[0]}-{n}" for n, each in enumerate(STRANGE)])
def test_a_changed_event_violates_its_invariant(name: str, where: Callable[[Any], bool], change: Change) -> None:
    """One event of a correct log is changed."""
    found, place = next((found, place) for found in tapes() for place, seen in enumerate(found) if where(seen[1]))
    watcher = Watcher()
    for seen in [*found[:place], *change(found[place]), *found[place + 1 :]]:
        watcher.take(*seen)
    watcher.whole()
    with pytest.raises(AssertionError, match=f"^{name} "):
        watcher.check()


def test_an_effect_after_the_end_is_found() -> None:
    done = simulate(0)
    done.watcher.effect(next(key for key in done.outside.sent))
    with pytest.raises(AssertionError, match=r"^I5 "):
        done.watcher.check()


def test_a_fork_that_is_pruned_without_its_origin_is_found() -> None:
    forked = next(found for found in tapes() if any(isinstance(body, b.RunForked) for _, body, _ in found))
    watcher = Watcher()
    for seen in forked:
        watcher.take(*seen)
    fork = next(event.run for event, body, _ in forked if isinstance(body, b.RunForked))
    watcher.prune([run for run, seen in watcher.runs.items() if run == fork or run.startswith("notify-")])
    with pytest.raises(AssertionError, match=r"^I16 "):
        watcher.check()


def test_an_event_of_a_pruned_run_is_found() -> None:
    watcher = simulate(0).watcher
    watcher.pruned.add(watcher.tape[-1][0].run)
    watcher.take(*watcher.tape[-1])
    with pytest.raises(AssertionError, match=r"^I15 "):
        watcher.check()


def test_a_refusal_that_changed_the_store_is_found() -> None:
    watcher = Watcher()
    watcher.committed([limpet.WrongState(run="r0", status="completed", wanted="a signal")], "7", "8")
    with pytest.raises(AssertionError, match=r"^I11 "):
        watcher.check()


async def nothing(*_: object) -> None:
    """Return without doing anything."""


async def nothing_returned(*_: object, quiet: bool = False) -> Result:
    """Return None as the result of the run, however it ended."""
    return Result(None, {})


async def careless(recorder: Recorder) -> None:
    """Skip the flush before a step starts."""
    if not isinstance(next(reversed(recorder._journal._buffer), None), b.StepStarted):
        await recorder.write_until_stored(recorder._journal.flush)


def revived(_: object, plain: Any, *_versions: object) -> Any:
    """Replace data that looks like a serialised object."""
    return "revived" if isinstance(plain, dict) and "lc" in plain else plain


def changing() -> Callable[..., Any]:
    """Return a loader that gives another value the second time."""
    loaded: set[str] = set()

    def load(_: object, plain: Any, *_versions: object) -> Any:
        known = isinstance(plain, str) and plain in loaded
        loaded.add(str(plain))
        return f"{plain} again" if known else plain

    return load


def own_clock(time: StoreClock) -> int:
    """Return the worker's own time instead of the store's."""
    return time._clock.now()


SABOTAGE: list[tuple[str, object, str, object]] = [
    ("I1", App, "signal", nothing),
    ("I4", Recorder, "flush", careless),
    ("I6", risk, "decide", lambda *_, **__: risk.Free()),
    ("I6", Deciders, "groups_of", lambda *_: ["desk", "boss"]),
    ("I6", waits, "notification_runs", lambda *_: NotificationRuns((), ())),
    ("I6", ApprovalGate, "_checked", lambda _, __, edited, *___: {**edited, "cents": 1}),
    ("I7", Tool, "load_result", changing()),
    ("I8", WorkerLoop, "claim", nothing),
    ("I9", run_driver, "is_poison", lambda *_: False),
    ("I8", claim, "_group", lambda suspects, *_: {row.number for row in suspects}),
    ("I10", invariants, "verify_run", nothing),
    ("I11", App, "result", nothing_returned),
    ("I12", Tool, "load_result", revived),
    ("I14", StoreClock, "now", own_clock),
]


@pytest.mark.parametrize(("name", "where", "what", "instead"), SABOTAGE, ids=[f"{s[0]}-{s[2]}" for s in SABOTAGE])
def test_a_broken_engine_violates_its_invariant(
    monkeypatch: pytest.MonkeyPatch, name: str, where: object, what: str, instead: object
) -> None:
    """A few seeds are enough to find the fault and to name its invariant; it may violate others, too."""
    monkeypatch.setattr(where, what, instead)
    monkeypatch.setattr(World, "jump", lambda _: 3600 * 1_000_000)
    monkeypatch.setattr(world, "FORKS", 0)  # so that no result is loaded twice

    others = []
    for seed in range(60):
        try:
            simulate(seed, check=check_end)
        except AssertionError as error:
            if str(error).startswith(f"{name} "):
                return
            others.append(str(error))
    pytest.fail(f"{name} was not violated in 60 seeds; others: {others}")


def test_a_row_that_differs_from_its_log_is_found() -> None:
    async def check(world: World) -> None:
        rows = world.backend._rows.streams
        rows["r0"] = replace(rows["r0"], goal="another")
        await check_end(world)

    with pytest.raises(AssertionError, match=r"^I7 "):
        simulate(0, check=check)
