"""What must hold, whatever went wrong: the invariants of the fault model, by name.

Most are checked at every event, before it is taken in; some at every effect, some at every result that code is given,
and the rest when all is over.
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

SETTLING = (b.StepCompleted, b.StepFailed, b.StepResolved, b.WaitEnded, b.TurnStarted)
STEP = (b.StepStarted, b.StepCompleted, b.StepFailed, b.StepUnknown, b.StepResolved)
WAITS = (b.RequestOpened, b.TimerSet, b.WaitOpened, b.AgentCalled)
VERBS = (*WAITS, b.StepStarted, b.StatePatched, b.DecisionMade, b.ValueRecorded, b.TurnStarted)
LARGEST_BODY = 4000
CHANNEL = "pager"
PEOPLE = {"desk": ["ann", "dan"], "boss": ["bob"]}


@dataclass
class Step:
    """What the log says of a step."""

    first: b.StepStarted
    latest: Any
    starts: int = 0


@dataclass
class Asked:
    """What the log says of a request."""

    opened: b.RequestOpened
    to: Sequence[str]
    expires: int | None
    answer: b.RequestAnswered | None = None
    closed: bool = False
    """Decided, expired or withdrawn."""
    used: bool = False
    void: bool = False
    """The run failed with what came of it, and was resumed."""

    @property
    def is_refused(self) -> bool:
        return self.closed and (self.answer is None or self.answer.decision == "rejected")


@dataclass
class Seen:
    """What the log of one run has said so far."""

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
    """Standing ones."""
    timers: dict[str, int] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    children: set[str] = field(default_factory=set)
    signals: list[int] = field(default_factory=list)
    effects: str = "live"
    """Of a fork, and of what it calls: whether a person is asked first, or nothing happens at all."""
    needs: set[str] = field(default_factory=set)
    """What it branched off, and who called it."""

    def owns(self, n: int) -> bool:
        """Whether a number is one of this run's: its own or its children's."""
        return f"r{n // 1000 - 1}" == self.run.partition(".")[0]

    def branch_off(self, body: b.RunForked) -> None:
        """It goes on from here by itself: what was under way, asked, allowed and waited for is the other one's."""
        self.holder, self.ended, self.handed = None, None, False
        self.deaths = self.solo = self.quarantines = 0
        self.requests, self.grants, self.waiting, self.children = {}, {}, set(), set()
        self.steps = {name: step for name, step in self.steps.items() if is_settled(step.latest)}
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
                void = getattr(self.ended, "name", None)  # who said no is asked anew
                for asked in self.requests.values():
                    asked.void = asked.void or asked.opened.name == void
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
    """Whether nothing more can come of a step."""
    match latest:
        case b.StepFailed():
            return latest.is_final
        case b.StepResolved():
            return latest.outcome == "applied"
        case _:
            return isinstance(latest, b.StepCompleted)


# At every event: what was seen, the event, its body, the store's clock


def prefix(seen: Seen, event: Event, body: Any, _: int) -> None:
    """1..n; time does not run backwards; what ends has begun, and ends once."""
    assert event.seq == len(seen.kinds) + 1, "a gap"
    assert event.time >= seen.time, "time runs backwards"
    if isinstance(body, STEP) and not isinstance(body, b.StepStarted):
        assert body.name in seen.steps, "an end without a start"
        assert not isinstance(seen.steps[body.name].latest, b.StepCompleted), "completed before"
    if isinstance(body, b.WaitEnded):
        assert body.name in seen.waiting, "a wait ended twice"


def fence(seen: Seen, event: Event, body: Any, _: int) -> None:
    """A claim raises it; only the worker that has the run writes what an agent does."""
    claims = isinstance(body, b.RunClaimed)
    assert event.fence == seen.fence + claims, f"fence {event.fence} after {seen.fence}"
    if VOCABULARY.kinds[event.kind].writer is WrittenBy.OWNER:
        assert seen.holder == event.actor, f"by {event.actor}, while {seen.holder} has it"


def effects(seen: Seen, _event: Event, body: Any, _: int) -> None:
    """An attempt starts when it is known that the one before was not applied, or repeating is safe; one key."""
    if not isinstance(body, b.StepStarted) or body.effect == "none":
        return
    assert seen.keys.get(body.key, body.name) == body.name, "the key of another step"
    if body.name not in seen.steps:
        return
    first, before = seen.steps[body.name].first, seen.steps[body.name].latest
    assert (first.key, first.number, first.args) == (body.key, body.number, body.args), "another action on a retry"
    assert not isinstance(before, b.StepCompleted), "done already"
    if body.effect == "once":
        assert isinstance(before, b.StepFailed | b.StepResolved), f"repeated blindly after {type(before).__name__}"
        assert not isinstance(before, b.StepResolved) or before.outcome == "not_applied", "done already"


