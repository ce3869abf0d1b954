"""The loop of a model: look at what is known and what was said, let the model choose, do it, put it down; again.

It is an agent like any other, built on turns: what it goes by is its conversation and its state, so it is entered where
it was, whatever died. A call of the model is a step: recorded, paid for once, asked for by reference.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from limpet.engine.talks import INTERRUPT, USER
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
        if await self._is_interrupted(begun=self._x.peek("model")):
            return None
        reply, stored = await self._choose(context)
        await self._note(reply, stored)
        if await self._is_interrupted(begun=here().path + "call-", others=("say", "results")):
            await self._put_results(reply.calls, [INTERRUPTED] * len(reply.calls))
            return None
        if not reply.calls:
            return await self._answer(reply, context.said)
        await self._put_results(reply.calls, await self._do(reply.calls))
        return None

    # Hearing

    async def _hear(self) -> None:
        """What people said since the last turn; only when the turn begins, or what follows would not be the same."""
        while self._has_signal():
            try:
                text = await self._run.receive("user", str, timeout=0)
            except Expired:
                return
            await self._run.say(text, role="user")

    def _has_signal(self) -> bool:
        name = self._x.peek("receive:user")
        if name in self._x.history.records:
            return True
        is_new = self._x.peek("context") not in self._x.history.records
        return is_new and bool(self._x.history.signals.get("user"))

    async def _said(self, what: str) -> tuple[list[Said], Summary | None]:
        """What was said, as far back as it may be shown, and the summary of what came before."""
        name = self._x.take(what)
        head = await self._talks.head(name, self._x.find(name, b.ValueRecorded))
        found: list[Said] = []
        size, summary = 0, None
        async for each in entries(self._x.kit.store, self._talks.id, upto=head):
            if isinstance(each, Summary):
                summary = each
                continue
            content = await self._x.unpack(each.message.content)
            message = message_of(each.message.role, content, each.message.call or "")
            found.append(Said(each.seq, message, each.message.pinned))
            size += _size(message)
            if size > 2 * self._llm.window or (summary is not None and not isinstance(each, Entry)):
                break
        return found[::-1], summary

    async def _repair(self, said: list[Said]) -> list[Said]:
        """Put a marked result behind calls that never got one, and say so."""
        name = self._x.peek("repair")
        whole = mended(said)
        missing = [each.message for each in whole.said if each.seq == 0]
        record = self._x.history.records.get(name)
        if not missing and record is None:
            return list(whole.said)
        name = self._x.take("repair")
        added = [self._talks.message("tool", NO_RESULT, call=each.call, repaired=True) for each in missing]
        await self._talks.put(
            name,
            self._x.find(name, b.MessageSaid),
            [message for message, _ in added],
            [blob for _, blobs in added for blob in blobs],
        )
        for fault in whole.faults:
            self._x.raise_flag("the conversation was repaired", fault)
        return list(whole.said)

    # Choosing

    async def _choose(self, said: Sequence[Said], summary: Summary | None) -> tuple[Reply, Any]:
        """What the model says to what it sees, asked by reference."""
        before = await self._x.unpack(summary.compacted.summary) if summary is not None else None
        request, reference = self._request(said, before)
        found = await self._ask("model", request, reference)
        calls = tuple(Call(**each) for each in found.get("calls", ()))
        return Reply(text=found.get("text", ""), calls=calls, finish=found.get("finish", "stop")), found

    def _request(self, said: Sequence[Said], summary: Any) -> tuple[ModelRequest, dict[str, Any]]:
        """The slice that fits, and how it can be made again."""
        llm = self._llm
        known, _ = describe(self._x.working.freeze(), step=self._x.journal.fold.step, room=llm.room // 3)
        before = f"\n\nWhat was said before, in short:\n{summary}" if summary else ""
        room = llm.room - tokens(known) - tokens(before)
        items = [_item(each) for each in said]
        chosen = select(items, room)
        if not chosen.seqs and said:
            chosen = select(items[-1:], 10**9)
        left = f"\n\n({chosen.left_out} earlier messages are not shown.)" if chosen.left_out else ""
        system = "\n\n".join(filter(None, (llm.instructions, known and f"What you know:\n{known}"))) + before + left
        wanted = set(chosen.seqs)
        shown = [_cut(each.message, room) for each in said if each.seq in wanted or each.seq == 0]
        request = ModelRequest(
            messages=(Message(role="system", text=system), *shown),
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
        """Whether the model wants the very same again and again."""
        wanted = [
            [(call.name, call.args) for call in each.message.calls] for each in said if each.message.role == "assistant"
        ]
        last = wanted[-REPEATS:]
        if len(last) == REPEATS and last[0] and all(each == last[0] for each in last):
            names = ", ".join(name for name, _ in last[0])
            raise NoProgress(
                agent=self._llm.name, reason=f"the model called {names} with the same arguments {REPEATS} times"
            )

    # Doing

    async def _do(self, calls: Sequence[Call]) -> None:
        """Call what the model wants, at once; every call has its result in the conversation."""
        texts = await asyncio.gather(*(self._one(place, call) for place, call in enumerate(calls, 1)))
        name = self._x.take("results")
        added = [self._talks.message("tool", text, call=call.id) for call, text in zip(calls, texts, strict=True)]
        blobs = [blob for _, each in added for blob in each]
        await self._talks.put(name, self._x.find(name, b.MessageSaid), [message for message, _ in added], blobs)

    async def _one(self, place: int, call: Call) -> str:
        async with self._run.scope(f"call-{place}"):
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

    async def _compact(self, said: list[Said], summary: Summary | None) -> tuple[list[Said], Summary | None]:
        """Let the model summarise the older half, when there is too much; if it cannot, everything stays as it is."""
        llm = self._llm
        above = llm.compact.above or llm.room * 3 // 4
        keep = llm.compact.keep or above // 3
        name = self._x.peek("compacted")
        if name not in self._x.history.records and sum(_size(each.message) for each in said) <= above:
            return said, summary
        newest = set(select([_item(each) for each in said if not each.pinned], keep).seqs)
        old = [each for each in said if each.seq and each.seq not in newest and not each.pinned]
        old = old[
            : next((place for place, each in enumerate(old) if each.seq > min(newest, default=1 << 62)), len(old))
        ]
        if not old:
            return said, summary
        before = await self._x.unpack(summary.compacted.summary) if summary is not None else ""
        told = "\n".join(f"{each.message.role}: {_cut(each.message, llm.room // 4).text}" for each in old)
        request = ModelRequest(
            messages=(
                Message(role="system", text=SUMMARY),
                Message(role="user", text=_short(f"{before}\n{told}", llm.room)),
            ),
            max_tokens=REPLY,
        )
        first = summary.compacted.first if summary is not None else old[0].seq
        last = old[-1].seq
        reference = {"model": llm.model().name, "conversation": self._talks.id, "ranges": [[first, last]]}
        try:
            found = await self._ask("summary", request, {**reference, "digest": _digest(request)})
        except StepFailed:
            return said, summary
        text = found.get("text", "")
        if not text:
            return said, summary
        pinned = tuple(each.seq for each in said if each.pinned and first <= each.seq <= last)
        packed, blobs = self._x.kit.store.pack(text)
        level = summary.compacted.level + 1 if summary is not None else 1
        body = b.ConversationCompacted(
            first=first, last=last, summary=packed, level=level, run=self._x.run, pinned=pinned
        )
        name = self._x.take("compacted")
        await self._talks.put(name, self._x.find(name, b.MessageSaid), [body], blobs)
        gone = {each.seq for each in old}
        return [each for each in said if each.seq not in gone], Summary(0, 0, body)


def _digest(request: ModelRequest) -> str:
    """Of exactly what a model is asked."""
    return sha256(encode(request)).hexdigest()


def _item(said: Said) -> Item:
    message = said.message
    calls = tuple(call.id for call in message.calls)
    return Item(said.seq, message.role, _size(message), calls, message.call, said.pinned)


def _size(message: Message) -> int:
    return tokens(message.text) + sum(tokens(call.args) + tokens(call.name) + EACH for call in message.calls) + EACH


def _spec_size(each: Offered) -> int:
    return tokens(each.spec.description) + tokens(canonical(each.spec.schema).decode()) + EACH


def _cut(message: Message, room: int) -> Message:
    """A message that is too long for the window by itself, without its middle."""
    return msgspec.structs.replace(message, text=_short(message.text, room)) if tokens(message.text) > room else message


def _short(text: str, room: int) -> str:
    if tokens(text) <= room:
        return text
    half = room  # characters, of which a token has about three: so this is less than half of what fits
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters are left out …]\n{text[-half:]}"


def _json_of(text: str) -> str:
    """The JSON in an answer that may be wrapped in a fence."""
    stripped = text.strip()
    if stripped.startswith("```"):
        stripped = stripped.split("\n", 1)[-1].rsplit("```", 1)[0]
    return stripped
