"""The loop of a model: look at what is known and what was said, let the model choose, do it, put it down; again.

It is an agent like any other, built on turns: what it goes by is its conversation and its state, so it is entered where
it was, whatever died. A call of the model is a step: recorded, paid for once, asked for by reference.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from limpet.context.window import EACH, LEAST, Item, Selected, describe, select, short, tokens, units
from limpet.engine.agents import Agent, Budget, agent
from limpet.engine.call import current
from limpet.engine.execution import here
from limpet.engine.externals import External
from limpet.engine.run import Run
from limpet.engine.shapes import Shape, shape
from limpet.engine.talks import INTERRUPT, USER, text_of
from limpet.engine.tools import Tool
from limpet.engine.traits import Traits
from limpet.errors import ContextTooSmall, Expired, InvalidValue, NoProgress, StepFailed
from limpet.events import Spent, Wait, canonical
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.journal import Summary, entries
from limpet.llm.model import Call, Message, Model, ModelRequest, Reply
from limpet.llm.tools import MOST_SHOWN, Offered, offered
from limpet.llm.transcript import NO_RESULT, Said, mended, message_of
from limpet.policy.retry import Retry
from limpet.policy.risk import Approvals

__all__ = ["LLM", "Compaction", "llm_agent"]

PATIENCE = Retry(6, first="1s", cap="30s")
WITHIN = 5 * 60 * 1_000_000
REPLY = 4_000
REPAIRS, REPEATS = 3, 4
INTERRUPTED = "interrupted by the user"
NOTHING_SAID = "(Nothing was said.)"
# What people are asked before something begins.
BEFORE = ("ask", "approval")
# Where an interrupt is taken while something is done.
MEANWHILE = "meanwhile"
MOST_FAULTS = 20
# Arguments up to this many tokens are never cut.
SMALL = 16
MISFIT = "Your answer does not fit what is asked for"
SUMMARY = (
    "Summarise this part of a conversation for yourself, so that you can go on with the task without it: what is "
    "wanted, what was found out and decided, names, numbers and ids, what is still open. Only the summary."
)


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """When messages are summarised: from so many tokens on, down to so many of the newest; none means by the window."""

    above: int | None = None
    keep: int | None = None


@dataclass(frozen=True, kw_only=True)
class LLM:
    """What an agent of a model is made of."""

    name: str
    model: Callable[[], Model]
    instructions: str
    tools: Mapping[str, Offered]
    output: Shape
    wants_text: bool
    window: int
    max_turns: int
    compact: Compaction = field(default_factory=Compaction)
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of a million tokens in and out, by the model's name."""

    @property
    def room(self) -> int:
        """What messages may take of the window."""
        fixed = tokens(self.instructions) + sum(_spec_size(each) for each in self.tools.values())
        if not self.wants_text:
            fixed += tokens(canonical(self.output.schema()).decode())
        left = self.window - fixed - REPLY - self.window // 8
        if left < self.window // 8:
            raise ContextTooSmall(needed=fixed + REPLY, window=self.window)
        return left


class Context(NamedTuple):
    """What was said, as far back as it may be shown, and the summaries of what came before, the oldest first."""

    said: list[Said]
    summaries: tuple[Summary, ...] = ()
    goes_back: bool = False
    """More was said before that, and nothing stands for it."""


class Answer(NamedTuple):
    """The loop is over."""

    value: Any