def terminal(seen: Seen, _event: Event, body: Any, _: int) -> None:
    """Nothing happens after the end, unless a failed run is resumed; after a handoff nothing more is begun."""
    undoes = isinstance(body, b.RequestOpened) and body.kind == "compensation"
    tells = isinstance(body, b.AgentCalled) and body.mode == "notify"
    assert not seen.handed or not isinstance(body, VERBS) or undoes or tells, "after it was handed over"
    if isinstance(seen.ended, b.RunFailed):
        assert isinstance(body, b.AgentReturned | b.BudgetExtended | b.ResumeRequested), "after it failed"
    else:
        assert seen.ended is None, f"after {type(seen.ended).__name__}"


def decided(seen: Seen, _event: Event, body: Any, now: int) -> None:
    """One decision for each request, of what was shown, in its time, by whom it is for."""
    if isinstance(body, b.RequestOpened) and body.kind == "approval":
        for asked in seen.requests.values():
            same = (asked.opened.tool, asked.opened.args) == (body.tool, body.args)
            assert (asked.opened.digest == body.digest) is same, "a digest that does not say what is shown"
    if isinstance(body, b.RequestAnswered):
        asked = seen.requests[body.request]
        assert not asked.closed, "decided twice"
        assert any(body.by in PEOPLE.get(each, [body.by]) for each in asked.to), f"by {body.by}, who was not asked"
        assert body.digest == asked.opened.digest, "of something else"
        assert asked.expires is None or now < asked.expires, "too late"
    if isinstance(body, b.GrantGiven):
        asked = seen.requests[body.request or ""]
        assert (asked.answer and asked.answer.decision, asked.opened.tool) == ("approved", body.tool), "not approved"
        assert all(each.request != body.request for each in seen.grants.values()), "given twice"


def allowed(seen: Seen, _event: Event, body: Any, _: int) -> None:
    """What was refused is not done; a risk starts with its own approval, and uses it up, or while a standing one is."""
    if isinstance(body, b.CompensationStarted) and seen.effects == "ask":
        asked_for = [each for each in seen.requests.values() if each.opened.name == f"undo/{body.number}/approval#1"]
        assert [each.answer is not None and not each.is_refused for each in asked_for] == [True], "undone unasked"
    if not isinstance(body, b.StepStarted) or body.name in seen.steps:
        return
    for asked in seen.requests.values():
        if asked.opened.name.rpartition("/")[0] == body.name and not asked.void:
            assert not asked.is_refused, "what was refused is done"
            assert body.grant == asked.opened.request or asked.opened.kind != "approval", "not as approved"
    if body.grant in seen.grants:
        assert seen.grants[body.grant].tool == body.tool, "a permission for something else"
    elif not body.stubbed and (body.risk is not None or (seen.effects == "ask" and body.effect != "none")):
        granted = seen.requests.get(body.grant or "")
        assert granted is not None, "a risk that nobody allows"
        assert granted.answer is not None, "not decided"
        assert granted.answer.decision == "approved", "not approved"
        assert not granted.used, "an approval was used twice"
        assert granted.opened.name.startswith(f"{body.name}/approval#"), "for another step"
        assert granted.opened.number == body.number, "under another number"
        assert body.args == (granted.answer.args or granted.opened.args), "other arguments than approved"


def isolation(seen: Seen, event: Event, body: Any, _: int) -> None:
    """A run speaks of its own requests, keys, children and numbers only; and one that kills its workers is stopped."""
    match body:
        case b.RequestAnswered() | b.RequestExpired():
            assert body.request in seen.requests, "a request of another run"
        case b.StepStarted():
            assert not body.key or body.key.startswith(f"{seen.run}:step_{body.number}:"), f"the key {body.key}"
            args = body.args.value()
            own = seen.owns(args["n"]) if "n" in args else args["request"] == seen.run.split("-")[1]
            assert own, f"arguments of another run: {args}"
            assert seen.solo < SOLO_DEATHS + seen.quarantines, f"driven after {seen.solo} deaths alone"
        case b.RunClaimed():
            assert not body.alone or seen.deaths + body.died >= SUSPECT, "alone, though it is no suspect"
            most = 2 * SOLO_DEATHS + seen.quarantines  # some may die between the claim and what it leads to
            assert seen.solo < most, f"claimed after {seen.solo} deaths alone"
        case b.AgentCalled():
            tells = body.mode == "notify" and body.run.split("-")[1] in seen.requests
            assert tells or body.run.startswith(f"{seen.run}."), f"the child {body.run}"
        case b.AgentReturned():
            assert body.run in seen.children, f"not a child: {body.run}"
        case b.SignalReceived():
            assert seen.owns(body.value.value()), "a signal of another run"
        case b.WaitEnded() if body.event is not None:
            assert 0 < body.event < event.seq, "ended by no event of this run"
            assert issubclass(seen.kinds[body.event - 1], b.Command), "ended by what ends no wait"
        case _:
            pass


