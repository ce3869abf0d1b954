"""What a model is asked: made of what never changes, what the agent knows, and what was said; the same from the same.

A request is recorded by reference: the conversation and where it ended, which of its messages were chosen, and a digest
of exactly what was asked. So it can be made again, and whoever wonders what a model saw can look.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from limpet.context.slice import describe
from limpet.context.window import EACH, LEAST, Item, Selected, select, short, tokens, tokens_of, units
from limpet.engine.run.conversation import text_of
from limpet.errors import ContextTooSmall
from limpet.events import canonical
from limpet.events.values import encode
from limpet.journal import Entry, Summary, entries
from limpet.llm.model import Prompt, PromptMessage, Thoughts, ToolSpec
from limpet.llm.transcript import StoredMessage, message_of, repair, replied
from limpet.state import AgentState
from limpet.stores import Store

__all__ = [
    "BuildContext",
    "BuiltPrompt",
    "Context",
    "ContextChoice",
    "ContextView",
    "Frame",
    "build_prompt",
    "choose_context",
    "digest_of",
    "frame_name",
    "item_of",
    "plain",
    "read_context",
    "size_of",
    "spec_size",
    "summary_line",
    "summary_of",
]

REPLY = 4_000
# Arguments up to this many tokens are never cut.
SMALL = 16
NOTHING_SAID = "(Nothing was said.)"
SUMMARY = (
    "Summarise this part of a conversation for yourself, so that you can go on with the task without it: what is "
    "wanted, what was found out and decided, names, numbers and ids, what is still open. Only the summary."
)


class Frame(Struct, frozen=True, kw_only=True, dict=True):
    """What is the same in every request of an agent; stored once."""

    instructions: str
    tools: tuple[ToolSpec, ...] = ()
    output: dict[str, Any] | None = None
    window: int = 100_000
    reply: int = REPLY
    """How many tokens a reply may have."""

    @cached_property
    def room(self) -> int:
        """What messages may take of the window."""
        fixed = tokens(self.instructions) + sum(map(spec_size, self.tools))
        if self.output is not None:
            fixed += tokens(canonical(self.output).decode())
        left = self.window - fixed - self.reply - self.window // 8
        if left < self.window // 8:
            raise ContextTooSmall(needed=fixed + self.reply, window=self.window)
        return left


def frame_name(blob: str) -> str:
    """What a frame is recorded as in a run's log, and named by in its requests."""
    return f"frame:{blob[:12]}"


class Context(NamedTuple):
    """What was said, as far back as it may be shown, and what stands for what came before."""

    said: tuple[StoredMessage, ...]
    faults: tuple[str, ...] = ()
    """What had to be mended."""
    summaries: tuple[Summary, ...] = ()
    """The oldest first."""
    before: str = ""
    """What they say."""
    goes_back: bool = False
    """More was said before that, and nothing stands for it."""


async def read_context(store: Store, conversation: str, *, upto: int, window: int, run: str) -> Context:
    """What was said in a conversation up to a place in it, for a run: no more than a model could ever see."""
    found: list[Entry | Summary] = []
    size, goes_back = 0, False
    async for each in entries(store, conversation, upto=upto):
        if size > 2 * window:
            while found and isinstance(found[-1], Entry) and found[-1].message.role == "tool":
                found.pop()  # what wanted it called is further back
            goes_back = True
            break
        found.append(each)
        size += tokens_of(each.content.size) + EACH if isinstance(each, Entry) else 0
    found.reverse()
    read = list(zip(found, await store.unpack_all([each.content for each in found]), strict=True))
    plain, faults = repair([_said(each, content) for each, content in read if isinstance(each, Entry)], run)
    said = await _with_thoughts(store, plain, [each for each in found if isinstance(each, Entry)], run)
    summaries = tuple(each for each in found if isinstance(each, Summary))
    before = "\n".join(text_of(content) for each, content in read if isinstance(each, Summary))
    return Context(said, faults, summaries, before, goes_back)


def _said(each: Entry, content: Any) -> StoredMessage:
    message = message_of(each.message.role, content, each.message.call or "")
    return StoredMessage(each.seq, message, each.message.pinned, each.message.run or "", each.message.repaired)


async def _with_thoughts(
    store: Store, said: Sequence[StoredMessage], found: Sequence[Entry], run: str
) -> tuple[StoredMessage, ...]:
    """The same with what led to calls, since the last reply that called nothing: before it, no provider wants it.

    What others answer in the same conversation, while a run is at it, ends nothing.
    """
    begun = next((place for place, each in enumerate(said) if each.run == run), len(said))
    ends = (
        place
        for place, each in enumerate(said)
        if each.message.role == "assistant" and not each.message.calls and (each.run == run or place < begun)
    )
    since = said[max(ends, default=-1) + 1 :]
    replies = {each.seq: each.message.reply for each in found}
    wanted = [(each.seq, reply) for each in since if (reply := replies.get(each.seq)) is not None]
    read = await store.unpack_all([reply for _, reply in wanted])
    thoughts = {seq: replied(reply).thoughts for (seq, _), reply in zip(wanted, read, strict=True)}
    return tuple(_thinking(each, thoughts[each.seq]) if each.seq in thoughts else each for each in said)


def _thinking(said: StoredMessage, thoughts: Thoughts | None) -> StoredMessage:
    return said._replace(message=msgspec.structs.replace(said.message, thoughts=thoughts))