def llm_agent(  # noqa: PLR0913 - all by name, and few at a time
    name: str,
    *,
    model: Callable[[], Model],
    instructions: str,
    input: Any = str,
    output: Any = str,
    tools: Sequence[Tool[..., Any, Any] | Agent[Any, Any] | External[..., Any]] = (),
    version: str = "1",
    budget: Budget | None = None,
    approvals: Approvals | None = None,
    compact: Compaction | None = None,
    window: int = 100_000,
    max_turns: int = 100,
    prices: Mapping[str, tuple[float, float]] | None = None,
    **more: Any,
) -> Agent[Any, Any]:
    """An agent that a model drives with some tools."""
    llm = LLM(
        name=name,
        model=model,
        instructions=instructions,
        tools=offered(tools),
        output=shape(output),
        wants_text=output is str,
        window=window,
        max_turns=max_turns,
        compact=compact or Compaction(),
        prices=prices or {},
    )
    assert llm.room

    async def drive(run: Run[Any], given: Any) -> Any:
        loop = _Loop(llm, run)
        await loop.begin(given)
        async for _ in run.turns(max=llm.max_turns):
            found = await loop.turn()
            if found is not None:
                return found.value
        raise NoProgress(agent=name, reason=f"{llm.max_turns} turns were not enough")

    drive.__annotations__ = {"run": Run[Any], "given": input, "return": output}
    drive.__doc__ = instructions
    made: Agent[Any, Any] = agent(name=name, version=version, budget=budget, approvals=approvals, **more)(drive)
    made.llm = llm
    return made