def honest(seen: Seen, _event: Event, body: Any, _: int) -> None:
    """A run does not complete while nobody knows what came of an effect that code waits for; it fails as expected."""
    if isinstance(body, b.RunFailed):
        assert body.failure.type.startswith("limpet."), body.failure
    if isinstance(body, b.RunCompleted):
        for step in seen.steps.values():
            cancelled = isinstance(step.latest, b.StepUnknown) and step.latest.reason == "cancelled"
            failed = isinstance(step.latest, b.StepFailed) and not step.latest.is_final
            open_ = failed or (isinstance(step.latest, b.StepStarted | b.StepUnknown) and not cancelled)
            assert not open_ or step.first.effect == "none", f"nobody knows what came of {step.first.name}"


def bounded(seen: Seen, event: Event, body: Any, _: int) -> None:
    """Attempts as the tool allows, starts as deaths and resumes do; events and bytes in proportion."""
    assert len(event.body) <= LARGEST_BODY, f"{len(event.body)} bytes"
    assert event.seq <= 10 + 4 * seen.verbs + 3 * seen.claims + 2 * seen.commands, "too many events"
    if isinstance(body, b.StepStarted):
        tool = find_tool(body.tool)
        retry = RETRY if tool is None else tool.traits.retry
        said = sum(asked.opened.name.startswith(f"{body.name}/escalation#") for asked in seen.requests.values())
        most = said + (retry.attempts if retry is not None else 1)
        assert body.attempt <= most, f"attempt {body.attempt} of {most}"
        step = seen.steps.get(body.name)
        assert step is None or step.starts < most * (1 + seen.resumes) + seen.claims, f"{step} starts again"


def clock_free(seen: Seen, _event: Event, body: Any, now: int) -> None:
    """What is due is due by the store's clock, whatever a worker's own clock says."""
    match body:
        case b.RequestExpired():
            expires = seen.requests[body.request].expires
            assert expires is not None, "it never expires"
            assert expires <= now, f"expired {expires - now} µs early"
        case b.WaitEnded(how="fired"):
            assert seen.timers[body.name] <= now, f"fired {seen.timers[body.name] - now} µs early"
        case b.StepStarted() if body.name in seen.steps:
            before = seen.steps[body.name].latest
            retry_at = before.retry_at if isinstance(before, b.StepFailed) else None
            assert retry_at is None or retry_at <= now, "tried again early"
        case _:
            pass


