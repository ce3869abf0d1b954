"""The loop of an LLM agent: build the prompt, ask the model, execute the tool calls, record the results, repeat.

It is built on `run.turns`. Its only inputs are the conversation and the state, so it continues at the current turn
after a crash. Each model call is a step: its result is recorded and paid for once, and its prompt is recorded by
reference.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from limpet.context.window import has_outgrown, ranges_of, tokens
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.call_context import current
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import Traits
from limpet.engine.definitions.types import TypeCodec, codec_of
from limpet.engine.execution.strands import current_scope
from limpet.engine.run.agent_decorator import agent
from limpet.engine.run.compaction import NOT_SUMMARISED, Compaction, to_summarise
from limpet.engine.run.run import Run
from limpet.errors import DefinitionError, InvalidValue, ModelRefused, NoProgress, NotFound, StepFailed
from limpet.events import Head, Spent, canonical
from limpet.events import bodies as b
from limpet.llm.interrupts import Interrupts
from limpet.llm.message_cache import ReadMessages, cache_of
from limpet.llm.model import Model, Prompt, PromptMessage, Reply, ToolCall, Usage
from limpet.llm.prompt import (
    MAX_REPLY,
    BuildContext,
    Context,
    Frame,
    PromptState,
    build_prompt,
    choose_context,
    context_of,
    digest_of,
    frame_name,
    most_tokens,
    plain,
    read_context,
    summary_line,
    summary_of,
)
from limpet.llm.providers import join_surrogates, join_surrogates_in, unique_calls
from limpet.llm.record_tools import record_tools
from limpet.llm.tools import (
    BUILT_IN,
    CallableTool,
    Handoff,
    Normalise,
    Toolbox,
    Usable,
    by_name,
    callable_tools,
    handoff_of,
    toolboxes,
    unchanged_result,
)
from limpet.llm.transcript import NO_RESULT, StoredMessage, content_of, is_object, record_of, reply_of
from limpet.policy.retry import Retry

__all__ = ["LLM", "Ask", "Choose", "cost_of", "llm_agent"]

RETRY = Retry(6, first="1s", cap="30s")
MODEL_TIMEOUT = 5 * 60 * 1_000_000
MODEL = Traits(effect="none", retry=RETRY, timeout=MODEL_TIMEOUT)
LISTING = Traits(effect="none", retry=RETRY, timeout=60 * 1_000_000)
REPAIRS, REPEATS = 3, 4
INTERRUPTED = "interrupted by the user"
MOST_FAULTS = 20
MISFIT = "Your answer does not fit what is asked for"
CUT_OFF = "Your answer was cut off. Go on exactly where it ended, without repeating anything."
CUT_CALL = "Your reply was cut off in this call, so it was not made. Say less at once."
AFTER_MAX_TURNS = "Set a larger max_turns=, then run `limpet resume` on the run."
AFTER_REPEATS = (
    "Change the instructions or the tools, then fork the run before these calls: `limpet fork RUN --at STEP`."
)
AFTER_CUT_OFF = (
    "Set a larger max_reply=, or ask for a shorter answer in the instructions; "
    "then fork the run at its last model call: `limpet fork RUN --at STEP`."
)
AFTER_MISFIT = (
    "Describe the output in the instructions, or loosen output=; "
    "then fork the run at its last model call: `limpet fork RUN --at STEP`."
)

Ask = Callable[[Prompt], Awaitable[Reply]]
"""Asks the model, as a step."""
Choose = Callable[[Run[Any], Prompt, Ask], Awaitable[Reply]]
"""Hook that chooses the next reply; it may skip the model."""


async def ask_model(run: Run[Any], request: Prompt, ask: Ask) -> Reply:  # noqa: ARG001 - other hooks use it
    """Return the model's reply. This is the default of `choose`."""
    return await ask(request)


class LLM(Struct, frozen=True, kw_only=True):
    """The parts of an LLM agent."""

    name: str
    model: Callable[[], Model]
    frame: Frame
    """Constant part of every prompt: instructions, tool specs, output schema, window."""
    tools: Mapping[str, CallableTool]
    toolboxes: Sequence[Toolbox]
    """Sources of tools (MCP servers), which are listed when a run starts."""
    output: TypeCodec
    max_turns: int
    compact: Compaction = field(default_factory=Compaction)
    prices: Mapping[str, tuple[float, float]] = {}
    """Price of a million input and output tokens, by model name."""
    choose: Choose = ask_model
    normalise: Normalise = unchanged_result
    build_context: BuildContext = choose_context