class _Loop:
    """The loop of one execution."""

    def __init__(self, llm: LLM, run: Run[Any]) -> None:
        self._llm, self._run, self._x, self._talks = llm, run, run.execution, run.talks

    async def begin(self, given: Any) -> None:
        """What it is given is what a user says first; where the run was started in a conversation, it is there."""
        created = self._x.memory.created
        assert created is not None
        text = given if isinstance(given, str) else canonical(shape(type(given)).dump(given)).decode()
        if created.conversation is None or not isinstance(given, str):
            await self._run.say(text, role="user")

    async def turn(self) -> Answer | None:
        """Once round; what it comes to, if that is the end."""
        await self._hear()
        context = await self._said("context")
        context = await self._repair(context)
        context = await self._compact(context)
        self._check_progress(context.said)
        if await self._is_interrupted("early", self._x.peek("model")):
            return None
        reply, stored = await self._choose(context)
        await self._note(reply, stored)
        if await self._is_interrupted("late", f"{here().path}call-", self._x.peek("results"), self._x.peek("say")):
            if reply.calls:
                await self._put_results(reply.calls, [INTERRUPTED] * len(reply.calls))
            return None
        if not reply.calls:
            return await self._answer(reply, context.said)
        await self._put_results(reply.calls, await self._do(reply.calls))
        return None

    # Hearing

    async def _hear(self) -> None:
        """What people said since the last turn; only when the turn begins, or what follows would not be the same."""
        context = self._x.peek("context")
        while self._is_there(USER, "", context):
            try:
                text = await self._run.receive(USER, str, timeout=0)
            except Expired:
                break
            await self._run.say(text, role="user")
        await self._is_interrupted("", context)  # there is nothing to interrupt yet

    def _is_there(self, signal: str, scope: str, *begun: str) -> bool:
        """Whether a signal was taken here, or can be: only where nothing is recorded that begins so, behind it."""
        x = self._x
        place = f"{here().path}{scope}/" if scope else here().path
        taken = f"{place}receive:{signal}#1" if scope else x.peek(f"receive:{signal}")
        if taken in x.history.records:
            return True
        return bool(x.history.signals.get(signal)) and not any(name.startswith(begun) for name in x.history.records)

    async def _is_interrupted(self, where: str, *begun: str) -> bool:
        """Whether a user wants this turn to end, the same in every execution."""
        if not where:
            while self._is_there(INTERRUPT, "", *begun):
                await self._take_interrupt()
            return False
        if not self._is_there(INTERRUPT, where, *begun):
            return False
        async with self._run.scope(where):
            await self._take_interrupt()
        return True

    async def _take_interrupt(self) -> None:
        anything: Any = Any
        with suppress(Expired):
            await self._run.receive(INTERRUPT, anything, timeout=0)

    async def _said(self, what: str) -> Context:
        """What was said, as far back as it may be shown, and the summaries of what came before."""
        name = self._x.take(what)
        head = await self._talks.head(name, self._x.find(name, b.ValueRecorded))
        found: list[Said] = []
        summaries: list[Summary] = []
        size = 0
        async for each in entries(self._x.kit.store, self._talks.id, upto=head):
            if size > 2 * self._llm.window:
                while found and found[-1].message.role == "tool":
                    found.pop()  # what wanted it called is further back
                return Context(found[::-1], tuple(summaries[::-1]), goes_back=True)
            if isinstance(each, Summary):
                summaries.append(each)
                continue
            content = await self._x.unpack(each.message.content)
            message = message_of(each.message.role, content, each.message.call or "")
            found.append(Said(each.seq, message, each.message.pinned))
            size += _size(message)
        return Context(found[::-1], tuple(summaries[::-1]))

    async def _repair(self, context: Context) -> Context:
        """Put a marked result behind calls that never got one, and say so."""
        name = self._x.peek("repair")
        whole = mended(context.said)
        missing = [each.message for each in whole.said if each.seq == 0]
        if missing or name in self._x.history.records:
            name = self._x.take("repair")
            added = [self._talks.message("tool", NO_RESULT, call=each.call, repaired=True) for each in missing]
            await self._talks.put(
                name,
                self._x.find(name, b.MessageSaid),
                [message for message, _ in added],
                [blob for _, blobs in added for blob in blobs],
            )
        if whole.faults:
            self._x.raise_flag("the conversation was repaired", "; ".join(whole.faults[:MOST_FAULTS]))
        return context._replace(said=list(whole.said))

    # Choosing

    async def _choose(self, context: Context) -> tuple[Reply, Any]:
        """What the model says to what it sees, asked by reference."""
        request, reference = self._request(context, await self._before(context))
        found = await self._ask("model", request, reference)
        calls = tuple(Call(**each) for each in found.get("calls", ()))
        return Reply(text=found.get("text", ""), calls=calls, finish=found.get("finish", "stop")), found

    async def _before(self, context: Context) -> str:
        """What summaries say, as much as may be shown."""
        texts = [await self._x.unpack(each.compacted.summary) for each in context.summaries]
        return short("\n".join(text_of(each) for each in texts), self._llm.room // 3)

    def _request(self, context: Context, summary: str) -> tuple[ModelRequest, dict[str, Any]]:
        """The slice that fits, and how it can be made again."""
        llm = self._llm
        known, _ = describe(self._x.working.freeze(), step=self._x.journal.fold.step, room=llm.room // 3)
        chosen = self._select(context.said, llm.room - tokens(known) - tokens(summary))
        shown = [context.said[place].message for place in chosen.places]
        if chosen.limit is not None:
            shown = [_cut(each, chosen.limit) for each in shown]
        parts = (
            llm.instructions,
            known and f"What you know:\n{known}",
            summary and f"What was said before, in short:\n{summary}",
            _left_out(chosen.left_out, context.goes_back),
        )
        system = "\n\n".join(filter(None, parts))
        request = ModelRequest(
            messages=(Message(role="system", text=system), *(shown or [Message(role="user", text=NOTHING_SAID)])),
            tools=tuple(each.spec for each in llm.tools.values()),
            output=None if llm.wants_text else llm.output.schema(),
            max_tokens=REPLY,
        )
        reference = {
            "model": llm.model().name,
            "conversation": self._talks.id,
            "ranges": [list(each) for each in chosen.ranges],
            "digest": _digest(request),
        }
        return request, reference

    def _select(self, said: Sequence[Said], room: int) -> Selected:
        items = [_item(each) for each in said]
        chosen = select(items, room)
        if said and not chosen.places:
            *_, last = units(items)
            raise ContextTooSmall(needed=sum(item.size for item in last), window=self._llm.window)
        return chosen

    async def _ask(self, name: str, request: ModelRequest, reference: dict[str, Any]) -> dict[str, Any]:
        """One call of the model, as a step; its completion is durable before anything goes by it."""
        llm = self._llm
        size = sum(_size(each) for each in request.messages) + sum(_spec_size(each) for each in llm.tools.values())

        async def ask(reference: dict[str, Any]) -> dict[str, Any]:
            call, pieces = current(), list[str]()

            def told(piece: str) -> None:
                pieces.append(piece)
                call.partial("".join(pieces))

            reply = await llm.model().reply(request, told=told)
            call.partial_value = None  # from here on the result says it
            usage = reply.usage
            price = llm.prices.get(reference["model"], (0.0, 0.0))
            cost = usage.cost or (usage.input_tokens * price[0] + usage.output_tokens * price[1]) / 1e6
            call.spent(tokens=usage.input_tokens + usage.output_tokens, cost=cost)
            found: dict[str, Any] = {"text": reply.text, "finish": reply.finish, "model": reply.model}
            if reply.calls:
                found["calls"] = [msgspec.to_builtins(each) for each in reply.calls]
            return found

        most = Spent(tokens=size + REPLY)
        tool: Tool[..., Any, Any] = Tool(ask, name, Traits(effect="none", retry=PATIENCE, timeout=WITHIN, most=most))
        tool.kind = "model"
        found: dict[str, Any] = await self._run.step(tool, reference)
        return found

    async def _note(self, reply: Reply, stored: Any) -> None:
        """Put down what the model said and chose."""
        name = self._x.take("said")
        message, blobs = self._talks.message("assistant", stored)
        await self._talks.put(name, self._x.find(name, b.MessageSaid), [message], blobs)
        chosen = ", ".join(call.name for call in reply.calls) or "answer"
        over = list(dict.fromkeys(["answer", *self._llm.tools, chosen]))
        why = reply.text[:500] or "it did not say" if reply.calls else "it has an answer"  # which is in the message
        await self._run.decide("What next?", choose=chosen, over=over, because=why)

    def _check_progress(self, said: Sequence[Said]) -> None:
        """Whether the model wants the very same again and again, since somebody said something."""
        since = max((place for place, each in enumerate(said) if each.message.role == "user"), default=-1)
        asked = [each.message for each in said[since + 1 :] if each.message.role == "assistant"]
        wanted = [[(call.name, call.args) for call in message.calls] for message in asked]
        last = wanted[-REPEATS:]
        if len(last) == REPEATS and last[0] and all(each == last[0] for each in last):
            names = ", ".join(name for name, _ in last[0])
            raise NoProgress(
                agent=self._llm.name, reason=f"the model called {names} with the same arguments {REPEATS} times"
            )

    # Doing

    async def _do(self, calls: Sequence[Call]) -> list[str]:
        """Call what the model wants, at once; what has not begun when a user interrupts is left."""
        left: set[int] = set()
        tasks = [asyncio.ensure_future(self._one(place, call, left)) for place, call in enumerate(calls, 1)]
        doing = asyncio.gather(*tasks)
        doing.add_done_callback(lambda done: done.cancelled() or done.exception())  # somebody has looked
        try:
            with self._listening() as heard:
                await self._attend(doing, tasks, left, heard)
        except asyncio.CancelledError:
            doing.cancel()
            await asyncio.wait({doing})
            raise
        return await doing

    async def _attend(
        self,
        doing: "asyncio.Future[Any]",
        tasks: "Sequence[asyncio.Future[str]]",
        left: set[int],
        heard: asyncio.Event,
    ) -> None:
        """Until all is done: when a user interrupts, whatever waits for a person before it begins is taken back."""
        is_interrupted = False
        while not doing.done():
            heard.clear()
            if not is_interrupted and self._is_there(INTERRUPT, MEANWHILE):
                async with self._run.scope(MEANWHILE):
                    await self._take_interrupt()
                is_interrupted = True
            if is_interrupted:
                self._leave(tasks, left)
            waiting: asyncio.Future[Any] = asyncio.ensure_future(heard.wait())
            try:
                await asyncio.wait([doing, waiting], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()

    @contextmanager
    def _listening(self) -> Iterator[asyncio.Event]:
        """Hear of whatever comes meanwhile; an interrupt wakes the run, should it be parked."""
        heard, wait = asyncio.Event(), Wait(what="signal", key=INTERRUPT)
        self._x.ears[wait] = heard.set
        try:
            yield heard
        finally:
            self._x.ears.pop(wait, None)

    def _leave(self, tasks: "Sequence[asyncio.Future[str]]", left: set[int]) -> None:
        for place, task in enumerate(tasks, 1):
            if place not in left and not task.done() and self._has_not_begun(f"{here().path}call-{place}/"):
                left.add(place)
                task.cancel()

    def _has_not_begun(self, scope: str) -> bool:
        """Whether a call waits for a person before it begins; or did, and was taken back."""
        x = self._x
        for slot in x.waiting.values():
            if slot.name.startswith(scope) and slot.request is not None and slot.request.kind in BEFORE:
                return True
        records = (record for name, record in x.history.records.items() if name.startswith(scope))
        return any(isinstance(each.settled, b.WaitEnded) and each.settled.how == "withdrawn" for each in records)

    async def _put_results(self, calls: Sequence[Call], texts: Sequence[str]) -> None:
        """Every call has its result in the conversation."""
        name = self._x.take("results")
        added = [self._talks.message("tool", text, call=call.id) for call, text in zip(calls, texts, strict=True)]
        blobs = [blob for _, each in added for blob in each]
        await self._talks.put(name, self._x.find(name, b.MessageSaid), [message for message, _ in added], blobs)

    async def _one(self, place: int, call: Call, left: set[int]) -> str:
        try:
            async with self._run.scope(f"call-{place}"):
                return await self._call(call)
        except asyncio.CancelledError:
            if place in left:
                return INTERRUPTED
            raise

    async def _call(self, call: Call) -> str:
        tool = self._llm.tools.get(call.name)
        if tool is None:
            return f"There is no tool {call.name!r}. There are: {', '.join(self._llm.tools)}"
        limits = self._x.journal.fold.working.budget
        most = limits.max_artifact_bytes_in_context if limits is not None else None
        return await tool.call(self._run, call, most=most or MOST_SHOWN)

    # Ending

    async def _answer(self, reply: Reply, said: Sequence[Said]) -> Answer | None:
        """The answer as it is declared; one that does not fit goes back, a few times."""
        if self._llm.wants_text:
            return Answer(reply.text)
        try:
            return Answer(self._llm.output.load(msgspec.json.decode(_json_of(reply.text))))
        except (InvalidValue, msgspec.DecodeError) as error:
            reason = error.reason if isinstance(error, InvalidValue) else "it is not JSON"
            if sum(each.message.text.startswith(MISFIT) for each in said[-2 * REPAIRS :]) >= REPAIRS:
                raise NoProgress(agent=self._llm.name, reason=f"its answer does not fit: {reason}") from error
            await self._run.say(f"{MISFIT}: {reason}. Answer again, with JSON only.", role="user")
            return None

    # Compaction

    async def _compact(self, context: Context) -> Context:
        """Let the model summarise the older part, when there is too much; if it cannot, everything stays as it is."""
        llm = self._llm
        above = llm.compact.above or llm.room * 3 // 4
        is_made = self._x.peek("compacted") in self._x.history.records
        if not is_made and sum(_size(each.message) for each in context.said) <= above:
            return context
        before = await self._before(context)
        old = _oldest(context.said, llm.compact.keep or above // 3, llm.room - tokens(before))
        if not old:
            return context
        request = ModelRequest(
            messages=(
                Message(role="system", text=SUMMARY),
                Message(role="user", text=short("\n".join(filter(None, (before, *map(_told, old)))), llm.room)),
            ),
            max_tokens=REPLY,
        )
        gone = {each.seq for each in old}
        first = min([*gone, *(each.compacted.first for each in context.summaries)])
        last = max([*gone, *(each.compacted.last for each in context.summaries)])
        reference = {"model": llm.model().name, "conversation": self._talks.id, "ranges": [[first, last]]}
        try:
            found = await self._ask("summary", request, {**reference, "digest": _digest(request)})
        except StepFailed:
            return context
        text = found.get("text", "")
        if not text:
            return context
        kept = [each for each in context.said if each.seq not in gone]
        packed, blobs = self._x.kit.store.pack(text)
        body = b.ConversationCompacted(
            first=first,
            last=last,
            summary=packed,
            level=max((each.compacted.level for each in context.summaries), default=0) + 1,
            run=self._x.run,
            pinned=tuple(sorted(each.seq for each in kept if first <= each.seq <= last)),
        )
        name = self._x.take("compacted")
        await self._talks.put(name, self._x.find(name, b.MessageSaid), [body], blobs)
        return Context(kept, (Summary(0, 0, body),), context.goes_back)


def _oldest(said: Sequence[Said], keep: int, room: int) -> list[Said]:
    """What a summary can stand for: whole units before the newest, as much as fits into a request; no pinned ones."""
    items = [_item(each) for each in said]
    newest = select([item._replace(pinned=False) for item in items], keep)
    first = newest.places[0] if newest.places else len(items)
    since = min((item.seq for item in items[first:] if item.seq), default=1 << 62)
    found: list[Said] = []
    place = used = 0
    for unit in units(items):
        begin, place = place, place + len(unit)
        used += sum(tokens(_told(each)) + 1 for each in said[begin:place])
        if begin >= first or unit[0].seq > since or (found and used > room):
            break
        if not any(item.pinned for item in unit):
            found += [each for each in said[begin:place] if 0 < each.seq < since]
    return found


def _told(said: Said) -> str:
    """A message as it is summarised."""
    message = said.message
    wanted = "".join(f" [calls {call.name}({call.args})]" for call in message.calls)
    return f"{message.role}: {message.text}{wanted}"


def _left_out(count: int, goes_back: bool) -> str:
    if not count and not goes_back:
        return ""
    return f"({'More than ' if goes_back else ''}{count} earlier messages are not shown.)"


def _digest(request: ModelRequest) -> str:
    """Of exactly what a model is asked."""
    return sha256(encode(request)).hexdigest()


def _item(said: Said) -> Item:
    message = said.message
    calls = tuple(call.id for call in message.calls)
    bare = _bare(message)
    least = _size(bare) + min(tokens(message.text), LEAST)
    return Item(said.seq, message.role, _size(message), calls, message.call, said.pinned, least)


def _size(message: Message) -> int:
    calls = sum(tokens(call.args) + tokens(call.name) + tokens(call.id) + EACH for call in message.calls)
    return tokens(message.text) + tokens(message.call) + calls + EACH


def _spec_size(each: Offered) -> int:
    spec = each.spec
    return tokens(spec.name) + tokens(spec.description) + tokens(canonical(spec.schema).decode()) + EACH


def _bare(message: Message) -> Message:
    """A message without its text, and without arguments that are long."""
    calls = tuple(
        call
        if tokens(call.args) <= SMALL
        else msgspec.structs.replace(call, args=f'{{"left_out":"{len(call.args)} characters"}}')
        for call in message.calls
    )
    return msgspec.structs.replace(message, text="", calls=calls)


def _cut(message: Message, limit: int) -> Message:
    """A message of at most so many tokens, as far as it can be cut: without long arguments, and the middle of it."""
    if _size(message) <= limit:
        return message
    bare = _bare(message)
    return msgspec.structs.replace(bare, text=short(message.text, max(limit - _size(bare), LEAST)))


def _json_of(text: str) -> str:
    """The JSON in an answer that may be wrapped in a fence."""
    stripped = text.strip()
    if stripped.startswith("```"):
        stripped = stripped.split("\n", 1)[-1].rsplit("```", 1)[0]
    return stripped