class ContextView(NamedTuple):
    """What there is to choose from, for what a model sees."""

    state: AgentState
    """What the agent knows."""
    step: int | None
    """The number of the last step."""
    said: tuple[StoredMessage, ...]
    """What was said; every call has its results right behind it."""
    room: int
    """In tokens, for all of it."""


class ContextChoice(NamedTuple):
    """What a model sees of it."""

    known: str
    """What the agent knows, in words."""
    chosen: Selected
    """Which messages."""


BuildContext = Callable[[ContextView], ContextChoice]


def choose_context(view: ContextView) -> ContextChoice:
    """As much as fits: a third at most for what is known, the newest messages in the rest."""
    known = describe(view.state, step=view.step, room=view.room // 3)
    return ContextChoice(known, select([item_of(each) for each in view.said], view.room - tokens(known)))


class BuiltPrompt(NamedTuple):
    """A request, and how it can be made again."""

    request: Prompt
    sight: ContextChoice


def build_prompt(
    frame: Frame, context: Context, state: AgentState, step: int | None, seen: BuildContext
) -> BuiltPrompt:
    """What a model is asked next; raises ContextTooSmall where not even the last of it fits, without thoughts."""
    summary = short(context.before, frame.room // 3)
    view = ContextView(state, step, context.said, frame.room - tokens(summary))
    sight = seen(view)
    chosen = sight.chosen
    if context.said and not chosen.places:
        if any(each.message.thoughts is not None for each in context.said):
            bare = tuple(_thinking(each, None) for each in context.said)
            return build_prompt(frame, context._replace(said=bare), state, step, seen)
        *_, last = units([item_of(each) for each in context.said])
        raise ContextTooSmall(needed=sum(item.size for item in last), window=frame.window)
    shown = [context.said[place].message for place in chosen.places]
    if chosen.limit is not None:
        shown = [_cut(each, chosen.limit) for each in shown]
    taken = tokens(sight.known) + sum(map(size_of, shown))
    if taken > view.room:
        raise ContextTooSmall(needed=frame.window - view.room + taken, window=frame.window)
    return BuiltPrompt(_request(frame, sight.known, summary, shown, _left_out(chosen, context)), sight)


def _request(frame: Frame, known: str, summary: str, shown: Sequence[PromptMessage], left_out: str) -> Prompt:
    """The parts put together."""
    parts = (
        frame.instructions,
        known and f"What you know:\n{known}",
        summary and f"What was said before, in short:\n{summary}",
        left_out,
    )
    system = "\n\n".join(filter(None, parts))
    return Prompt(
        messages=(
            PromptMessage(role="system", text=system),
            *(shown or [PromptMessage(role="user", text=NOTHING_SAID)]),
        ),
        tools=frame.tools,
        output=frame.output,
        max_tokens=frame.reply,
    )


def summary_of(frame: Frame, before: str, old: Sequence[StoredMessage]) -> Prompt:
    """What a model is asked that summarises."""
    text = "\n".join(filter(None, (short(before, frame.room // 3), *map(summary_line, old))))
    messages = (PromptMessage(role="system", text=SUMMARY), PromptMessage(role="user", text=short(text, frame.room)))
    return Prompt(messages=messages, max_tokens=frame.reply)


def summary_line(said: StoredMessage) -> str:
    """A message as it is summarised."""
    message = said.message
    wanted = "".join(f" [calls {call.name}({call.args})]" for call in message.calls)
    return f"{message.role}: {message.text}{wanted}"


def digest_of(request: Prompt) -> str:
    """Of exactly what a model is asked."""
    return sha256(encode(request)).hexdigest()


def plain(value: Frame | Prompt) -> Any:
    """The same as JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _left_out(chosen: Selected, context: Context) -> str:
    if not chosen.left_out and not context.goes_back:
        return ""
    return f"({'More than ' if context.goes_back else ''}{chosen.left_out} earlier messages are not shown.)"


def item_of(said: StoredMessage) -> Item:
    """A message, as far as its choice goes."""
    message = said.message
    calls = tuple(call.id for call in message.calls)
    least = size_of(_bare(message)) + min(tokens(message.text), LEAST)
    return Item(said.seq, message.role, size_of(message), calls, message.call, said.pinned, least)


def size_of(message: PromptMessage) -> int:
    """About how many tokens a message takes."""
    calls = sum(tokens(call.args) + tokens(call.name) + tokens(call.id) + EACH for call in message.calls)
    thoughts = 0 if message.thoughts is None else tokens_of(len(encode(message.thoughts)))
    return tokens(message.text) + tokens(message.call) + calls + thoughts + EACH


def spec_size(spec: ToolSpec) -> int:
    """About how many tokens a tool takes."""
    return tokens(spec.name) + tokens(spec.description) + tokens(canonical(spec.schema).decode()) + EACH


def _bare(message: PromptMessage) -> PromptMessage:
    """A message without its text, and without arguments that are long."""
    calls = tuple(
        call
        if tokens(call.args) <= SMALL
        else msgspec.structs.replace(call, args=f'{{"left_out":"{len(call.args)} characters"}}')
        for call in message.calls
    )
    return msgspec.structs.replace(message, text="", calls=calls)


def _cut(message: PromptMessage, limit: int) -> PromptMessage:
    """A message of at most so many tokens, as far as it can be cut: without long arguments, and the middle of it."""
    if size_of(message) <= limit:
        return message
    bare = _bare(message)
    return msgspec.structs.replace(bare, text=short(message.text, max(limit - size_of(bare), LEAST)))