def replays(_seen: Seen, _event: Event, body: Any, _: int) -> None:
    """Code that is the same finds its own log."""
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
    """Reads all logs as they grow; keeps the first thing that does not hold."""

    def __init__(self) -> None:
        self._place = ""
        self.broken: AssertionError | None = None
        self.runs: dict[str, Seen] = {}
        self.tape: list[tuple[Event, Any, int]] = []
        """Everything that happened, with the store's clock."""
        self._lines: dict[str, list[tuple[Event, Any]]] = {}
        """The log of each run; that of a fork begins as the other one's does."""
        self.pruned: set[str] = set()
        self.returned: dict[tuple[str, int], list[Any]] = {}
        """What tools gave, by tool and number."""
        self._told: dict[tuple[str, str, int, int], bytes] = {}
        self._acknowledged: set[bytes] = set()
        self._untold: set[str] = set()
        # What people were told has been done.
        self.answered: set[tuple[str, str]] = set()
        self.signals = Counter[str]()
        self.cancelled: set[str] = set()

    @contextmanager
    def naming(self, name: str, what: object = "") -> Iterator[None]:
        """The invariant that an assertion inside is about."""
        try:
            yield
        except AssertionError as error:
            self.broken = self.broken or AssertionError(f"{name}: {what}: {error}")

    def check(self) -> None:
        """Raise what did not hold."""
        if self.broken is not None:
            raise self.broken

    def look(self, backend: MemoryBackend) -> None:
        """Take in every event since the last look, which were all written at this moment."""
        while self.broken is None and (page := backend.feed(self._place, 1000)).events:
            self._place = page.next
            for event in page.events:
                self.take(event, event.decode(), backend.now())
            self.whole()

    def whole(self) -> None:
        """An append is over: who is asked is told by it."""
        with self.naming("I6 approval"):
            assert not self._untold, f"nobody is told: {self._untold}"

    def take(self, event: Event, body: Any, now: int) -> None:
        """The next event."""
        if self.broken is not None:
            return
        self.tape.append((event, body, now))
        name = "I15 fork"
        try:
            seen = self._seen(event, body)
            for name, check in AT_EVENTS.items():  # noqa: B007 - which of them it was
                check(seen, event, body, now)
            name = "I9 isolation"
            self._company(seen, body)
            seen.learn(event, body)
            self._lines[event.run].append((event, body))
            self._telling(event, body)
        except AssertionError as error:
            self.broken = AssertionError(f"{name}: {event.run} {event.seq} {event.kind}: {error}")

    def _company(self, seen: Seen, body: Any) -> None:
        """A suspect that is said to be alone is the only one in its worker, until it settles something."""
        if not isinstance(body, b.RunClaimed) or seen.deaths + body.died < SUSPECT:
            return
        others = [each for each in self.runs.values() if each.holder == body.worker and each.deaths >= SUSPECT]
        assert not any(each.alone for each in others), "it joins a run that is tried alone"
        assert not (body.alone and others), f"it is not alone: {[each.run for each in others]}"

    def _seen(self, event: Event, body: Any) -> Seen:
        """What its log has said so far: of a fork, what it shares."""
        assert event.run not in self.pruned, "it goes on after it was pruned"
        if event.run not in self.runs:
            seen, line = Seen(event.run), list[tuple[Event, Any]]()
            if isinstance(body, b.RunForked):
                assert len(self._lines[body.run]) >= body.at, "it shares what is not there"
                line = self._lines[body.run][: body.at]
                for shared in line:
                    seen.learn(*shared)
                seen.branch_off(body)
            self.runs[event.run], self._lines[event.run] = seen, line
        return self.runs[event.run]

    def prune(self, runs: Sequence[str]) -> None:
        """Somebody was told that these are deleted: they had ended, and nobody is left who needs one of them."""
        self.pruned |= set(runs)
        with self.naming("I16 pruned", runs):
            for run in runs:
                assert self.runs[run].ended is not None, f"{run} had not ended"
            for run, seen in self.runs.items():
                for other in seen.needs & self.runs.keys():
                    assert (run in self.pruned) is (other in self.pruned), f"{run} without {other}"

    def _telling(self, event: Event, body: Any) -> None:
        """A run that tells it is called and created with each request, and each time it goes on."""
        escalates = isinstance(body, b.RequestExpired) and body.outcome == "escalated"
        if self.runs[event.run].effects != "stub" and (isinstance(body, b.RequestOpened) or escalates):
            self._untold.add(f"notify-{body.request}-{CHANNEL} is called")
        if isinstance(body, b.AgentCalled) and body.mode == "notify":
            self._untold.discard(f"{body.run.rpartition('-')[0]} is called")
            self._untold.add(f"{body.run} is created")
        if isinstance(body, b.RunCreated):
            self._untold.discard(f"{event.run} is created")

    def committed(self, outcomes: Sequence[Any], before: str, after: str) -> None:
        """A commit returned: what it says was written is there, and nothing of what it refused."""
        for outcome in outcomes:
            if isinstance(outcome, Appended):
                self._acknowledged.update(head.hash for head in outcome.heads if head is not None)
            if isinstance(outcome, Transacted):
                self._acknowledged.update(sealed.event.hash for sealed in outcome.events)
        with self.naming("I11 honest", outcomes):
            refused = all(isinstance(outcome, LimpetError | Missed | Taken | Raised) for outcome in outcomes)
            assert before == after or not refused, "what was refused changed something"

    def effect(self, key: str) -> None:
        """A tool is about to act."""
        seen = self.runs[key.partition(":")[0]]
        with self.naming("I4 effects", key):
            assert key in seen.keys, "it acts before its start is in the log"
        with self.naming("I5 terminal", key):
            assert seen.ended is None, "it acts after the end of its run"

    def told(self, run: str, tool: str, n: int, value: Any) -> None:
        """Code was told how a step ended."""
        seen, plain, latest, made_up = self.runs[run], canonical(value), None, False
        for step in seen.steps.values():
            if step.first.tool == tool and step.first.args.value()["n"] == n:
                latest, made_up = step.latest, step.first.stubbed
        failed = isinstance(value, str) and value.startswith("error: ")
        with self.naming("I7 fold", (run, tool, n)):
            before = self._told.setdefault((run, tool, n, seen.resumes), plain)
            assert before == plain, f"told {value} now, and {before!r} before"
        with self.naming("I11 honest", (run, tool, n)):
            resolved = isinstance(latest, b.StepResolved) and latest.outcome == "applied"
            assert (resolved or isinstance(latest, b.StepCompleted)) is not failed, f"told {value} after {latest}"
        if isinstance(latest, b.StepCompleted) and latest.output is not None:
            with self.naming("I12 inert", (run, tool, n)):
                assert canonical(latest.output.value()) == plain, "the log has something else"
                returned = self.returned.get((tool, n), [])
                assert made_up or plain in map(canonical, returned), f"no tool returned {value}"


