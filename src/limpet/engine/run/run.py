"""The run, as an agent's code sees it: the verbs that are durable.

Every verb is a plain function that takes its identity at the call and returns a coroutine, so that
`gather(run.step(a), run.call(b))` is the same in every execution.
"""

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, ParamSpec, Unpack, overload
from uuid import UUID  # noqa: TID251 - how one is written, not a new one

from msgspec import UNSET, UnsetType
from typing_extensions import TypeForm, TypeVar

from limpet.arguments import brief, checked
from limpet.clock import Duration, microseconds, to_datetime
from limpet.context.slice import ContextSlice, Known, slice_of
from limpet.engine.approvals.externals import External
from limpet.engine.definitions.agents import Agent, Budget
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.types import codec_of
from limpet.engine.execution.execution import Execution, current_caller, current_scope, set_scope
from limpet.engine.execution.handle import Handle, ReadOnlyPort
from limpet.engine.replay.history import Record
from limpet.engine.replay.scopes import Scope
from limpet.engine.run.artifacts import Artifacts
from limpet.engine.run.children import CallOptions, Children, OutgoingCall
from limpet.engine.run.conversation import Message, Role, RunConversation, task_of
from limpet.engine.run.missed_awaits import AwaitTracker, track_awaits
from limpet.engine.run.working_state import State, StateChange
from limpet.engine.steps.steps import Steps
from limpet.engine.waits.asks import QuestionOptions, Questions
from limpet.engine.waits.waits import Waits
from limpet.errors import Expired, InvalidValue
from limpet.events import Artifact, PlanStatus, Revision, StatePatch, inline
from limpet.events import bodies as b

