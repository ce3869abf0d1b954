"""Build the prompt of an LLM agent from its frame, its state and its conversation, deterministically.

A prompt is recorded by reference: the conversation and its end, the chosen messages, and a digest of the exact prompt.
So it can be rebuilt later, and checked.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from limpet.context.slice import describe
from limpet.context.window import LEAST, Selected, bound_results, select, short, tokens, units
from limpet.errors import ContextTooSmall
from limpet.events import Limits, canonical
from limpet.events.values import encode
from limpet.journal import Summary
from limpet.llm.message_cache import MessageCache, ReadEntry, ReadMessages, read_messages
from limpet.llm.model import Prompt, PromptMessage, ToolSpec, size_of
from limpet.llm.transcript import StoredMessage, repair, reply_of
from limpet.state import AgentState
from limpet.stores import Store

__all__ = [
    "BuildContext",
    "BuiltPrompt",
    "Context",
    "ContextChoice",
    "ContextView",
    "Frame",
    "PromptState",
    "build_prompt",
    "choose_context",
    "context_of",
    "digest_of",
    "frame_name",
    "most_tokens",
    "plain",
    "read_context",
    "summary_line",
    "summary_of",
    "summary_prompt",
]

MAX_REPLY = 4_000
NOTHING_SAID = "(Nothing was said.)"
SUMMARY = (
    "Summarise this part of a conversation for yourself, so that you can go on with the task without it: what is "
    "wanted, what was found out and decided, names, numbers and ids, what is still open. Only the summary."
)


class Frame(Struct, frozen=True, kw_only=True, dict=True):
    """The constant part of an agent's prompts; stored once."""

    instructions: str
    tools: tuple[ToolSpec, ...] = ()
    output: dict[str, Any] | None = None
    window: int = 100_000
    reply: int = MAX_REPLY
    """Maximum number of tokens in a reply."""

    @cached_property
    def room(self) -> int:
        """Number of tokens in the window that are left for messages and state. Raises ContextTooSmall."""
        fixed = tokens(self.instructions) + sum(each.size for each in self.tools)
        if self.output is not None:
            fixed += tokens(canonical(self.output).decode())
        left = self.window - fixed - self.reply - self.window // 8
        if left < self.window // 8:
            # A quarter of the window stays free for messages and for errors of the estimate.
            raise ContextTooSmall(needed=fixed + self.reply + self.window // 4, window=self.window)
        return left

    @cached_property
    def plain(self) -> Any:
        """The frame as plain JSON."""
        return plain(self)


def frame_name(blob: str) -> str:
    """Return the name under which a frame is recorded in a run's log, and referred to by model calls."""
    return f"frame:{blob[:12]}"


class Context(NamedTuple):
    """The messages that may be shown, and a summary of the older ones."""

    messages: tuple[StoredMessage, ...]
    faults: tuple[str, ...] = ()
    """Faults in the stored messages that were repaired."""
    summaries: tuple[Summary, ...] = ()
    """The oldest first."""
    summary: str = ""
    """Text of the summaries."""
    has_older: bool = False
    """Whether there are older messages that no summary covers."""


def most_tokens(window: int) -> int:
    """Return how many tokens of messages are read for a window: more than could ever fit."""
    return 2 * window


async def read_context(
    store: Store, conversation: str, *, upto: int, window: int, run: str, cache: MessageCache | None = None
) -> Context:
    """Read the messages of a conversation up to a position, no more than could ever fit into the window."""
    read = read_messages if cache is None else cache.read
    return await context_of(store, await read(store, conversation, upto=upto, most=most_tokens(window)), run)


async def context_of(store: Store, found: ReadMessages, run: str) -> Context:
    """Return the messages that may be shown to a run from those that were read."""
    plain, faults = repair([each.said for each in found.entries if each.said is not None], run)
    said = await _add_reasoning(store, plain, found.entries, run)
    summaries = tuple(each.entry for each in found.entries if isinstance(each.entry, Summary))
    before = "\n".join(each.text for each in found.entries if each.said is None)
    return Context(said, faults, summaries, before, found.has_older)


async def _add_reasoning(
    store: Store, said: Sequence[StoredMessage], found: Sequence[ReadEntry], run: str
) -> tuple[StoredMessage, ...]:
    """Add the reasoning data to calls since the last reply without calls; before that, providers do not need it.

    Replies of other runs in the same conversation do not count once this run has said something.
    """
    recorded = {each.entry.seq: each for each in found if each.reply is not None}
    if not recorded:
        return tuple(said)
    begun = next((place for place, each in enumerate(said) if each.run == run), len(said))
    ends = (
        place
        for place, each in enumerate(said)
        if each.message.role == "assistant" and not each.message.calls and (each.run == run or place < begun)
    )
    since = max(ends, default=-1) + 1
    wanted = [recorded[each.seq] for each in said[since:] if each.seq in recorded]
    await _read_reasoning(store, [each for each in wanted if each.reasoned is None])
    return (*said[:since], *(_reasoned(each, recorded.get(each.seq)) for each in said[since:]))


async def _read_reasoning(store: Store, found: Sequence[ReadEntry]) -> None:
    replies = await store.unpack_all([each.reply for each in found if each.reply is not None])
    for each, reply in zip(found, replies, strict=True):
        assert each.said is not None
        each.reasoned = each.said.with_message(thoughts=reply_of(reply).thoughts)


def _reasoned(said: StoredMessage, read: ReadEntry | None) -> StoredMessage:
    """Return a message with the reasoning data that was read, also if the message was repaired."""
    if read is None or read.reasoned is None:
        return said
    return read.reasoned if said is read.said else said.with_message(thoughts=read.reasoned.message.thoughts)


class ContextView(NamedTuple):
    """The state and messages that a prompt can be built from; the argument of `build_context`."""

    state: AgentState
    """The agent's state."""
    step: int | None
    """Number of the last step."""
    said: tuple[StoredMessage, ...]
    """The messages. Each call is directly followed by its results."""
    room: int
    """Number of tokens for all of it."""
    since: int | None = None
    """First step of the plan's current item, or the last step: its artifacts and later ones are current."""


class ContextChoice(NamedTuple):
    """The parts that were chosen for a prompt."""

    known: str
    """The state, as text."""
    chosen: Selected
    """The chosen messages."""


BuildContext = Callable[[ContextView], ContextChoice]


def choose_context(view: ContextView) -> ContextChoice:
    """Use up to a third of the room for the state, the rest for the newest messages. The default `build_context`."""
    known = describe(view.state, since=view.since, room=view.room // 3)
    return ContextChoice(known, select([each.item for each in view.said], view.room - tokens(known)))


class BuiltPrompt(NamedTuple):
    """A prompt, and the choice from which it can be rebuilt."""

    prompt: Prompt
    choice: ContextChoice


class PromptState(NamedTuple):
    """The state of the run for which a prompt is built."""

    state: AgentState
    step: int | None
    """Number of the last step."""
    since: int | None
    """First step of the plan's current item."""


def build_prompt(frame: Frame, context: Context, at: PromptState, choose: BuildContext) -> BuiltPrompt:
    """Build the next prompt. Raises ContextTooSmall if not even the last message fits, without its reasoning data."""
    summary = short(context.summary, frame.room // 3)
    context = _bounded(context, at.state.budget)
    view = ContextView(at.state, at.step, context.messages, frame.room - tokens(summary), at.since or at.step)
    choice = choose(view)
    chosen = choice.chosen
    if context.messages and not chosen.places:
        if any(each.message.thoughts is not None for each in context.messages):
            bare = tuple(each.with_message(thoughts=None) for each in context.messages)
            return build_prompt(frame, context._replace(messages=bare), at, choose)
        items = [each.item for each in context.messages]
        needed = frame.window - view.room + sum(items[place].size for place in units(items)[-1].places)
        raise ContextTooSmall(needed=needed, window=frame.window)
    shown = [context.messages[place].message for place in chosen.places]
    if chosen.limit is not None:
        shown = [_cut(each, chosen.limit) for each in shown]
    taken = tokens(choice.known) + size_of(shown)
    if taken > view.room:
        raise ContextTooSmall(needed=frame.window - view.room + taken, window=frame.window)
    return BuiltPrompt(_join(frame, choice.known, summary, shown, _left_out(chosen, context)), choice)


def _bounded(context: Context, limits: Limits | None) -> Context:
    """Cut tool results so that all of them together have at most the bytes that the budget allows."""
    if limits is None or limits.max_artifact_bytes_in_context is None:
        return context
    texts = bound_results([(each.message.role, each.message.text) for each in context.messages], limits)
    messages = (
        each if text is each.message.text else each.with_message(text=text)
        for each, text in zip(context.messages, texts, strict=True)
    )
    return context._replace(messages=tuple(messages))


def _join(frame: Frame, known: str, summary: str, shown: Sequence[PromptMessage], left_out: str) -> Prompt:
    """Join the parts of a prompt."""
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
    """Return the prompt that asks for a summary."""
    return summary_prompt(before, map(summary_line, old), frame.room, frame.reply)


def summary_prompt(before: str, lines: Iterable[str], room: int, reply: int) -> Prompt:
    """Return the prompt that asks for a summary of lines, within `room` tokens, after the summary `before` them."""
    text = "\n".join(filter(None, (short(before, room // 3), *lines)))
    messages = (PromptMessage(role="system", text=SUMMARY), PromptMessage(role="user", text=short(text, room)))
    return Prompt(messages=messages, max_tokens=reply)


def summary_line(said: StoredMessage) -> str:
    """Return a message as a line of text to summarise."""
    message = said.message
    wanted = "".join(f" [calls {call.name}({call.args})]" for call in message.calls)
    return f"{message.role}: {message.text}{wanted}"


_DIGEST = attrgetter("digest")


def digest_of(request: Prompt) -> str:
    """Return the digest of an exact prompt, from those of its messages: most of them were in earlier prompts, too."""
    rest = sha256(encode(msgspec.structs.replace(request, messages=()))).digest()
    return sha256(rest + b"".join(map(_DIGEST, request.messages))).hexdigest()


def plain(value: Frame | Prompt) -> Any:
    """Return a frame or prompt as plain JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _left_out(chosen: Selected, context: Context) -> str:
    if not chosen.left_out and not context.has_older:
        return ""
    return f"({'More than ' if context.has_older else ''}{chosen.left_out} earlier messages are not shown.)"


def _cut(message: PromptMessage, limit: int) -> PromptMessage:
    """Cut a message to at most `limit` tokens, if possible: drop long arguments and the middle of its text."""
    if message.size <= limit:
        return message
    bare = message.without_text()
    return msgspec.structs.replace(bare, text=short(message.text, max(limit - bare.size, LEAST)))