class Answer(NamedTuple):
    """The final answer, which ends the loop."""

    value: Any


def llm_agent(  # noqa: PLR0913 - keyword-only
    name: str,
    *,
    model: Callable[[], Model],
    instructions: str,
    input: Any = str,
    output: Any = str,
    tools: Sequence[Usable] = (),
    handoffs: Sequence[Agent[Any, Any]] = (),
    records: Sequence[str] = (),
    builtin: bool | Sequence[str] = True,
    compact: Compaction | None = None,
    window: int = 100_000,
    max_reply: int = MAX_REPLY,
    max_turns: int = 100,
    prices: Mapping[str, tuple[float, float]] | None = None,
    choose: Choose = ask_model,
    normalise: Normalise = unchanged_result,
    build_context: BuildContext = choose_context,
    **options: Any,
) -> Agent[Any, Any]:
    """Create an LLM agent from resolved parts; see `limpet.llm_agent` for the parameters.

    `model` returns the model when it is first needed. `options` are those of `limpet.agent`.
    """
    answer, may = codec_of(output), callable_tools(tools, handoffs, builtin, record_tools(records))
    wanted = None if output is str else answer.schema()
    for each in handoffs:
        if each.output_codec.schema() != answer.schema():
            reason = f"the handoff target {each.name} returns another type; set the same output= on both agents"
            raise DefinitionError(what=name, reason=reason)
    llm = LLM(
        name=name,
        model=model,
        frame=Frame(
            instructions=instructions,
            tools=tuple(each.spec for each in may.values()),
            output=wanted,
            window=window,
            reply=max_reply,
        ),
        tools=may,
        toolboxes=toolboxes(tools),
        output=answer,
        max_turns=max_turns,
        compact=compact or Compaction(),
        prices=prices or {},
        choose=choose,
        normalise=normalise,
        build_context=build_context,
    )
    assert llm.frame.room

    async def drive(run: Run[Any], given: Any) -> Any:
        llm: LLM = run.execution.agent.llm  # A test may have replaced the model.
        loop = _Loop(llm, run)
        await loop.start(given)
        async for _ in run.turns(max=llm.max_turns):
            found = await loop.turn()
            if found is not None:
                return found.value
        raise NoProgress(agent=name, reason=f"no answer after {llm.max_turns} turns", fix=AFTER_MAX_TURNS)

    drive.__annotations__ = {"run": Run[Any], "given": input, "return": output}
    drive.__doc__ = instructions
    made: Agent[Any, Any] = agent(name=name, **options)(drive)
    made.llm, made.calls = llm, (*(each for each in tools if isinstance(each, Agent)), *handoffs)
    return made


def cost_of(usage: Usage, prices: Mapping[str, tuple[float, float]], model: str) -> float:
    """Return the cost of a reply: what the provider reports, or else from the prices of a million tokens."""
    price = prices.get(model, (0.0, 0.0))
    return usage.cost or (usage.input_tokens * price[0] + usage.output_tokens * price[1]) / 1e6


