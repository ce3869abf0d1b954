"""`Run`: the durable API for agent code.

Every method is a plain function, not a coroutine function: it assigns the call's name in the log immediately, and
returns a coroutine. So `gather(run.step(a), run.call(b))` assigns the same names in every execution.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, ParamSpec, Unpack, overload
from uuid import UUID  # noqa: TID251 - formats a UUID, does not generate one

from typing_extensions import TypeForm, TypeVar

from limpet.arguments import brief, checked
from limpet.clock import Duration, microseconds
from limpet.context.slice import ContextSlice, Known, slice_of
from limpet.engine.approvals.externals import External
from limpet.engine.definitions.agents import Agent, Budget
from limpet.engine.definitions.call_context import is_in_tool, made_in_tool
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.types import codec_of
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.handle import Handle, ReadOnlyPort
from limpet.engine.execution.principal import Principal, Sender
from limpet.engine.execution.strands import current_scope, current_strand, is_current_scope, set_scope
from limpet.engine.replay.history import Record
from limpet.engine.replay.scopes import Scope
from limpet.engine.run.artifacts import Artifacts
from limpet.engine.run.children import CallOptions, Children, OutgoingCall
from limpet.engine.run.compaction import Compaction, RunCompaction, Summarise, Summariser, as_summariser
from limpet.engine.run.conversation import USER, Message, Role, RunConversation, task_of
from limpet.engine.run.messenger import Messenger, id_of
from limpet.engine.run.missed_awaits import AwaitTracker, track_awaits
from limpet.engine.run.shared_records import RecordChange, RunRecords, SharedRecord
from limpet.engine.run.working_state import PatchOptions, SentPatch, State, StateChange
from limpet.engine.steps.plain_steps import PlainSteps
from limpet.engine.steps.steps import Steps
from limpet.engine.waits.questions import QuestionOptions, Questions
from limpet.engine.waits.waits import Waits
from limpet.errors import Expired, InvalidArgument, InvalidValue, WrongCall
from limpet.events import Artifact, PlanStatus, Revision, StatePatch, canonical, inline
from limpet.events import bodies as b
from limpet.state.patch import Working, rebased
from limpet.times import to_datetime

__all__ = ["Run", "ScopeEntry", "Turn", "Turns"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C", bound=str)
In = TypeVar("In")
Out = TypeVar("Out")
S = TypeVar("S", default=dict[str, Any])
_UNDECLARED = codec_of(Any)
# Maximum number of messages that `run.context` considers.
MAX_MESSAGES = 500
AFTER_TIMEOUT = "Pass a longer timeout= to `run.receive`, or catch limpet.Expired."


class Turn:
    """One iteration of `run.turns()`."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Number of the turn, starting at 1."""

    def __repr__(self) -> str:
        return f"Turn({self.number})"