# When all is over


async def check_end(world: "World") -> None:
    """What must hold when faults have stopped and every run has come to its end."""
    watcher, store = world.watcher, world.people.store
    rows = (await store.runs(limit=1000)).rows
    acknowledged(watcher, {row.id: row.status for row in rows}, world.started)
    acted(world)
    for row in rows:
        events = [event async for event in store.log(row.id)]
        with watcher.naming("I1 durable", row.id):
            assert [event.hash for event in events] == watcher.runs[row.id].hashes, "its log has changed"
        with watcher.naming("I7 fold", row.id):
            state, cut = fold(events), world.chance.randrange(1, len(events) + 1)
            assert state == await load(store, row.id), "not what is loaded"
            assert state == fold(events[cut:], fold(events[:cut])), f"another state from event {cut} on"
            assert state.status == row.status, "not what its row says"
            assert await store.check_rows(row.id) == []
        with watcher.naming("I10 tamper", row.id):
            await tampering(world, row.id, row.number)
        with watcher.naming("I11 honest", row.id):
            await reported(world, row.id)
        if row.agent == "sim_killer":
            with watcher.naming("I9 isolation", row.id):
                assert row.waits == ("operator:quarantined",), f"{row.status} {row.waits} after {row.deaths} deaths"
    watcher.check()


def acknowledged(watcher: Watcher, statuses: dict[str, str], started: Sequence[str]) -> None:
    """What somebody was told has been done is in the log."""
    with watcher.naming("I1 durable"):
        everything = {hash_ for seen in watcher.runs.values() for hash_ in seen.hashes}
        assert watcher._acknowledged <= everything, "an acknowledged event is gone"
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
    """What the world saw is what the logs say."""
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
        assert world.backend.own_rows == completed, "a transaction's writes are not those of its events"
        for key in world.outside.applied:
            seen = world.watcher.runs[key.partition(":")[0]]
            undoes = isinstance(seen.ended, b.RunCancelled) and ":sim_pay:" in key
            assert not undoes or world.outside.undone[key], f"{key} was not undone"


async def tampering(world: "World", run: str, number: int) -> None:
    """An intact log is intact; one with a changed byte is not."""
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
    raise AssertionError(f"a changed byte of event {place + 1} was not seen")


def _flipped(event: Event, chance: random.Random) -> Event:
    changed = bytearray(event.body)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return replace(event, body=bytes(changed))


async def reported(world: "World", run: str) -> None:
    """How a run ended is told as it was."""
    ended, handle = world.watcher.runs[run].ended, await world.people.get(run)
    try:
        told: tuple[type, bytes] = b.RunCompleted, canonical(await handle.result(timeout="1s"))
    except limpet.RunFailed as failed:
        told = b.RunFailed, canonical(failed.message)
    except limpet.RunCancelled as cancelled:
        told = b.RunCancelled, canonical(cancelled.reason)
    except limpet.NotDone:
        told = type(None), b""
    match ended:
        case b.RunCompleted():
            happened = ended.output.value()
        case b.RunFailed():
            happened = ended.failure.message
        case _:
            happened = ended and ended.reason
    assert told == (type(ended), canonical(happened) if ended else b""), f"reported as {told}"