class _Loop:
    """The loop of one execution."""

    def __init__(self, llm: LLM, run: Run[Any]) -> None:
        self._llm, self._run, self._x, self._conversation = llm, run, run.execution, run.conversation
        self._interrupts = Interrupts(run)
        self._tools, self._frame = llm.tools, llm.frame
        self._frame_name = ""
        """Name under which the frame is recorded."""
        self._head = 0
        """End of the conversation when it was last read."""
        self._asked: int | None = None
        """Number of the step that asked the model."""

    async def start(self, given: Any) -> None:
        """Add the input to the conversation as the first user message, unless starting the run already did."""
        await self._find_tools()
        await self._record_frame()
        created = self._x.memory.created
        assert created is not None
        text = given if isinstance(given, str) else canonical(codec_of(type(given)).dump(given)).decode()
        if created.conversation is None or created.parent is not None or not isinstance(given, str):
            await self._run.say(text, role="user")

    async def _find_tools(self) -> None:
        """List the tools of toolboxes. The list is recorded when the run starts, and used for the whole run."""
        found = list(self._tools.values())
        for box in self._llm.toolboxes:
            tool: Tool[..., Any, Any] = Tool(box.list_tools, f"tools of {box.name}", LISTING)
            tool.kind = "read"
            found += box.callable_tools(await self._run.step(tool))
        if self._llm.toolboxes:
            self._tools = by_name(found)
            self._frame = msgspec.structs.replace(self._frame, tools=tuple(each.spec for each in found))

    async def _record_frame(self) -> None:
        """Record the constant part of all prompts once, so that old prompts can be rebuilt after code changes."""
        x = self._x
        packed, blobs = x.kit.store.pack(self._frame.plain, inline=0)
        assert isinstance(packed.blob, str)
        self._frame_name = frame_name(packed.blob)
        name = x.take_name(self._frame_name)
        record = x.find(name, b.ValueRecorded)
        await x.gate.wait_until_open()
        if record is None:
            await x.recorder.finish(x.recorder.settle(b.ValueRecorded(name=name, value=packed), blobs=blobs))
        else:
            assert record.end is not None
            await x.recorder.enter(record.end)

    async def turn(self) -> Answer | None:
        """Execute one turn, and return the final answer if it is reached."""
        await self._interrupts.receive_messages()
        context = await self._read()
        if await self._repair(context):
            context = await self._read()
        if await self._compact(context):
            context = await self._read()
        self._check_progress(context.messages)
        x = self._x
        if await self._interrupts.is_interrupted("early", x.peek_name("model"), x.peek_name("said")):
            return None
        reply = await self._choose(context)
        self._asked = x.last_step()
        calls = unique_calls(reply.calls, (each.message for each in context.messages))
        await self._record_reply(reply, calls)
        if await self._interrupts.is_interrupted(
            "late", f"{current_scope().path}call-", x.peek_name("results"), x.peek_name("say")
        ):
            if calls:
                await self._add_results(calls, [INTERRUPTED] * len(calls))
            return None
        if not calls:
            return await self._answer(reply, context.messages)
        return await self._act(calls, is_cut=reply.finish in ("length", "refused"))

    async def _read(self) -> Context:
        """Read the messages that may be shown. Called again after each change of the conversation."""
        x = self._x
        name = x.take_name("context")
        store, id, window = x.kit.store, self._conversation.id, self._frame.window
        cache, newest = cache_of(store), list[ReadMessages]()

        async def read() -> Head | None:
            found = await cache.read_newest(store, id, most=most_tokens(window))
            newest[:] = [] if found is None else [found]
            return None if found is None else found.head

        self._head = head = await self._conversation.head(name, x.find(name, b.ValueRecorded), read)
        if newest:
            return await x.recorder.ask_store(lambda: context_of(store, newest[0], x.run))
        return await x.recorder.ask_store(
            lambda: read_context(store, id, upto=head, window=window, run=x.run, cache=cache)
        )

    async def _repair(self, context: Context) -> bool:
        """Add a tool result marked `repaired` for each tool call without one, and return whether results were added.

        Raises a risk flag if the conversation has faults. Calls of another run may still be running: they are left
        alone, unless that run has ended.
        """
        x = self._x
        if context.faults:
            x.state.raise_flag("the conversation was repaired", "; ".join(context.faults[:MOST_FAULTS]))
        if x.peek_name("repair") not in x.history.records and any(
            name in x.history.records for name in (x.peek_name("summary"), x.peek_name("model"), x.peek_name("said"))
        ):
            return False  # On replay: the turn was recorded without a repair, so none is added now.
        missing = [each for each in context.messages if each.seq == 0]
        broken = [each.message for each in missing if await self._has_ended(each.run)]
        if broken or x.peek_name("repair") in x.history.records:
            name = x.take_name("repair")
            added = [self._conversation.message("tool", NO_RESULT, call=each.call, repaired=True) for each in broken]
            await self._conversation.put_all(name, x.find(name, b.MessageSaid), added)
            return True
        return False

    async def _has_ended(self, run: str) -> bool:
        """Return whether a run will add no more results: it is this run, or it has ended, or it does not exist."""
        if run in ("", self._x.run):
            return True
        try:
            return (await self._x.recorder.ask_store(lambda: self._x.kit.store.get(run))).status in (
                "completed",
                "cancelled",
            )
        except NotFound:
            return True

    # Choose

    async def _choose(self, context: Context) -> Reply:
        """Return the next reply. The prompt is recorded by reference, or verbatim if the hook changed it."""
        fold = self._x.journal.fold
        at = PromptState(self._x.state.working.freeze(), fold.step or None, fold.since)
        made = build_prompt(self._frame, context, at, self._llm.build_context)
        reference = self._reference(made.prompt, made.choice.chosen.ranges, context)

        if self._llm.choose is ask_model:
            # Nothing uses the reply before it is stored together with its message; see `_record_reply`.
            return await self._ask("model", made.prompt, reference, is_flushed=False)

        async def ask(request: Prompt) -> Reply:
            if request is made.prompt:
                return await self._ask("model", request, reference)
            whole = {"model": self._llm.model().name, "request": plain(request)}
            return await self._ask("model", request, whole)

        return await self._llm.choose(self._run, made.prompt, ask)

    def _reference(self, request: Prompt, ranges: Iterable[tuple[int, int]], context: Context) -> dict[str, Any]:
        """Return the reference from which a prompt can be rebuilt."""
        found: dict[str, Any] = {
            "model": self._llm.model().name,
            "conversation": self._conversation.id,
            "head": self._head,
            "ranges": [list(each) for each in ranges],
            "frame": self._frame_name,
            "digest": digest_of(request),
        }
        if context.summaries:
            found["compaction"] = context.summaries[-1].seq
        return found

    async def _ask(self, name: str, request: Prompt, args: dict[str, Any], *, is_flushed: bool = True) -> Reply:
        """Ask the model, as a step. Its result is durable before anything uses it, unless the caller does that."""
        llm = self._llm

        async def ask(reference: dict[str, Any]) -> Any:
            call, pieces = current(), list[str]()

            def on_text(piece: str) -> None:
                pieces.append(piece)
                call._partial_from(lambda: join_surrogates("".join(pieces)) if pieces else None)

            reply = await llm.model().reply(request, on_text=on_text)
            pieces.clear()  # the recorded result replaces the partial one
            usage, cost = reply.usage, cost_of(reply.usage, llm.prices, reference["model"])
            call.spent(tokens=usage.input_tokens + usage.output_tokens, cost=cost)
            # Replace lone surrogates: the reply was paid for, so storing it must not fail.
            return join_surrogates_in(record_of(self._without_altered_thoughts(reply), llm.model().name))

        most = Spent(tokens=request.size + self._frame.reply)
        tool = _model_tool(name).with_call(ask, replace(MODEL, max_spend=most))
        tool.is_flushed = is_flushed
        return reply_of(await self._run.step(tool, args))

    def _without_altered_thoughts(self, reply: Reply) -> Reply:
        """Remove reasoning data in which a secret would be hidden: providers reject altered data."""
        kept = None if reply.thoughts is None else reply.thoughts.kept
        is_kept = self._x.kit.store.redaction.value(kept) == kept
        return reply if is_kept else msgspec.structs.replace(reply, thoughts=None)

    async def _record_reply(self, reply: Reply, calls: tuple[ToolCall, ...]) -> None:
        """Record the model's message and its decision."""
        name = self._x.take_name("said")
        content = content_of(PromptMessage(role="assistant", text=reply.text, calls=calls))
        kept = self._without_altered_thoughts(reply)
        whole = record_of(kept, "") if calls and kept.thoughts is not None else None
        added = [self._conversation.message("assistant", content, reply=whole)]
        # Nothing comes between an answer and the end of the run, which stores both.
        record = self._x.find(name, b.MessageSaid)
        await self._conversation.put_all(name, record, added, is_flushed=bool(calls))
        if record is None and not calls:  # A user may have interrupted, which a commit would have shown.
            await self._x.recorder.write_until_stored(self._x.journal.refresh)
        chosen = ", ".join(call.name for call in calls) or "answer"
        over = list(dict.fromkeys(["answer", *self._tools, chosen]))
        why = reply.text[:500] or "it did not say" if calls else "it has an answer"  # its text is in the message
        await self._run.decide("What next?", choose=chosen, over=over, because=why)

    def _check_progress(self, said: Sequence[StoredMessage]) -> None:
        """Raise NoProgress if the model made the same calls several times since the last user message."""
        since = max((place for place, each in enumerate(said) if each.message.role == "user"), default=-1)
        replies = [each.message for each in said[since + 1 :] if each.message.role == "assistant"]
        wanted = [[(call.name, call.args) for call in message.calls] for message in replies]
        last = wanted[-REPEATS:]
        if len(last) == REPEATS and last[0] and all(each == last[0] for each in last):
            names = ", ".join(name for name, _ in last[0])
            raise NoProgress(
                agent=self._llm.name,
                reason=f"the model called {names} with the same arguments {REPEATS} times",
                fix=AFTER_REPEATS,
            )

    # Act

    async def _act(self, calls: Sequence[ToolCall], *, is_cut: bool) -> Answer | None:
        """Execute the calls and record their results. Returns the final answer if the task was handed off."""
        left = [CUT_CALL] if is_cut and not is_object(calls[-1].args) else []
        made = calls[: len(calls) - len(left)]
        texts, is_interrupted = await self._execute(made)
        to = [(place, found) for place, call in enumerate(made) if (found := handoff_of(self._tools, call))]
        for place, each in to if is_interrupted else to[1:]:
            other = f"{each.agent.name} does not go on with it: {to[0][1].agent.name} does."
            texts[place] = INTERRUPTED if is_interrupted else other
        await self._add_results(calls, [*texts, *left])
        if not to or is_interrupted or await self._interrupts.is_interrupted("over", f"{current_scope().path}handoff:"):
            return None
        return await self._hand_off(to[0][1])

    async def _execute(self, calls: Sequence[ToolCall]) -> tuple[list[str], bool]:
        """Execute the calls concurrently, and return their results and whether a user interrupted.

        Calls that have not started when a user interrupts are skipped.
        """
        left: set[int] = set()
        tasks = [asyncio.ensure_future(self._execute_one(place, call, left)) for place, call in enumerate(calls, 1)]
        doing = asyncio.gather(*tasks)
        doing.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark the exception as retrieved
        try:
            is_interrupted = await self._interrupts.wait_for_calls(doing, tasks, left)
        except asyncio.CancelledError:
            doing.cancel()
            await asyncio.wait({doing})
            raise
        return list(await doing), is_interrupted

    async def _execute_one(self, place: int, call: ToolCall, left: set[int]) -> str:
        try:
            async with self._run.scope(f"call-{place}"):
                return await self._call(call)
        except asyncio.CancelledError:
            if place in left:
                return INTERRUPTED
            raise

    async def _call(self, call: ToolCall) -> str:
        tool = self._tools.get(call.name)
        if tool is None and any(name.startswith(current_scope().path) for name in self._x.history.records):
            tool = BUILT_IN.get(call.name)  # The call began before the tool was switched off.
        if tool is None:
            return f"There is no tool {call.name!r}. There are: {', '.join(self._tools) or 'none'}"
        return await tool.call(self._run, call, self._llm.normalise)

    async def _add_results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> None:
        """Add the result of each call to the conversation."""
        name = self._x.take_name("results")
        scope, last = current_scope().path, self._x.lookup.last_step_in
        added = [
            self._conversation.message("tool", text, call=call.id, number=last(f"{scope}call-{place}/") or self._asked)
            for place, (call, text) in enumerate(zip(calls, texts, strict=True), 1)
        ]
        await self._conversation.put_all(name, self._x.find(name, b.MessageSaid), added)

    # End

    async def _hand_off(self, to: Handoff) -> Answer:
        """Hand off the task to another agent permanently, with all facts and artifacts and any new user messages."""
        await self._interrupts.add_messages(f"{current_scope().path}handoff:")
        state = self._run.state
        ids = [each.artifact_id for each in state.artifacts if each.artifact_id in self._x.memory.artifacts]
        return Answer(await self._run.handoff(to.agent, to.input, facts=list(state.facts), artifacts=ids))

    async def _answer(self, reply: Reply, said: Sequence[StoredMessage]) -> Answer | None:
        """Return the answer in its declared type, or None to continue.

        An answer that was cut off is continued, and one that does not match the type is sent back, up to `REPAIRS`
        times.
        """
        if reply.finish == "refused":
            raise ModelRefused(agent=self._llm.name, text=reply.text[:500])
        text, replies = _join_answer(said, reply.text)
        if reply.finish == "length":
            if replies > REPAIRS:
                raise NoProgress(
                    agent=self._llm.name,
                    reason=f"the answer is still cut off after {replies} replies",
                    fix=AFTER_CUT_OFF,
                )
            await self._run.say(CUT_OFF, role="user")
            return None
        try:
            return Answer(self._value(text))
        except (InvalidValue, msgspec.DecodeError, RecursionError) as error:
            reason = error.at("answer") if isinstance(error, InvalidValue) else "it is not JSON"
            if _count_repairs(said) >= REPAIRS:
                raise NoProgress(
                    agent=self._llm.name,
                    reason=f"the answer does not match its type: {reason}",
                    fix=AFTER_MISFIT,
                ) from error
            how = "" if self._frame.output is None else ", with JSON only"
            await self._run.say(f"{MISFIT}: {reason}. Answer again{how}.", role="user")
            return None

    def _value(self, text: str) -> Any:
        if self._frame.output is not None:
            return self._llm.output.load(msgspec.json.decode(_json_of(text)))
        if not text.strip():
            raise InvalidValue(path="$", reason="empty")
        return text

    # Compaction

    async def _compact(self, context: Context) -> bool:
        """Let the model summarise the older messages if there are too many. If that fails, nothing changes."""
        said, room = context.messages, self._frame.room
        above, keep = self._llm.compact.limits(room)
        if not self._should_compact(said, above):
            return False
        lines = [tokens(summary_line(each)) + 1 for each in said]
        old = [said[place] for place in to_summarise([each.item for each in said], lines, keep, room, context.summary)]
        summary = await self._summary(context, old) if old else ""
        if not summary:
            return False
        gone = {each.seq for each in old}
        body, blobs = self._conversation.summary(summary, gone, [each.seq for each in said], context.summaries)
        name = self._x.take_name("compacted")
        await self._conversation.put(name, self._x.find(name, b.MessageSaid), [body], blobs)
        return True

    def _should_compact(self, said: Sequence[StoredMessage], above: int) -> bool:
        """Return whether the messages exceed `above` tokens and may be summarised now, not while an answer is being
        continued.
        """
        sizes = [each.message.size for each in said]
        if not said or sum(sizes) <= above or said[-1].message.text == CUT_OFF:
            return False
        own = (place for place, each in enumerate(said) if each.message.role == "assistant" and each.run == self._x.run)
        has_failed = NOT_SUMMARISED in self._x.state.working.freeze().risk_flags
        return has_outgrown(sizes, above, max(own, default=0) if has_failed else None)

    async def _summary(self, context: Context, old: Sequence[StoredMessage]) -> str:
        """Return the model's summary of the older messages, or "" (and set a risk flag) if the call fails."""
        request = summary_of(self._frame, context.summary, old)
        try:
            found = await self._ask(
                "summary", request, self._reference(request, ranges_of(each.seq for each in old), context)
            )
        except StepFailed as failed:
            why = failed.summary
        else:
            if found.text.strip() and found.finish != "refused":
                return found.text
            why = f"the model said: {found.text[:500]!r}"
        self._x.state.raise_flag(NOT_SUMMARISED, why)
        return ""


