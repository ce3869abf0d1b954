"""Random logs of runs that an engine could have written, in which calls that were started also end.

The generator keeps only the open calls that it needs to choose a plausible next event. It does not use the fold.
"""

from collections.abc import Callable
from typing import Any, Literal

from hypothesis import strategies as st

from limpet.events import START, AnyBody, Event, Limits, Payload, Spent, Wait, inline, seal
from limpet.events import bodies as b
from limpet.state import AgentState, diff
from tests.laws.values import agent_states
from tests.unit.event_logs import (
    BOOM,
    CRASH,
    answered,
    asked,
    called,
    completed,
    failed,
    resolved,
    returned,
    started,
    unknown,
)

__all__ = ["run_logs"]

MakeBody = Callable[[], AnyBody]
Where = Literal["pending", "running", "waiting", "failed", "over"]

_spents = st.none() | st.builds(Spent, tokens=st.integers(0, 9), cost=st.sampled_from([0.0, 0.1, 0.25]))
_values = st.sampled_from([inline(None), inline({"a": [1, -0.0]}), inline("é"), Payload(blob="b-1", bytes=9)])


class Story:
    """A run under construction: its status, and its open calls."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.run, self.where, self.seq = "run-1", "pending", 0
        self.step = self.settled = self.count = self.fence = 0
        self.running: dict[int, int] = {}
        self.retrying: dict[int, int] = {}
        self.unknown: dict[int, int] = {}
        self.requests: list[str] = []
        self.grants: list[str | None] = [None]
        self.waits: list[str] = []
        self.children: list[str] = []
        self.signals: list[int] = []
        self.turn = 0
        self.working = AgentState()

    # Possible events by status

    def next(self) -> AnyBody:
        """Return a plausible next event."""
        return self.one_of(self.choices())

    def choices(self) -> list[MakeBody]:
        match self.where:
            case "running":
                begun = [*self.ends_of_steps(), *self.ends_of_waits(), *self.ends_from_outside()]
                return [self.start, self.start, self.work, self.work, *begun, *begun, self.command, self.leave]
            case "pending":
                return [self.claim] * 8 + [self.command, self.fork]
            case "waiting":
                return [self.claim] * 3 + self.ends_from_outside() * 3 + [self.command, self.resume, self.fork]
            case "failed":
                return [self.resume, self.resume, self.fork, self.score]
            case _:
                return [self.fork, self.score]

    def work(self) -> AnyBody:
        """Return an event of the agent's code other than a step."""
        knowing = [self.patch, self.patch, self.decide, self.next_turn, self.value, self.version, self.artifact]
        asking = [self.ask, self.ask, self.call, self.timer, self.receive]
        return self.one_of([*knowing, *asking, self.flag, self.read, self.invalidate, self.say, self.undo])

    def command(self) -> AnyBody:
        """Return a command, which can arrive in any status."""
        return self.one_of(
            [
                self.signal,
                self.cancel,
                self.extend,
                self.grant,
                self.revoke,
                self.pause,
                self.pause,
                self.resume,
                self.score,
            ]
        )

    def leave(self) -> AnyBody:
        """Return an event that ends the running status, or a worker's death."""
        ends = [self.complete, self.fail, self.stop]
        return self.one_of([self.die, self.die, self.release, self.park, self.park, self.park, *ends])

    def ends_of_steps(self) -> list[MakeBody]:
        """Return the possible events of open steps."""
        found: list[MakeBody] = []
        if self.running:
            found += [self.complete_step, self.fail_step, self.retry_step, self.lose_step]
            found += [self.progress, self.reserve, self.reserve, self.restart]
        if self.retrying:
            found += [self.again, self.again]
        if self.unknown:
            found += [self.resolve, self.resolve, self.resolve]
        return found

    def ends_of_waits(self) -> list[MakeBody]:
        """Return the possible events of open waits."""
        found: list[MakeBody] = [self.end_wait, self.end_wait] if self.waits else []
        return [*found, self.expire, self.escalate, self.withdraw] if self.requests else found

    def ends_from_outside(self) -> list[MakeBody]:
        """Return the possible commands about open calls."""
        return [self.answer, self.answer] * bool(self.requests) + [self.return_child] * bool(self.children)

    # The run

    def create(self) -> AnyBody:
        working = self.patch_to(self.draw(agent_states())) if self.flip() else None
        return b.RunCreated(agent="a", agent_version="1", input=self.draw(_values), initial=working, steps=self.some())

    def claim(self) -> AnyBody:
        self.where, self.fence = "running", self.fence + 1
        return b.RunClaimed(worker=f"w-{self.fence}")

    def die(self) -> AnyBody:
        self.fence += 1
        return b.RunClaimed(worker=f"w-{self.fence}", died=True)

    def release(self) -> AnyBody:
        self.where = "pending"
        return b.RunReleased(reason="drain")

    def park(self) -> AnyBody:
        self.where = "waiting"
        return b.RunWaiting(waits=tuple(Wait(what="person", key=each) for each in self.requests), wake=self.some())

    def complete(self) -> AnyBody:
        self.end("over")
        return b.RunCompleted(output=self.draw(_values))

    def fail(self) -> AnyBody:
        self.end("failed")
        return b.RunFailed(failure=BOOM, number=self.some())

    def stop(self) -> AnyBody:
        self.end("over")
        return b.RunCancelled(reason="stop")

    def end(self, where: Where) -> None:
        self.where = where
        self.requests.clear()
        self.waits.clear()

    def fork(self) -> AnyBody:
        body = b.RunForked(run=self.run, at=self.seq, step=self.settled, effects="ask", agent_version=self.maybe("2"))
        for opened in (self.running, self.retrying, self.unknown, self.requests, self.waits, self.children):
            opened.clear()
        self.grants[1:] = []
        self.run, self.where, self.step = f"{self.run}.1", "pending", self.settled
        return body

    def pause(self) -> AnyBody:
        if self.where == "pending":
            self.where = "waiting"
        return b.PauseRequested(command=self.new("c"))

    def resume(self) -> AnyBody:
        if self.where in ("waiting", "failed"):
            self.where = "pending"
        return b.ResumeRequested(command=self.new("c"))

    def cancel(self) -> AnyBody:
        return b.CancelRequested(command=self.new("c"), reason="stop")

    def next_turn(self) -> AnyBody:
        self.turn += 1
        return b.TurnStarted(loop=f"turns#{self.draw(st.integers(1, 2))}", number=self.turn)

    # Steps

    def start(self) -> AnyBody:
        self.step += 1
        self.running[self.step] = 1
        return self.started(self.step, 1)

    def again(self) -> AnyBody:
        number, attempt = self.take(self.retrying)
        self.running[number] = attempt + 1
        return self.started(number, attempt + 1)

    def restart(self) -> AnyBody:
        number, attempt = self.take(self.running)
        self.running[number] = attempt
        return self.started(number, attempt)

    def started(self, number: int, attempt: int) -> AnyBody:
        effect = self.draw(st.sampled_from(["none", "idempotent", "once", "transaction"]))
        return started(number, attempt, effect=effect, grant=self.draw(st.sampled_from(self.grants)))

    def progress(self) -> AnyBody:
        number = self.draw(st.sampled_from(sorted(self.running)))
        return b.StepProgressed(number=number, attempt=1, note="half", partial=self.draw(st.none() | _values))

    def reserve(self) -> AnyBody:
        number = self.draw(st.sampled_from(sorted(self.running)))
        return b.BudgetReserved(number=number, tokens=self.draw(st.integers(0, 9)), cost=0.1)

    def complete_step(self) -> AnyBody:
        number, attempt = self.settle(self.running)
        return completed(number, attempt, output=self.draw(_values), spent=self.draw(_spents))

    def fail_step(self) -> AnyBody:
        number, attempt = self.settle(self.running)
        return failed(number, attempt, spent=self.draw(_spents))

    def retry_step(self) -> AnyBody:
        number, attempt = self.take(self.running)
        self.retrying[number] = attempt
        return failed(number, attempt, retry_at=9, spent=self.draw(_spents))

    def lose_step(self) -> AnyBody:
        number, attempt = self.take(self.running)
        self.unknown[number] = attempt
        return unknown(number, attempt, failure=self.maybe(CRASH), spent=self.draw(_spents))

    def resolve(self) -> AnyBody:
        outcome = self.draw(st.sampled_from(["applied", "not_applied", "gave_up"]))
        if outcome != "not_applied":
            return resolved(outcome, *self.settle(self.unknown))
        number, attempt = self.take(self.unknown)
        self.retrying[number] = attempt
        return resolved(outcome, number, attempt)

    def settle(self, steps: dict[int, int]) -> tuple[int, int]:
        number, attempt = self.take(steps)
        self.settled = max(self.settled, number)
        return number, attempt

    # Working state and decisions

    def patch(self) -> AnyBody:
        return b.StatePatched(name=self.new("patch#"), patch=self.patch_to(self.draw(agent_states())))

    def patch_to(self, wanted: AgentState) -> Any:
        found = diff(self.working, wanted)
        self.working = wanted
        return found

    def decide(self) -> AnyBody:
        chosen = self.draw(_values)
        return b.DecisionMade(name=self.new("d#"), question="?", chosen=chosen, options=chosen, because="so")

    def value(self) -> AnyBody:
        return b.ValueRecorded(name=self.new("now#"), value=self.draw(_values))

    def version(self) -> AnyBody:
        return b.VersionChosen(name=self.new("version#"), change="new", chosen=self.flip())

    def artifact(self) -> AnyBody:
        name, stored = self.new("artifact#"), self.new("stored-")
        return b.ArtifactStored(
            name=name, artifact_id=stored, type="t", summary="s", bytes=1, content=self.draw(_values)
        )

    def flag(self) -> AnyBody:
        return b.RiskFlagged(flag=self.draw(st.sampled_from(["policy-1", "policy-2"])))

    def read(self) -> AnyBody:
        return b.ExternalRead(source=self.draw(st.sampled_from("pq")), key="k", number=self.step, stale_at=9)

    def invalidate(self) -> AnyBody:
        return b.ExternalInvalidated(source=self.draw(st.sampled_from("pq")))

    def say(self) -> AnyBody:
        return b.MessageSaid(name=self.new("say#"), conversation="c-1", message=self.count)

    def undo(self) -> AnyBody:
        number = self.step
        choices: list[AnyBody] = [
            b.CompensationStarted(number=number, attempt=1, key="k:undo"),
            b.CompensationCompleted(number=number, attempt=1),
            b.CompensationFailed(number=number, attempt=1, failure=BOOM),
            b.CompensationSkipped(number=number, reason="left"),
        ]
        return self.draw(st.sampled_from(choices))

    def extend(self) -> AnyBody:
        return b.BudgetExtended(command=self.new("c"), by="ann", limits=Limits(max_steps=self.some()))

    # People, other agents, signals and timers

    def ask(self) -> AnyBody:
        self.requests.append(self.new("q-"))
        return asked(self.requests[-1], expires=self.some())

    def answer(self) -> AnyBody:
        request, decision = self.pop(self.requests), self.draw(st.sampled_from(["answered", "approved", "rejected"]))
        if decision == "approved":
            self.grants.append(request)
        return answered(request, decision)

    def expire(self) -> AnyBody:
        return b.RequestExpired(request=self.pop(self.requests), outcome="raised")

    def escalate(self) -> AnyBody:
        request = self.draw(st.sampled_from(self.requests))
        return b.RequestExpired(request=request, outcome="escalated", to=("boss",), expires=self.some())

    def withdraw(self) -> AnyBody:
        return b.WaitEnded(name="ask#1", how="withdrawn", request=self.pop(self.requests))

    def grant(self) -> AnyBody:
        self.grants.append(self.new("g-"))
        return b.GrantGiven(command=self.new("c"), grant=str(self.grants[-1]), by="ann", tool="refund")

    def revoke(self) -> AnyBody:
        return b.GrantRevoked(command=self.new("c"), grant=str(self.draw(st.sampled_from(self.grants))), by="ann")

    def call(self) -> AnyBody:
        child, mode = f"{self.run}.{self.new('h-')}", self.draw(st.sampled_from(["call", "handoff", "start"]))
        if mode != "start":
            self.children.append(child)
        return called(child, mode)

    def return_child(self) -> AnyBody:
        return returned(self.pop(self.children), spent=self.draw(_spents))

    def signal(self) -> AnyBody:
        self.signals.append(self.seq + 1)
        return b.SignalReceived(command=self.new("c"), signal="paid", value=self.draw(_values))

    def score(self) -> AnyBody:
        if self.flip():
            return b.ScoreWithdrawn(command=self.new("c"), score="quality", by="ann")
        value = self.draw(st.sampled_from([0.5, 1, True, "bad", None]))
        return b.ScoreGiven(command=self.new("c"), score="quality", by="ann", value=value, comment="why")

    def timer(self) -> AnyBody:
        self.waits.append(self.new("sleep#"))
        return b.TimerSet(name=self.waits[-1], wake=9)

    def receive(self) -> AnyBody:
        self.waits.append(self.new("receive#"))
        return b.WaitOpened(name=self.waits[-1], signal="paid", expires=self.some())

    def end_wait(self) -> AnyBody:
        event = self.pop(self.signals) if self.signals and self.flip() else None
        return b.WaitEnded(name=self.pop(self.waits), how="fired" if event is None else "received", event=event)

    # Drawing

    def one_of(self, choices: list[MakeBody]) -> AnyBody:
        return self.draw(st.sampled_from(choices))()

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def flip(self) -> bool:
        return self.draw(st.booleans())

    def some(self) -> int | None:
        return self.draw(st.sampled_from([None, 5, 9]))

    def maybe(self, value: Any) -> Any:
        return value if self.flip() else None

    def pop(self, items: list[Any]) -> Any:
        return items.pop(self.draw(st.integers(0, len(items) - 1)))

    def take(self, steps: dict[int, int]) -> tuple[int, int]:
        number = self.draw(st.sampled_from(sorted(steps)))
        return number, steps.pop(number)


@st.composite
def run_logs(draw: st.DrawFn, min_size: int = 1, max_size: int = 30) -> list[Event]:
    """Draw the log of a run, sealed as a store would seal it."""
    story, head, events, time = Story(draw), START, list[Event](), 1_700_000_000_000_000
    body = story.create()
    for _ in range(draw(st.integers(min_size, max_size))):
        sealed = seal(head, story.run, body, time=time, fence=story.fence, actor="worker:w-1")
        events.append(sealed.event)
        head, story.seq, time = sealed.event.head, sealed.event.seq, time + draw(st.integers(0, 5))
        body = story.next()
    return events
