"""The invariants of the fault model, by name, which must hold under all faults.

Most are checked at every event before it is recorded, some at every effect or result, and the rest at the end.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

import limpet
from limpet.engine.definitions.tools import find_tool
from limpet.errors import LimpetError
from limpet.events import VOCABULARY, Event, WrittenBy, canonical
from limpet.events import bodies as b
from limpet.journal import load, verify_run
from limpet.policy.quarantine import SOLO_DEATHS, SUSPECT
from limpet.service.notifier import RETRY
from limpet.state import fold
from limpet.state.fold import QUARANTINED
from limpet.stores import Missed, Taken
from limpet.stores.memory import MemoryBackend
from limpet.stores.writes import Appended, Raised, Transacted

if TYPE_CHECKING:
    from tests.simulation.world import World

UNDONE = (b.CompensationCompleted, b.CompensationFailed)
SETTLING = (b.StepCompleted, b.StepFailed, b.StepResolved, b.WaitEnded, b.TurnStarted, *UNDONE)
STEP = (b.StepStarted, b.StepCompleted, b.StepFailed, b.StepUnknown, b.StepResolved)
WAITS = (b.RequestOpened, b.TimerSet, b.WaitOpened, b.AgentCalled)
VERBS = (*WAITS, b.StepStarted, b.StatePatched, b.DecisionMade, b.ValueRecorded, b.TurnStarted)
LARGEST_BODY = 4000
CHANNEL = "pager"
PEOPLE = {"desk": ["ann", "dan"], "boss": ["bob"]}


@dataclass
class Step:
    """The events of a step so far."""

    first: b.StepStarted
    latest: Any
    starts: int = 0
    shared: bool = False
    """Whether a fork shares it with its origin."""


@dataclass
class Asked:
    """The events of a request so far."""

    opened: b.RequestOpened
    to: Sequence[str]
    expires: int | None
    answer: b.RequestAnswered | None = None
    closed: bool = False
    """Whether the request was decided, expired or withdrawn."""
    used: bool = False
    void: bool = False
    """Whether the run failed because of this request and was resumed."""

    @property
    def is_refused(self) -> bool:
        return self.closed and (self.answer is None or self.answer.decision == "rejected")


@dataclass
class Seen:
    """The state of one run, collected from its log so far."""

    run: str
    fence: int = 0
    time: int = 0
    holder: str | None = None
    ended: Any = None
    claims: int = 0
    deaths: int = 0
    alone: bool = False
    solo: int = 0
    quarantines: int = 0
    resumes: int = 0
    commands: int = 0
    handed: bool = False
    verbs: int = 0
    kinds: list[type] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    requests: dict[str, Asked] = field(default_factory=dict)
    grants: dict[str, b.GrantGiven] = field(default_factory=dict)
    """Standing grants by id."""
    timers: dict[str, int] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    children: set[str] = field(default_factory=set)
    signals: list[int] = field(default_factory=list)
    effects: str = "live"
    """Effects mode of a fork and of its children: live, ask or stub."""
    needs: set[str] = field(default_factory=set)
    """The runs that this one was forked from or called by."""

    def owns(self, n: int) -> bool:
        """Return whether a number belongs to this run or its children."""
        return f"r{n // 1000 - 1}" == self.run.partition(".")[0]

    def branch_off(self, body: b.RunForked) -> None:
        """Become a fork: drop open steps, requests, grants and waits of the origin."""
        self.holder, self.ended, self.handed = None, None, False
        self.deaths = self.solo = self.quarantines = 0
        self.requests, self.grants, self.waiting, self.children = {}, {}, set(), set()
        self.steps = {name: step for name, step in self.steps.items() if is_settled(step.latest)}
        for step in self.steps.values():
            step.shared = True
        self.effects, self.needs = body.effects, {body.run}

    def learn(self, event: Event, body: Any) -> None:  # noqa: C901, PLR0912 - one match
        self.fence, self.time = event.fence, event.time
        self.kinds.append(type(body))
        self.hashes.append(event.hash)
        self.commands += isinstance(body, b.Command)
        if isinstance(body, b.RunClaimed | b.RunReleased):
            self.deaths += body.died
            self.solo += body.died and self.alone
            self.alone = isinstance(body, b.RunClaimed) and body.alone
        if isinstance(body, SETTLING) or (isinstance(body, b.ResumeRequested) and self.holder is None):
            self.deaths = self.solo = self.quarantines = 0
        match body:
            case b.RunCreated():
                self.effects = body.effects
                self.needs |= {body.parent.run} if body.parent and body.parent.mode in ("call", "handoff") else set()
            case b.RunClaimed():
                self.holder, self.claims = body.worker, self.claims + 1
            case b.RunReleased() | b.RunWaiting():
                self.holder = None
                self.quarantines += isinstance(body, b.RunWaiting) and QUARANTINED in body.waits
            case b.RunCompleted() | b.RunFailed() | b.RunCancelled():
                self.holder, self.ended = None, body
            case b.ResumeRequested() if self.ended is not None:
                void = getattr(self.ended, "name", None)  # a rejected request is opened again
                for asked in self.requests.values():
                    asked.void = asked.void or asked.opened.name == void
                if void in self.steps and self.steps[void].shared:  # made again as the fork's own
                    del self.steps[void]
                self.ended, self.resumes, self.handed = None, self.resumes + 1, False
            case b.StepStarted():
                step = self.steps.setdefault(body.name, Step(body, body))
                step.latest, step.starts = body, step.starts + 1
                self.keys[body.key] = body.name
                if body.grant in self.requests:
                    self.requests[body.grant].used = True
            case b.StepCompleted() | b.StepFailed() | b.StepUnknown() | b.StepResolved():
                self.steps[body.name].latest = body
            case b.RequestOpened():
                self.requests[body.request] = Asked(body, body.to, body.expires)
            case b.RequestAnswered():
                asked = self.requests[body.request]
                asked.answer, asked.closed = body, True
            case b.RequestExpired():
                asked = self.requests[body.request]
                asked.closed = body.outcome != "escalated"
                if not asked.closed:
                    asked.to, asked.expires = body.to, body.expires
            case b.GrantGiven():
                self.grants[body.grant] = body
            case b.GrantRevoked():
                del self.grants[body.grant]
            case b.TimerSet():
                self.timers[body.name] = body.wake
            case b.AgentCalled(mode="call" | "handoff"):
                self.children.add(body.run)
                self.waiting.add(body.name)
                self.handed = body.mode == "handoff"
            case b.WaitEnded():
                self.waiting.discard(body.name)
            case b.SignalReceived():
                self.signals.append(body.value.value())
            case _:
                pass
        if isinstance(body, b.TimerSet | b.WaitOpened | b.RequestOpened):
            self.waiting.add(body.name)
        if isinstance(body, b.WaitEnded) and body.request is not None:
            self.requests[body.request].closed = True
        self.verbs += isinstance(body, (*VERBS, b.CompensationStarted))


def is_settled(latest: Any) -> bool:
    """Return whether a step is settled."""
    match latest:
        case b.StepFailed():
            return latest.is_final
        case b.StepResolved():
            return latest.outcome == "applied"
        case _:
            return isinstance(latest, b.StepCompleted)


# Checked at every event, with the run so far, the event, its body and the store's time


def prefix(seen: Seen, event: Event, body: Any, _: int) -> None:
    """Check that sequences have no gap, times never decrease, and every end has a start and is unique."""
    assert event.seq == len(seen.kinds) + 1, "the sequence has a gap"
    assert event.time >= seen.time, "the time decreases"
    if isinstance(body, STEP) and not isinstance(body, b.StepStarted):
        assert body.name in seen.steps, "the step has no start"
        assert not isinstance(seen.steps[body.name].latest, b.StepCompleted), "the step has completed before"
    if isinstance(body, b.WaitEnded):
        assert body.name in seen.waiting, "the wait is not open"


def fence(seen: Seen, event: Event, body: Any, _: int) -> None:
    """Check that only claims raise the fence, and only the worker that holds the run writes owner events."""
    claims = isinstance(body, b.RunClaimed)
    assert event.fence == seen.fence + claims, f"fence {event.fence} after {seen.fence}"
    if VOCABULARY.kinds[event.kind].writer is WrittenBy.OWNER:
        assert seen.holder == event.actor, f"written by {event.actor}, but {seen.holder} holds the run"


def effects(seen: Seen, _event: Event, body: Any, _: int) -> None:
    """Check that a step uses one key, and that `once` effects are repeated only if the last attempt was not applied."""
    if not isinstance(body, b.StepStarted) or body.effect == "none":
        return
    assert seen.keys.get(body.key, body.name) == body.name, "the key belongs to another step"
    if body.name not in seen.steps:
        return
    first, before = seen.steps[body.name].first, seen.steps[body.name].latest
    assert (first.key, first.number, first.args) == (body.key, body.number, body.args), "the retry has other arguments"
    assert not isinstance(before, b.StepCompleted), "the step was applied already"
    if body.effect == "once":
        assert isinstance(before, b.StepFailed | b.StepResolved), f"repeated after {type(before).__name__}"
        assert not isinstance(before, b.StepResolved) or before.outcome == "not_applied", "the step was applied already"


def terminal(seen: Seen, _event: Event, body: Any, _: int) -> None:
    """Check that no event follows the end, except of a failed run, and that no call follows a handoff."""
    undoes = isinstance(body, b.RequestOpened) and body.kind == "compensation"
    tells = isinstance(body, b.AgentCalled) and body.mode == "notify"
    assert not seen.handed or not isinstance(body, VERBS) or undoes or tells, "a call follows the handoff"
    if isinstance(seen.ended, b.RunFailed):
        assert isinstance(body, b.AgentReturned | b.BudgetExtended | b.ResumeRequested), "an event follows the failure"
    else:
        assert seen.ended is None, f"an event follows {type(seen.ended).__name__}"


def decided(seen: Seen, _event: Event, body: Any, now: int) -> None:
    """Check that each request is decided once, in time, for the shown arguments and by an addressee."""
    if isinstance(body, b.RequestOpened) and body.kind == "approval":
        for asked in seen.requests.values():
            same = (asked.opened.tool, asked.opened.args) == (body.tool, body.args)
            assert (asked.opened.digest == body.digest) is same, "the digest does not match the arguments"
    if isinstance(body, b.RequestAnswered):
        asked = seen.requests[body.request]
        assert not asked.closed, "the request is closed"
        assert any(body.by in PEOPLE.get(each, [body.by]) for each in asked.to), f"{body.by} was not asked"
        assert body.digest == asked.opened.digest, "the answer has another digest"
        assert asked.expires is None or now < asked.expires, "the request has expired"
    if isinstance(body, b.GrantGiven):
        asked = seen.requests[body.request or ""]
        assert (asked.answer and asked.answer.decision, asked.opened.tool) == ("approved", body.tool), "not approved"
        assert all(each.request != body.request for each in seen.grants.values()), "the grant was given twice"


def allowed(seen: Seen, _event: Event, body: Any, _: int) -> None:
    """Check that no rejected step starts, and that a risk starts with its own unused approval or a standing grant."""
    if isinstance(body, b.CompensationStarted) and seen.effects == "ask":
        asked_for = [each for each in seen.requests.values() if each.opened.name == f"undo/{body.number}/approval#1"]
        assert [each.answer is not None and not each.is_refused for each in asked_for] == [True], (
            "the compensation was not approved"
        )
    if not isinstance(body, b.StepStarted) or body.name in seen.steps:
        return
    for asked in seen.requests.values():
        if asked.opened.name.rpartition("/")[0] == body.name and not asked.void:
            assert not asked.is_refused, "the step was rejected"
            assert body.grant == asked.opened.request or asked.opened.kind != "approval", (
                "the step does not use its approval"
            )
    if body.grant in seen.grants:
        assert seen.grants[body.grant].tool == body.tool, "the grant is for another tool"
    elif not body.stubbed and (body.risk is not None or (seen.effects == "ask" and body.effect != "none")):
        granted = seen.requests.get(body.grant or "")
        assert granted is not None, "the step has no approval"
        assert granted.answer is not None, "the request is not decided"
        assert granted.answer.decision == "approved", "not approved"
        assert not granted.used, "the approval was used before"
        assert granted.opened.name.startswith(f"{body.name}/approval#"), "the approval is for another step"
        assert granted.opened.number == body.number, "the approval has another step number"
        assert body.args == (granted.answer.args or granted.opened.args), "the arguments were not approved"


def isolation(seen: Seen, event: Event, body: Any, _: int) -> None:
    """Check that a run refers only to its own requests, keys, children and numbers, and poison runs stop."""
    match body:
        case b.RequestAnswered() | b.RequestExpired():
            assert body.request in seen.requests, "the request belongs to another run"
        case b.StepStarted():
            assert not body.key or body.key.startswith(f"{seen.run}:step_{body.number}:"), f"unexpected key {body.key}"
            args = body.args.value()
            own = seen.owns(args["n"]) if "n" in args else args["notice"]["request"] == seen.run.split("-")[1]
            assert own, f"arguments of another run: {args}"
            assert seen.solo < SOLO_DEATHS + seen.quarantines, f"a step starts after {seen.solo} deaths alone"
        case b.RunClaimed():
            assert not body.alone or seen.deaths + body.died >= SUSPECT, "claimed alone without being a suspect"
            most = 2 * SOLO_DEATHS + seen.quarantines  # workers may die between the claim and the first step
            assert seen.solo < most, f"claimed after {seen.solo} deaths alone"
        case b.AgentCalled():
            tells = body.mode == "notify" and body.run.split("-")[1] in seen.requests
            assert tells or body.run.startswith(f"{seen.run}."), f"unexpected child {body.run}"
        case b.AgentReturned():
            assert body.run in seen.children, f"not a child: {body.run}"
        case b.SignalReceived():
            assert seen.owns(body.value.value()), "the signal belongs to another run"
        case b.WaitEnded() if body.event is not None:
            assert 0 < body.event < event.seq, "the wait was ended by an unknown event"
            assert issubclass(seen.kinds[body.event - 1], b.Command), "the wait was not ended by a command"
        case _:
            pass


def honest(seen: Seen, _event: Event, body: Any, _: int) -> None:
    """Check that a run fails only as expected, and does not complete while an awaited effect is unknown."""
    if isinstance(body, b.RunFailed):
        assert body.failure.type.startswith("limpet."), body.failure
    if isinstance(body, b.RunCompleted):
        for step in seen.steps.values():
            cancelled = isinstance(step.latest, b.StepUnknown) and step.latest.reason == "cancelled"
            failed = isinstance(step.latest, b.StepFailed) and not step.latest.is_final
            open_ = failed or (isinstance(step.latest, b.StepStarted | b.StepUnknown) and not cancelled)
            assert not open_ or step.first.effect == "none", f"the outcome of {step.first.name} is unknown"


def bounded(seen: Seen, event: Event, body: Any, _: int) -> None:
    """Check that attempts stay within the retry, and events and bytes within their limits."""
    assert len(event.body) <= LARGEST_BODY, f"{len(event.body)} bytes"
    assert event.seq <= 10 + 4 * seen.verbs + 3 * seen.claims + 2 * seen.commands, "too many events"
    if isinstance(body, b.StepStarted):
        tool = find_tool(body.tool)
        retry = RETRY if tool is None else tool.traits.retry
        escalations = sum(asked.opened.name.startswith(f"{body.name}/escalation#") for asked in seen.requests.values())
        most = escalations + (retry.attempts if retry is not None else 1)
        assert body.attempt <= most, f"attempt {body.attempt} of {most}"
        step = seen.steps.get(body.name)
        assert step is None or step.starts < most * (1 + seen.resumes) + seen.claims, f"{step} starts again"


def clock_free(seen: Seen, _event: Event, body: Any, now: int) -> None:
    """Check that expiries, timers and retries follow the store's clock, whatever the workers' clocks show."""
    match body:
        case b.RequestExpired():
            expires = seen.requests[body.request].expires
            assert expires is not None, "the request has no expiry"
            assert expires <= now, f"expired {expires - now} µs early"
        case b.WaitEnded(how="fired"):
            assert seen.timers[body.name] <= now, f"fired {seen.timers[body.name] - now} µs early"
        case b.StepStarted() if body.name in seen.steps:
            before = seen.steps[body.name].latest
            retry_at = before.retry_at if isinstance(before, b.StepFailed) else None
            assert retry_at is None or retry_at <= now, "the retry starts early"
        case _:
            pass


def replays(_seen: Seen, _event: Event, body: Any, _: int) -> None:
    """Check that unchanged code never diverges from its log."""
    assert not isinstance(body, b.RiskFlagged) or body.flag != "diverged", body.detail


AT_EVENTS: dict[str, Callable[[Seen, Event, Any, int], None]] = {
    "I2 prefix": prefix,
    "I5 terminal": terminal,
    "I3 fence": fence,
    "I9 isolation": isolation,
    "I4 effects": effects,
    "I6 decision": decided,
    "I6 approval": allowed,
    "I7 fold": replays,
    "I11 honest": honest,
    "I13 bounded": bounded,
    "I14 clock-free": clock_free,
}


class Watcher:
    """Reads all logs as they grow, and keeps the first violation."""

    def __init__(self) -> None:
        self._place = ""
        self.broken: AssertionError | None = None
        self.runs: dict[str, Seen] = {}
        self.tape: list[tuple[Event, Any, int]] = []
        """Every event with its body and the store's time."""
        self._lines: dict[str, list[tuple[Event, Any]]] = {}
        """The log of each run; that of a fork starts with the shared events."""
        self.pruned: set[str] = set()
        self.returned: dict[tuple[str, int], list[Any]] = {}
        """Results of tools, by tool and number."""
        self._results: dict[tuple[str, str, int, int], bytes] = {}
        self._acknowledged: set[bytes] = set()
        self._unnotified: set[str] = set()
        # Commands that were acknowledged to people.
        self.answered: set[tuple[str, str]] = set()
        self.signals = Counter[str]()
        self.cancelled: set[str] = set()

    @contextmanager
    def naming(self, name: str, what: object = "") -> Iterator[None]:
        """Record an assertion error inside as a violation of this invariant."""
        try:
            yield
        except AssertionError as error:
            self.broken = self.broken or AssertionError(f"{name}: {what}: {error}")

    def check(self) -> None:
        """Raise the recorded violation."""
        if self.broken is not None:
            raise self.broken

    def look(self, backend: MemoryBackend) -> None:
        """Take all events since the last call, which were all written at this time."""
        while self.broken is None and (page := backend.feed(self._place, 1000)).events:
            self._place = page.next
            for event in page.events:
                self.take(event, event.decode(), backend.now())
            self.whole()

    def whole(self) -> None:
        """Check, after an append, that every new request has a notification."""
        with self.naming("I6 approval"):
            assert not self._unnotified, f"missing notifications: {self._unnotified}"

    def take(self, event: Event, body: Any, now: int) -> None:
        """Check and record the next event."""
        if self.broken is not None:
            return
        self.tape.append((event, body, now))
        name = "I15 fork"
        try:
            seen = self._seen(event, body)
            for name, check in AT_EVENTS.items():  # noqa: B007 - names the failed check
                check(seen, event, body, now)
            name = "I9 isolation"
            self._check_company(seen, body)
            seen.learn(event, body)
            self._lines[event.run].append((event, body))
            self._track_notification(event, body)
        except AssertionError as error:
            self.broken = AssertionError(f"{name}: {event.run} {event.seq} {event.kind}: {error}")

    def _check_company(self, seen: Seen, body: Any) -> None:
        """Check that a suspect that was claimed alone is the only suspect of its worker until it makes progress."""
        if not isinstance(body, b.RunClaimed) or seen.deaths + body.died < SUSPECT:
            return
        others = [each for each in self.runs.values() if each.holder == body.worker and each.deaths >= SUSPECT]
        assert not any(each.alone for each in others), "the suspect joins a run that was claimed alone"
        assert not (body.alone and others), f"the suspect is not alone: {[each.run for each in others]}"

    def _seen(self, event: Event, body: Any) -> Seen:
        """Return the collected state of the event's run; a fork starts with the shared events."""
        assert event.run not in self.pruned, "the run was pruned"
        if event.run not in self.runs:
            seen, line = Seen(event.run), list[tuple[Event, Any]]()
            if isinstance(body, b.RunForked):
                assert len(self._lines[body.run]) >= body.at, "the fork shares missing events"
                line = self._lines[body.run][: body.at]
                for shared in line:
                    seen.learn(*shared)
                seen.branch_off(body)
            self.runs[event.run], self._lines[event.run] = seen, line
        return self.runs[event.run]

    def prune(self, runs: Sequence[str]) -> None:
        """Check pruned runs: they had ended, and no remaining run needs them."""
        self.pruned |= set(runs)
        with self.naming("I16 pruned", runs):
            for run in runs:
                assert self.runs[run].ended is not None, f"{run} had not ended"
            for run, seen in self.runs.items():
                for other in seen.needs & self.runs.keys():
                    assert (run in self.pruned) is (other in self.pruned), f"{run} without {other}"

    def _track_notification(self, event: Event, body: Any) -> None:
        """Track that a notification is called and created for each request and each escalation."""
        escalates = isinstance(body, b.RequestExpired) and body.outcome == "escalated"
        if self.runs[event.run].effects != "stub" and (isinstance(body, b.RequestOpened) or escalates):
            self._unnotified.add(f"notify-{body.request}-{CHANNEL} is called")
        if isinstance(body, b.AgentCalled) and body.mode == "notify":
            self._unnotified.discard(f"{body.run.rpartition('-')[0]} is called")
            self._unnotified.add(f"{body.run} is created")
        if isinstance(body, b.RunCreated):
            self._unnotified.discard(f"{event.run} is created")

    def committed(self, outcomes: Sequence[Any], before: str, after: str) -> None:
        """Check a commit: record acknowledged events, and check that refused operations changed nothing."""
        for outcome in outcomes:
            if isinstance(outcome, Appended):
                self._acknowledged.update(head.hash for head in outcome.heads if head is not None)
            if isinstance(outcome, Transacted):
                self._acknowledged.update(sealed.event.hash for sealed in outcome.events)
        with self.naming("I11 honest", outcomes):
            refused = all(isinstance(outcome, LimpetError | Missed | Taken | Raised) for outcome in outcomes)
            assert before == after or not refused, "a refused operation changed the store"

    def effect(self, key: str) -> None:
        """Check that a tool may act now."""
        seen = self.runs[key.partition(":")[0]]
        with self.naming("I4 effects", key):
            assert key in seen.keys, "the effect comes before its start is in the log"
        with self.naming("I5 terminal", key):
            assert seen.ended is None, "the effect comes after the end of its run"

    def result(self, run: str, tool: str, n: int, value: Any) -> None:
        """Check the result of a step that the code has received."""
        seen, plain, latest, stubbed = self.runs[run], canonical(value), None, False
        for step in seen.steps.values():
            if step.first.tool == tool and step.first.args.value()["n"] == n:
                latest, stubbed = step.latest, step.first.stubbed
        failed = isinstance(value, str) and value.startswith("error: ")
        with self.naming("I7 fold", (run, tool, n)):
            before = self._results.setdefault((run, tool, n, seen.resumes), plain)
            assert before == plain, f"the code got {value} now, and {before!r} before"
        with self.naming("I11 honest", (run, tool, n)):
            resolved = isinstance(latest, b.StepResolved) and latest.outcome == "applied"
            assert (resolved or isinstance(latest, b.StepCompleted)) is not failed, (
                f"the code got {value} after {latest}"
            )
        if isinstance(latest, b.StepCompleted) and latest.output is not None:
            with self.naming("I12 inert", (run, tool, n)):
                assert canonical(latest.output.value()) == plain, "the log has another output"
                returned = self.returned.get((tool, n), [])
                assert stubbed or plain in map(canonical, returned), f"no tool returned {value}"