@checked
@track_awaits
class Run(Generic[S]):
    """One execution of an agent, with a stable id. Limpet passes it to the agent's function.

    Limpet records the result of every method. When the run resumes, the function is executed again, and each method
    returns its recorded result until the code reaches the point where it stopped. Parallel branches with several calls
    each need their own `scope`.
    """

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._x = execution
        self._waits = waits
        self._plain_steps = PlainSteps(execution, waits)
        self.calls = AwaitTracker()
        """Calls of the run's methods, to find those that are never awaited."""
        self._cached_state: tuple[int, State[S]] | None = None

    # Parts that many runs do not need

    @property
    def _steps(self) -> Steps:
        return self._plain_steps.general

    @cached_property
    def _asks(self) -> Questions:
        return Questions(self._x, self._waits)

    @cached_property
    def _children(self) -> Children:
        return Children(self._x, self._waits)

    @cached_property
    def _artifacts(self) -> Artifacts:
        return Artifacts(self._x)

    @cached_property
    def _messenger(self) -> Messenger:
        return Messenger(self._x, self._steps)

    @cached_property
    def _records(self) -> RunRecords:
        return RunRecords(self._x, self._steps)

    @cached_property
    def conversation(self) -> RunConversation:
        """The run's conversation; used by LLM agents."""
        return RunConversation(self._x)

    @cached_property
    def _compaction(self) -> RunCompaction:
        return RunCompaction(self._x, self._steps, self.conversation)

    @property
    def id(self) -> str:
        """Stable id of the run."""
        return self._x.run

    @property
    def state(self) -> State[S]:
        """The agent's working state at this point of the code: goal, plan, facts, questions, artifacts, flags, data."""
        working = self._x.state.working
        if self._cached_state is None or self._cached_state[0] != self._x.state.patched:
            agent = self._x.agent
            self._cached_state = (self._x.state.patched, State(working.freeze(), agent.data_codec, agent.rules.data))
        return self._cached_state[1]

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    # Steps and other agents

    def step(self, tool: Tool[P, T, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Run a tool with these arguments as a step, and return its result.

        The result is recorded: when the run resumes, the step returns it without calling the tool again. Raises
        StepFailed if the tool fails, Rejected if a person rejects the step, OutcomeUnknown if it is unknown whether the
        effect was applied, and BudgetExceeded if the budget does not allow the step.
        """
        plain = self._plain_steps.find(tool, args, kwargs)
        if plain is not None:
            return plain
        step, record = self._steps.find(tool, args, kwargs)
        if self._x.on_step is not None:
            self._x.on_step(step.number)
        return self._steps.run(step, record)

    @property
    def execution(self) -> Execution:
        """The state that all methods share; used by LLM agents."""
        return self._x

    def read(self, source: External[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Return the data of an external source for these arguments.

        Within the source's time to live, it returns the data that the run already has; afterwards it reads the source
        again, as a step. Each read records a fact.
        """
        return self._steps.reads.find(source, args, kwargs)

    def read_again(self, source: External[..., Any]) -> Coroutine[Any, Any, Any]:
        """Repeat the last read of a source, if its data has expired; used by LLM agents."""
        return self._steps.reads.again(source)

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
        """Call another agent, wait for its run, and return its result.

        Pass the agent's name if its code runs elsewhere. `budget` and `deadline` (a duration) limit the called run; it
        never gets more than this run has left. It also gets the session, the user, and the state's `facts` and
        `artifacts` that you name, and nothing else. Raises AgentFailed if the called run does not complete, and
        ContractError if its input or result does not match the contract.
        """
        within = None if deadline is None else microseconds(deadline)
        how = CallOptions("call", budget=budget, time_limit=within, facts=facts, artifacts=artifacts)
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
        """Hand the work off to another agent permanently, and return its result.

        The outcome of the other run becomes the outcome of this run, so return the result and call no method after it.
        The other run continues the conversation, and gets the `facts` and `artifacts` that you name.
        """
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
        """Start another agent's run without waiting for it, and return its handle.

        `id` is the id of the new run; Limpet generates one if it is None. The run continues independently of this one.
        """
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
        sender = Principal(name=x.run, kind="agent", door="run")
        return Handle(port, run, None if isinstance(agent, str) else agent, sender)

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
        """Ask a person, wait for the answer, and return it. The run may wait for days.

        The answer is a bool, or one of `options`, or a value of the type `answer`. `to` names the people or groups that
        may answer (default: "anyone"). After `expires`, the request goes to each name in `escalate` in turn, for the
        same period each; then the call returns `default`, or raises Expired if there is none. `name` identifies the
        call in the log.
        """
        return self._asks.ask(question, how)

    def sleep(self, how_long: Duration, /) -> Coroutine[Any, Any, None]:
        """Wait for a duration, from seconds to months. The run uses no process while it waits."""
        until = self._x.kit.now() + microseconds(how_long)
        name = self._x.take_name("sleep")
        return self._waits.sleep(name, self._x.find(name, b.TimerSet), until)

    def receive(self, name: str, type: type[T], /, *, timeout: Duration | None = None) -> Coroutine[Any, Any, T]:
        """Wait for a signal with this name, and return its value as `type`.

        Signals are received in order, each once. Raises Expired after `timeout`.
        """
        expires = None if timeout is None else self._x.kit.now() + microseconds(timeout)
        verb = self._x.take_name(f"receive:{name}")
        return self._receive(verb, self._x.find(verb, b.WaitOpened), name, type, expires)

    def signal(self, run: str | Handle[Any], name: str, value: Any = None, /) -> Coroutine[Any, Any, None]:
        """Send a value to another run, as a step; its `run.receive(name)` returns it.

        The signal is sent once, also if this run is killed meanwhile. Raises StepFailed if the other run does not exist
        or has ended.
        """
        return self._messenger.signal(id_of(run), name, value)

    def send_patch(self, run: str | Handle[Any], /, **change: Unpack[SentPatch]) -> Coroutine[Any, Any, None]:
        """Send a patch of the working state to another run, as a step. That run applies it at its next turn.

        Raises StepFailed if the other run does not exist, has ended, or has no part that the patch would remove.
        """
        return self._messenger.patch(id_of(run), dict(change))

    def record(self, name: str, /) -> Coroutine[Any, Any, SharedRecord]:
        """Read a shared record, as a step, and return it at its newest version.

        A record that does not exist yet is empty, and has version 0: its first patch creates it.
        """
        return self._records.read(name)

    def patch_record(self, record: SharedRecord, /, **change: Unpack[RecordChange]) -> Coroutine[Any, Any, None]:
        """Change a shared record that the run has read, as a step. The step and the patch are stored together.

        `facts` adds or replaces facts, each with this run and step, `source` and `derived_from`; `retract` removes
        some. `plan` replaces the plan, and `revise` maps its items to their new status. `questions` asks, and
        `answered` answers, by the id of a question; `close` removes some. `data` sets values by key, and `unset`
        removes some. Others may have changed other parts of the record since it was read. Raises RecordConflict, with
        nothing changed, if they changed the same fact, question, key or plan: read the record again then.
        """
        return self._records.patch(record.name, record.version, change)

    async def _receive_message(self) -> None:
        """Receive a user's message and append it to the conversation, with its sender; used by LLM agents.

        Raises Expired if there is none.
        """
        verb, now = self._x.take_name(f"receive:{USER}"), self._x.kit.now()
        received = await self._signal(verb, self._x.find(verb, b.WaitOpened), USER, now)
        said, name = await self._x.recorder.unpack(received.value), self._x.take_name("say")
        text = said if isinstance(said, str) else canonical(said).decode()
        sender: Sender = {"by": received.by, "via": received.via}
        await self.conversation.say(name, self._x.find(name, b.MessageSaid), text, "user", sender)

    async def _receive(self, verb: str, record: Record | None, signal: str, type: type[T], expires: int | None) -> T:
        received, codec = await self._signal(verb, record, signal, expires), codec_of(type)
        plain = await self._x.recorder.unpack(received.value)
        try:
            value: T = codec.load(plain)
        except InvalidValue as error:
            fix = f"`run.receive({signal!r}, …)` expects {codec.annotation}. Send such a value: `limpet signal`."
            wrong = InvalidValue(path=f"signal {signal}{error.path[1:]}", reason=error.reason, fix=fix)
            raise self._x.attribute_error(wrong, verb) from error
        return value

    async def _signal(self, verb: str, record: Record | None, signal: str, expires: int | None) -> b.SignalReceived:
        ended = await self._waits.signal(verb, record, signal, expires)
        if ended.event is None:
            opened = self._x.history.records[verb].opened if verb in self._x.history.records else None
            until = opened.expires if isinstance(opened, b.WaitOpened) else expires
            expired_at = until or self._x.deadline or 0
            raise self._x.attribute_error(Expired(request=verb, expired_at=expired_at, fix=AFTER_TIMEOUT), verb)
        received = self._x.history.commands[ended.event]
        assert isinstance(received, b.SignalReceived)
        return received

    # State

    def patch(self, **change: Unpack[PatchOptions[S]]) -> Coroutine[Any, Any, None]:
        """Change the agent's working state. The patch is applied completely or not at all.

        `facts` adds or replaces facts. Each records the current step, its `source`, and the keys of the facts that it
        was `derived_from`. `retract` removes facts by key. `plan` replaces the plan; items that stay keep their
        status. `revise` maps items of the plan to their new status: `pending`, `doing`, `done` or `skipped`.
        `questions` adds open questions, and `answered` maps open questions to their answers. `flags` adds risk flags
        (with details, if it is a mapping), and `lower` removes some. `discard` removes artifacts by id. `data` replaces
        the typed data of `Run[S]`. `budget` lowers limits for the rest of the run, and `constraints` adds constraints.
        """
        name = self._x.take_name("patch")
        record = self._x.find(name, b.StatePatched)
        if record is not None:
            return self._patch(name, record, None)
        x = self._x
        made = StateChange(**change).patch(x.agent.data_codec, x.last_step(), x.journal.working, x.kit.store.redaction)
        return self._patch(name, None, made)

    async def _patch(self, name: str, record: Record | None, patch: StatePatch | None) -> None:
        x = self._x
        await x.gate.wait_until_open()
        if record is not None:
            patch = (await x.recorder.recall(record, b.StatePatched)).patch
        else:
            assert patch is not None
            await x.recorder.finish(x.recorder.settle(b.StatePatched(name=name, patch=patch)), "patch_returns")
        x.state.learn(lambda working: working.apply(patch), None if record is None else record.end)

    def decide(
        self, question: str, /, *, choose: T, over: Sequence[T], because: str, confidence: float | None = None
    ) -> Coroutine[Any, Any, T]:
        """Record that the agent chose `choose` out of `over`, and why (`because`). On replay, return the recorded
        choice.

        `confidence` is a number from 0 to 1; the agent's `escalate` rule may ask a person to confirm a low one.
        """
        if choose not in over:
            raise InvalidArgument(path="choose", reason=f"{brief(choose)} is not one of over={brief(over)}")
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
        await x.gate.wait_until_open()
        if record is None:
            escalate = x.agent.rules.escalate
            if escalate is not None and escalate.asks_about(body.confidence):
                body = await self._steps.approvals.confirm(body)
            await x.recorder.finish(x.recorder.settle(body))
        else:
            body = await x.recorder.recall(record, b.DecisionMade)
        plain = body.chosen.value()
        return next((option for each, option in options if each == plain), plain)

    def artifact(self, data: bytes | str | Path, /, *, type: str, summary: str) -> Coroutine[Any, Any, Artifact]:
        """Store large content as an artifact, and return its description. The state keeps its type and summary.

        `data` is bytes, text, or the path of a file to read.
        """
        name = self._x.take_name("artifact")
        return self._artifacts.put(name, self._x.find(name, b.ArtifactStored), data, (type, summary))

    def content(self, artifact: Artifact | str, /) -> Coroutine[Any, Any, bytes]:
        """Return the content of an artifact of this run, or of one that its caller passed on. Raises NotFound."""
        return self._artifacts.content(artifact if isinstance(artifact, str) else artifact.artifact_id)

    # Conversation

    def say(self, text: str, /, *, role: Role = "assistant") -> Coroutine[Any, Any, None]:
        """Append a message to the conversation that the run was started in, or else to the run's own.

        When the run resumes, the message is not appended again.
        """
        name = self._x.take_name("say")
        return self.conversation.say(name, self._x.find(name, b.MessageSaid), text, role)

    def messages(self, *, last: int | None = None) -> Coroutine[Any, Any, list[Message]]:
        """Return the messages of the run's conversation, in order.

        If older messages were summarised, the list starts with the summary. `last` limits the number of messages.
        """
        name = self._x.take_name("messages")
        return self.conversation.messages(name, self._x.find(name, b.ValueRecorded), last)

    def compact(
        self, summarise: Summarise | Summariser, /, *, above: int | None = None, keep: int | None = None
    ) -> Coroutine[Any, Any, bool]:
        """Let a summary replace the older messages of the conversation if it has more than `above` tokens.

        The newest `keep` tokens stay, and a tool call stays with its result. `summarise` is a function that takes a
        list of messages and returns a text, or `limpet.summarise_with(model)`; it is called as a step. By default,
        `above` is 60,000 for a function and three quarters of the model's window, and `keep` a third of it. Returns
        whether messages were replaced; there may be more to replace. If the step fails, nothing is replaced, and the
        run gets a risk flag. The original messages are kept.
        """
        return self._compaction.compact(as_summariser(summarise, "summarise"), Compaction(above=above, keep=keep))

    def context(
        self, *, max_tokens: int | None = None, max_bytes: int | None = None
    ) -> Coroutine[Any, Any, ContextSlice]:
        """Return the most important parts of state and messages that fit the limits, for a prompt of your own."""
        name = self._x.take_name("context")
        return self._context(name, self._x.find(name, b.ValueRecorded), max_tokens, max_bytes)

    async def _context(
        self, name: str, record: Record | None, max_tokens: int | None, max_bytes: int | None
    ) -> ContextSlice:
        found = await self.conversation.messages(name, record, MAX_MESSAGES)
        x = self._x
        task = await x.recorder.load(lambda: task_of(x.kit.store, x.memory.created.input))
        step = x.last_step()
        known = Known(x.state.working.freeze(), step, x.journal.fold.since or step, "running", task)
        messages = [each.spoken() for each in found]
        return slice_of(known, messages=messages, max_tokens=max_tokens, max_bytes=max_bytes)

    # Scopes, turns and versions

    def scope(self, name: str, /) -> AbstractAsyncContextManager[None]:
        """Return a context manager that gives the calls inside it their own scope; parallel branches need one each.

        If the plan has an item with this name, entering the scope sets its status to `doing`; leaving it without an
        error sets `done`.
        """
        return ScopeEntry(self, name)

    def turns(self, *, max: int | None = None) -> AsyncIterator[Turn]:
        """Iterate over turns, at most `max`. A resumed run starts at its current turn.

        The body of a turn must depend only on `run.state`, not on local variables of earlier turns.
        """
        return Turns(self._x, self._x.take_name("turns"), max)

    def version(self, change: str, /) -> bool:
        """Return whether this run uses the new code of a change.

        Returns False if the log has effects in this scope that the code has not reached again, because then old code
        has run past this point; else True. The answer is recorded, so a run never switches.
        """
        self._x.note_call(current_strand())
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

    # Values that would otherwise differ in every execution

    def now(self) -> datetime:
        """Return the current time, and record it: when the run resumes, this call returns the recorded time."""
        return to_datetime(self._value("now", self._x.kit.now))

    def random(self) -> float:
        """Return a random number from 0 to 1, and record it: when the run resumes, this call returns the recorded
        number.
        """
        value: float = self._value("random", self._x.random_fraction)
        return value

    def uuid(self) -> str:
        """Return a random UUID, and record it: when the run resumes, this call returns the recorded one."""
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
    """Context manager that `run.scope` returns. Blocking code calls `enter` and `leave` directly."""

    def __init__(self, run: Run[Any], name: str) -> None:
        self._run, self._name = run, name
        self._before: Scope | None = None
        self._entered: Scope | None = None

    def enter(self) -> Coroutine[Any, Any, None]:
        """Enter the scope now; return a coroutine that sets the plan item's status to `doing`."""
        strand = current_strand()
        self._run._x.note_call(strand)
        self._before = current_scope()
        self._entered = self._before.enter(self._name, strand)
        set_scope(self._entered)
        return self._mark("enter", "doing")

    def leave(self, *, done: bool) -> Coroutine[Any, Any, None] | None:
        """Leave the scope; return a coroutine that sets the plan item's status to `done`, or None after an error."""
        assert self._before is not None
        if not is_current_scope(self._entered):
            return None  # Code that never ended is being destroyed, in the middle of any other code.
        if is_in_tool():
            raise made_in_tool()
        marking = self._mark("leave", "done") if done and not self._run._x.gate.is_closed else None
        set_scope(self._before)
        return marking

    def _mark(self, verb: str, status: PlanStatus) -> Coroutine[Any, Any, None]:
        x = self._run._x
        index = x.state.working.item(self._name)
        name = current_scope().take(f"scope.{verb}", current_strand())
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
    """Do nothing: the plan has no item to mark."""


class Turns(AsyncIterator[Turn]):
    """Iterator over the turns of a loop, starting at its current turn."""

    def __init__(self, execution: Execution, loop: str, most: int | None) -> None:
        self._x, self._loop, self._most = execution, loop, most
        self._outer = current_scope()
        self._number = execution.history.turns.get(loop, 0)
        self._is_first = True

    async def __anext__(self) -> Turn:
        if await self.advance():
            return self.enter_turn()
        self.leave()
        raise StopAsyncIteration

    async def advance(self) -> bool:
        """Start the next turn, or re-enter the current one. Returns False if `max` is reached."""
        x, strand = self._x, current_strand()
        x.note_call(strand)
        if self._is_first:
            self._check_alone(strand)
        await x.gate.wait_until_open()
        if self._is_first and self._number:
            x.state.start_turn(self._loop)
        elif self._most is not None and self._number >= self._most:
            return False
        else:
            await self._next()
        self._is_first = False
        return True

    def enter_turn(self) -> Turn:
        """Enter the scope of the current turn, and return the turn."""
        set_scope(self._outer.turn(self._loop, self._number))
        return Turn(self._number)

    def leave(self) -> None:
        """Return to the scope around the loop."""
        self._x.loops.pop(self._loop, None)
        set_scope(self._outer)

    def _check_alone(self, strand: Hashable) -> None:
        """Raise WrongCall if another branch is in a loop beside this one.

        A resumed run has the state at the start of its current turn, and two loops would have two of them.
        """
        loops = self._x.loops
        for loop, other in list(loops.items()):
            if isinstance(other, asyncio.Task) and other.done():
                del loops[loop]
            elif other != strand and not self._loop.startswith(f"{loop}/"):
                raise WrongCall(
                    reason=f"run.turns() was called in {self._loop} while another branch is in {loop}; "
                    "a run has one loop of turns at a time, because it resumes with the state at the start of a turn",
                    fix="Call an agent for each loop (`run.call`), or write a plain loop: each call is recorded.",
                )
        loops[self._loop] = strand

    async def _next(self) -> None:
        x = self._x
        self._apply_received()
        # Only the turn that ends here must be stored. The start of the next one is stored with its first events.
        must_store = (self._number > 0 and bool(x.journal.pending)) or x.journal.is_snapshot_due
        self._number += 1
        x.journal.add(b.TurnStarted(loop=self._loop, number=self._number))
        with x.gate.work():
            if must_store and x.recorder.must_flush("turn_ends"):
                await x.recorder.flush()
            await x.recorder.snapshot()

    def _apply_received(self) -> None:
        """Apply the patches that others have sent since the last turn. They belong to the turn that ends here."""
        x = self._x
        for count, (seq, sent) in enumerate(list(x.history.patches.items()), 1):
            patch = rebased(x.journal.working, sent)
            name = f"{self._loop}/{self._number}/received#{count}"
            x.journal.add(b.StatePatched(name=name, patch=patch, event=seq))
            x.state.learn(partial(Working.apply, patch=patch))
            del x.history.patches[seq]