@cache
def _model_tool(name: str) -> Tool[..., Any, Any]:
    """Return the tool of all model calls with this name, without the call."""

    async def ask(reference: dict[str, Any]) -> Any:
        raise NotImplementedError

    tool: Tool[..., Any, Any] = Tool(ask, name, MODEL)
    tool.kind = "model"
    return tool


def _count_repairs(said: Sequence[StoredMessage]) -> int:
    """Return how often the model's answer was sent back since the last message of a user."""
    texts = (each.message.text for each in reversed(said) if each.message.role == "user")
    users = (text for text in texts if text != CUT_OFF)
    return sum(1 for _ in takewhile(lambda text: text.startswith(MISFIT), users))


def _join_answer(said: Sequence[StoredMessage], last: str) -> tuple[str, int]:
    """Return an answer joined from the pieces that were cut off, and the number of replies. A piece may be empty."""
    pieces, replies, before = [last], 1, list(said)
    while before and before.pop().message.text == CUT_OFF:
        replies += 1
        if before and before[-1].message.role == "assistant":
            pieces.append(before.pop().message.text)
    return "".join(reversed(pieces)), replies


def _json_of(text: str) -> str:
    """Return the JSON in an answer, without a code fence around it."""
    stripped = text.strip()
    if stripped.startswith("```"):
        stripped = stripped.split("\n", 1)[-1].rsplit("```", 1)[0]
    return stripped