# Checked at the end


async def check_end(world: "World") -> None:
    """Check the invariants after faults have stopped and every run has ended."""
    watcher, store = world.watcher, world.people.store
    rows = (await store.runs(limit=1000)).rows
    acknowledged(watcher, {row.id: row.status for row in rows}, world.started)
    acted(world)
    for row in rows:
        events = [event async for event in store.log(row.id)]
        with watcher.naming("I1 durable", row.id):
            assert [event.hash for event in events] == watcher.runs[row.id].hashes, "the log has changed"
        with watcher.naming("I7 fold", row.id):
            state, cut = fold(events), world.chance.randrange(1, len(events) + 1)
            assert state == await load(store, row.id), "the loaded state differs"
            assert state == fold(events[cut:], fold(events[:cut])), f"folding from event {cut} on gives another state"
            assert state.status == row.status, "the row has another status"
            assert await store.check_rows(row.id) == []
        with watcher.naming("I10 tamper", row.id):
            await tampering(world, row.id, row.number)
        with watcher.naming("I11 honest", row.id):
            await reported(world, row.id)
        if row.agent == "sim_killer":
            with watcher.naming("I9 isolation", row.id):
                seen = watcher.runs[row.id]
                on_parole = row.status == "running" and seen.quarantines > 0 and seen.alone
                is_isolated = on_parole or row.waits == ("operator:quarantined",)
                assert is_isolated, f"{row.status} {row.waits} after {row.deaths} deaths"
    watcher.check()