__all__ = ["Run", "ScopeEntry", "Turn", "Turns"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C", bound=str)
In = TypeVar("In")
Out = TypeVar("Out")
S = TypeVar("S", default=dict[str, Any])
_UNDECLARED = codec_of(Any)
# No more messages than that are looked at for a slice.
SPOKEN = 500


class Turn:
    """One time round a loop whose body depends on the run's state alone."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Counted from 1."""

    def __repr__(self) -> str:
        return f"Turn({self.number})"


@checked
@track_awaits
class Run(Generic[S]):
    """One execution of an agent toward a goal."""

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._x = execution
        self._waits = waits
        self._steps = Steps(execution, waits)
        self._reads = self._steps.reads
        self._asks = Questions(execution, waits)
        self._children = Children(execution, waits)
        self._artifacts = Artifacts(execution)
        self.conversation = RunConversation(execution)
        """Its conversation, for loops of a model."""
        self.calls = AwaitTracker()
        """The verbs that its code has called."""
        self._seen: tuple[int, State[S]] | None = None

    @property
    def id(self) -> str:
        """Its stable id."""
        return self._x.run

    @property
    def state(self) -> State[S]:
        """What the agent knows, as far as the code has come."""
        working = self._x.working
        if self._seen is None or self._seen[0] != self._x.patched:
            self._seen = (self._x.patched, State(working.freeze(), self._x.agent.data_codec))
        return self._seen[1]

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    # Doing

    def step(self, tool: Tool[P, T, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Do something once, and know its result for ever."""
        step, record = self._steps.find(tool, args, kwargs)
        if self._x.on_step is not None:
            self._x.on_step(step.number)
        return self._steps.run(step, record)

    @property
    def execution(self) -> Execution:
        """What all its verbs share, for loops of a model."""
        return self._x

    def read(self, source: External[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """What a source outside says: read now, or known from before where that still holds."""
        return self._reads.find(source, args, kwargs)

    def read_again(self, source: External[..., Any]) -> Coroutine[Any, Any, Any]:
        """What a source says to what it was asked last, for loops of a model."""
        return self._reads.again(source)

    @overload
    def call(
        self,
        agent: Agent[In, Out],
        input: In,
        /,
        *,
        budget: Budget | None = None,
        deadline: Duration | None = None,
        facts: Sequence[str] = (),
        artifacts: Sequence[str] = (),
    ) -> Coroutine[Any, Any, Out]: ...

    @overload
    def call(
        self,
        agent: str,
        input: Any,
        /,
        *,
        budget: Budget | None = None,
        deadline: Duration | None = None,
        facts: Sequence[str] = (),
        artifacts: Sequence[str] = (),
    ) -> Coroutine[Any, Any, Any]: ...

    def call(
        self,
        agent: Agent[Any, Any] | str,
        input: Any,
        /,
        *,
        budget: Budget | None = None,
        deadline: Duration | None = None,
        facts: Sequence[str] = (),
        artifacts: Sequence[str] = (),
    ) -> Coroutine[Any, Any, Any]:
        """Let another agent do it, and wait for its result; one whose code is elsewhere is called by its name.

        The named facts and artifacts go along, a slice of the budget, the deadline and the session; nothing else does.
        """
        within = None if deadline is None else microseconds(deadline)
        how = CallOptions("call", budget=budget, within=within, facts=facts, artifacts=artifacts)
        return self._children.call(self._children.find(agent, input, "call"), how)

    @overload
    def handoff(
        self, agent: Agent[In, Out], input: In, /, *, facts: Sequence[str] = (), artifacts: Sequence[str] = ()
    ) -> Coroutine[Any, Any, Out]: ...

    @overload
    def handoff(
        self, agent: str, input: Any, /, *, facts: Sequence[str] = (), artifacts: Sequence[str] = ()
    ) -> Coroutine[Any, Any, Any]: ...

    def handoff(
        self,
        agent: Agent[Any, Any] | str,
        input: Any,
        /,
        *,
        facts: Sequence[str] = (),
        artifacts: Sequence[str] = (),
    ) -> Coroutine[Any, Any, Any]:
        """Give the work to another agent for good: its outcome is this run's, and nothing more is done here."""
        how = CallOptions("handoff", facts=facts, artifacts=artifacts)
        return self._children.call(self._children.find(agent, input, "handoff"), how)

    @overload
    def start(
        self, agent: Agent[In, Out], input: In, /, *, id: str | None = None
    ) -> Coroutine[Any, Any, Handle[Out]]: ...

    @overload
    def start(self, agent: str, input: Any, /, *, id: str | None = None) -> Coroutine[Any, Any, Handle[Any]]: ...

    def start(
        self, agent: Agent[Any, Any] | str, input: Any, /, *, id: str | None = None
    ) -> Coroutine[Any, Any, Handle[Any]]:
        """Let another agent begin, and go on without it."""
        return self._start(agent, self._children.find(agent, input, "start"), id)

    async def _start(self, agent: Agent[Any, Any] | str, sent: OutgoingCall, id: str | None) -> Handle[Any]:
        run = await self._children.start(sent, id)
        x = self._x
        assert x.kit.port is not None
        port = (
            x.kit.port
            if x.effects == "live" and not x.is_dry_run
            else ReadOnlyPort(x.kit.port, "" if x.is_dry_run else x.run)
        )
        return Handle(port, run, None if isinstance(agent, str) else agent)

    # Waiting

    @overload
    def ask(
        self,
        question: str,
        /,
        *,
        to: str | Sequence[str] = ...,
        expires: Duration | None = None,
        escalate: Sequence[str] = (),
        default: bool = ...,
        name: str | None = None,
    ) -> Coroutine[Any, Any, bool]: ...

    @overload
    def ask(
        self,
        question: str,
        /,
        *,
        options: Sequence[C],
        to: str | Sequence[str] = ...,
        expires: Duration | None = None,
        escalate: Sequence[str] = (),
        default: C = ...,
        name: str | None = None,
    ) -> Coroutine[Any, Any, C]: ...

    @overload
    def ask(
        self,
        question: str,
        /,
        *,
        answer: TypeForm[T],
        to: str | Sequence[str] = ...,
        expires: Duration | None = None,
        escalate: Sequence[str] = (),
        default: T = ...,
        name: str | None = None,
    ) -> Coroutine[Any, Any, T]: ...

    def ask(self, question: str, /, **how: Unpack[QuestionOptions]) -> Coroutine[Any, Any, Any]:
        """Ask a person: yes or no, one of some options, or an answer of a type. The run may wait for days."""
        return self._asks.ask(question, how)

    def sleep(self, how_long: Duration, /) -> Coroutine[Any, Any, None]:
        """Wait for a time, seconds or months, in no process."""
        until = self._x.kit.now() + microseconds(how_long)
        name = self._x.take_name("sleep")
        return self._waits.sleep(name, self._x.find(name, b.TimerSet), until)

    def receive(self, name: str, type: type[T], /, *, timeout: Duration | None = None) -> Coroutine[Any, Any, T]:
        """Wait for a signal, and take it: in order, each once. Raises Expired when its time is over."""
        expires = None if timeout is None else self._x.kit.now() + microseconds(timeout)
        verb = self._x.take_name(f"receive:{name}")
        return self._receive(verb, self._x.find(verb, b.WaitOpened), name, type, expires)

    async def _receive(self, verb: str, record: Record | None, signal: str, type: type[T], expires: int | None) -> T:
        ended = await self._waits.signal(verb, record, signal, expires)
        if ended.event is None:
            opened = self._x.history.records[verb].opened if verb in self._x.history.records else None
            until = opened.expires if isinstance(opened, b.WaitOpened) else expires
            raise self._x.attribute_error(Expired(request=verb, expired_at=until or self._x.deadline or 0), verb)
        received = self._x.history.commands[ended.event]
        assert isinstance(received, b.SignalReceived)
        value: T = codec_of(type).load(await self._x.unpack(received.value))
        return value

    # Knowing

    def patch(  # noqa: PLR0913 - all by name, and few at a time
        self,
        *,
        goal: str | None = None,
        facts: Mapping[str, Any] | None = None,
        plan: Sequence[str] | None = None,
        questions: Sequence[str] = (),
        answered: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        data: S | UnsetType = UNSET,
        source: str | None = None,
        retract: Sequence[str] = (),
        derived_from: Sequence[str] = (),
    ) -> Coroutine[Any, Any, None]:
        """Change what the agent knows: as a whole, or not at all.

        Facts are noted as of the last step, with the facts that they were concluded from; one that was known is
        superseded. `retract` takes facts back.
        """
        change = StateChange(
            goal=goal,
            facts=facts,
            plan=plan,
            questions=questions,
            answered=answered,
            flags=flags,
            data=data,
            source=source,
            retract=retract,
            derived_from=derived_from,
        )
        name = self._x.take_name("patch")
        record = self._x.find(name, b.StatePatched)
        redaction, step = self._x.kit.store.redaction, self._x.journal.fold.step or None
        patch = change.patch(self._x.agent.data_codec, step, redaction) if record is None else None
        return self._patch(name, record, patch)

    async def _patch(self, name: str, record: Record | None, patch: StatePatch | None) -> None:
        x = self._x
        await x.wait_until_open()
        if record is not None:
            patch = (await x.recall(record, b.StatePatched)).patch
        else:
            assert patch is not None
            await x.finish(x.settle(b.StatePatched(name=name, patch=patch)), "patch_returns")
        x.learn(lambda working: working.apply(patch), None if record is None else record.end)

    def decide(
        self, question: str, /, *, choose: T, over: Sequence[T], because: str, confidence: float | None = None
    ) -> Coroutine[Any, Any, T]:
        """Choose at a branch, and say from what and why; the first choice stands."""
        if choose not in over:
            raise InvalidValue(path="choose", reason=f"{brief(choose)} is none of the options")
        redaction = self._x.kit.store.redaction
        options = [redaction.value(_UNDECLARED.dump(each)) for each in over]
        chosen = redaction.value(_UNDECLARED.dump(choose))
        name = self._x.take_name("decide")
        body = b.DecisionMade(
            name=name,
            question=redaction.text(question),
            chosen=inline(chosen),
            options=inline(options),
            because=redaction.text(because),
            confidence=confidence,
        )
        return self._decide(body, self._x.find(name, b.DecisionMade), list(zip(options, over, strict=True)))

    async def _decide(self, body: b.DecisionMade, record: Record | None, options: list[tuple[Any, T]]) -> T:
        x = self._x
        await x.wait_until_open()
        if record is None:
            escalate = x.agent.rules.escalate
            if escalate is not None and escalate.asks_about(body.confidence):
                body = await self._steps.approvals.confirm(body)
            await x.finish(x.settle(body))
        else:
            body = await x.recall(record, b.DecisionMade)
        plain = body.chosen.value()
        return next((option for each, option in options if each == plain), plain)

    def artifact(self, data: bytes | str | Path, /, *, type: str, summary: str) -> Coroutine[Any, Any, Artifact]:
        """Put something big away; the state keeps what it is and a summary."""
        name = self._x.take_name("artifact")
        return self._artifacts.put(name, self._x.find(name, b.ArtifactStored), data, (type, summary))

    def content(self, artifact: Artifact | str, /) -> Coroutine[Any, Any, bytes]:
        """What was put away, of this run or come along from the one that called it."""
        return self._artifacts.content(artifact if isinstance(artifact, str) else artifact.artifact_id)

    # Talking

    def say(self, text: str, /, *, role: Role = "assistant") -> Coroutine[Any, Any, None]:
        """Put a message into the run's conversation, once: the one it was started in, or one of its own."""
        name = self._x.take_name("say")
        return self.conversation.say(name, self._x.find(name, b.MessageSaid), text, role)

    def messages(self, *, last: int | None = None) -> Coroutine[Any, Any, list[Message]]:
        """What was said in the run's conversation, in order: a summary where one was made, and the newest messages."""
        name = self._x.take_name("messages")
        return self.conversation.messages(name, self._x.find(name, b.ValueRecorded), last)

    def context(
        self, *, max_tokens: int | None = None, max_bytes: int | None = None
    ) -> Coroutine[Any, Any, ContextSlice]:
        """The slice that fits of what the agent knows and of what was said, for a model that is asked by hand."""
        name = self._x.take_name("context")
        return self._context(name, self._x.find(name, b.ValueRecorded), max_tokens, max_bytes)

    async def _context(
        self, name: str, record: Record | None, max_tokens: int | None, max_bytes: int | None
    ) -> ContextSlice:
        said = await self.conversation.messages(name, record, SPOKEN)
        x = self._x
        task = await x.retry_store(lambda: task_of(x.kit.store, x.memory.created.input))
        known = Known(x.working.freeze(), x.journal.fold.step or None, "running", task)
        messages = [each.spoken() for each in said]
        return slice_of(known, messages=messages, max_tokens=max_tokens, max_bytes=max_bytes)

    # Structure

    def scope(self, name: str, /) -> AbstractAsyncContextManager[None]:
        """A place of its own for the calls inside; named like an item of the plan, it is that item."""
        return ScopeEntry(self, name)

    def turns(self, *, max: int | None = None) -> AsyncIterator[Turn]:
        """A loop whose body depends on `run.state` alone: a resumed run enters at the current turn."""
        return Turns(self._x, self._x.take_name("turns"), max)

    def version(self, change: str, /) -> bool:
        """Whether this run is on the new side of a change of the code; it stays there."""
        self._x.note_call()
        scope = current_scope()
        name = f"{scope.path}version:{change}#1"
        record = self._x.find(name, b.VersionChosen)
        if record is not None:
            assert isinstance(record.opened, b.VersionChosen)
            self._x.return_order.skip(record.end or 0)
            return record.opened.chosen
        if change in self._x.versions.setdefault(scope.path, {}):
            return self._x.versions[scope.path][change]
        chosen = self._x.versions[scope.path][change] = self._x.lookup.chooses_new(scope.path)
        self._x.journal.add(b.VersionChosen(name=name, change=change, chosen=chosen))
        return chosen

    # What would differ in every execution

    def now(self) -> datetime:
        """The time, the same in every execution."""
        return to_datetime(self._value("now", self._x.kit.now))

    def random(self) -> float:
        """A number from 0 to 1, the same in every execution."""
        value: float = self._value("random", self._x.random_fraction)
        return value

    def uuid(self) -> str:
        """A random UUID, the same in every execution."""
        value: str = self._value("uuid", lambda: str(UUID(int=self._x.kit.ids.bits(128), version=4)))
        return value

    def _value(self, what: str, make: Any) -> Any:
        name = self._x.take_name(what)
        record = self._x.find(name, b.ValueRecorded)
        if record is not None:
            assert isinstance(record.opened, b.ValueRecorded)
            self._x.return_order.skip(record.end or 0)
            return record.opened.value.value()
        value = make()
        self._x.journal.add(b.ValueRecorded(name=name, value=inline(value)))
        return value


class ScopeEntry(AbstractAsyncContextManager[None]):
    """A scope while code is in it; blocking code enters it with the two coroutines that it is made of."""

    def __init__(self, run: Run[Any], name: str) -> None:
        self._run, self._name = run, name
        self._before: Scope | None = None

    def enter(self) -> Coroutine[Any, Any, None]:
        """Take the place now; what it returns marks the item of the plan."""
        self._run._x.note_call()
        self._before = current_scope()
        set_scope(self._before.enter(self._name, current_caller()))
        return self._mark("enter", "doing")

    def leave(self, *, done: bool) -> Coroutine[Any, Any, None] | None:
        """Leave the place; one that was left with an error stays the item that is being done."""
        assert self._before is not None
        marking = self._mark("leave", "done") if done and not self._run._x.is_closed else None
        set_scope(self._before)
        return marking

    def _mark(self, verb: str, status: PlanStatus) -> Coroutine[Any, Any, None]:
        x = self._run._x
        index = x.working.item(self._name)
        name = current_scope().take(f"scope.{verb}", current_caller())
        record = x.find(name, b.StatePatched)
        if record is None and index is None:
            return _nothing()
        patch = None if index is None else StatePatch(revise=(Revision(index=index, status=status),))
        return self._run._patch(name, record, patch)

    async def __aenter__(self) -> None:
        await self.enter()

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        marking = self.leave(done=kind is None)
        if marking is not None:
            await marking


async def _nothing() -> None:
    """Nothing to mark."""


class Turns(AsyncIterator[Turn]):
    """A loop, entered at its current turn."""

    def __init__(self, execution: Execution, loop: str, most: int | None) -> None:
        self._x, self._loop, self._most = execution, loop, most
        self._outer = current_scope()
        self._number = execution.history.turns.get(loop, 0)
        self._is_first = True

    async def __anext__(self) -> Turn:
        if await self.begin():
            return self.arrive()
        self.leave()
        raise StopAsyncIteration

    async def begin(self) -> bool:
        """Begin the next turn, or enter the current one again; false if there is none."""
        x = self._x
        x.note_call()
        await x.wait_until_open()
        if self._is_first and self._number:
            x.start_turn(self._loop)
        elif self._most is not None and self._number >= self._most:
            return False
        else:
            await self._next()
        self._is_first = False
        return True

    def arrive(self) -> Turn:
        """The code that follows is in this turn."""
        set_scope(self._outer.turn(self._loop, self._number))
        return Turn(self._number)

    def leave(self) -> None:
        """The code that follows is behind the loop."""
        set_scope(self._outer)

    async def _next(self) -> None:
        x = self._x
        self._number += 1
        x.journal.add(b.TurnStarted(loop=self._loop, number=self._number))
        with x.work():
            if x.must_flush("turn_ends"):
                await x.flush()
            await x.snapshot()