def acknowledged(watcher: Watcher, statuses: dict[str, str], started: Sequence[str]) -> None:
    """Check that every acknowledged command and event is in the log."""
    with watcher.naming("I1 durable"):
        everything = {hash_ for seen in watcher.runs.values() for hash_ in seen.hashes}
        assert watcher._acknowledged <= everything, "an acknowledged event is missing"
        assert set(statuses) == watcher.runs.keys() - watcher.pruned, "a run was lost"
        assert set(statuses) >= set(started) - watcher.pruned, "a run was lost"
        for run, sent in watcher.signals.items():
            expected = [(int(run[1:]) + 1) * 1000 + n for n in range(1, sent + 1)]
            assert watcher.runs[run].signals == expected, f"a signal to {run} was lost or doubled"
        for run in watcher.cancelled - watcher.pruned:
            assert statuses[run] == "cancelled", f"{run} is {statuses[run]}"
    with watcher.naming("I6 approval"):
        for run, request in watcher.answered:
            assert watcher.runs[run].requests[request].answer is not None, f"an answer to {request} was lost"


def acted(world: "World") -> None:
    """Check that the external world matches the logs."""
    with world.watcher.naming("I4 effects"):
        for key, count in world.outside.sent.items():
            assert count == 1, f"{key} was sent {count} times"
        completed = {
            step.first.key: 1
            for seen in world.watcher.runs.values()
            for step in seen.steps.values()
            if step.first.effect == "transaction"
            and isinstance(step.latest, b.StepCompleted)
            and not step.first.stubbed
        }
        assert world.backend.own_rows == completed, "a transaction's writes do not match its events"
        for key in world.outside.applied:
            seen = world.watcher.runs[key.partition(":")[0]]
            undoes = isinstance(seen.ended, b.RunCancelled) and ":sim_pay:" in key
            assert not undoes or world.outside.undone[key], f"{key} was not compensated"


async def tampering(world: "World", run: str, number: int) -> None:
    """Check that the log verifies, and that a changed byte is found."""
    await verify_run(world.people.store, run)
    log = world.backend.log_of(number)
    place = world.chance.randrange(len(log))
    event, log[place] = log[place], _flipped(log[place], world.chance)
    try:
        await verify_run(world.people.store, run)
    except limpet.Tampered:
        return
    finally:
        log[place] = event
    raise AssertionError(f"a changed byte of event {place + 1} was not found")


def _flipped(event: Event, chance: random.Random) -> Event:
    changed = bytearray(event.body)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return replace(event, body=bytes(changed))


async def reported(world: "World", run: str) -> None:
    """Check that the result of a run is reported as it is in the log."""
    ended, handle = world.watcher.runs[run].ended, await world.people.get(run)
    try:
        result: tuple[type, bytes] = b.RunCompleted, canonical(await handle.result(timeout="1s"))
    except limpet.RunFailed as failed:
        result = b.RunFailed, canonical(failed.message)
    except limpet.RunCancelled as cancelled:
        result = b.RunCancelled, canonical(cancelled.reason)
    except limpet.NotDone:
        result = type(None), b""
    match ended:
        case b.RunCompleted():
            happened = ended.output.value()
        case b.RunFailed():
            happened = ended.failure.message
        case _:
            happened = ended and ended.reason
    assert result == (type(ended), canonical(happened) if ended else b""), f"reported as {result}"
