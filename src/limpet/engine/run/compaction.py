"""Compaction: a summary replaces the older messages of a conversation; the messages are kept.

`run.compact` and `app.compact` use this module. LLM agents select messages and write summaries with the same code.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable, signature
from typing import Any, ClassVar, Literal, NamedTuple

from limpet.arguments import brief, defining
from limpet.context.window import EACH, Item, has_outgrown, oldest, tokens, tokens_of
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.execution import Execution
from limpet.engine.run.conversation import Message, RunConversation, shown, text_of
from limpet.engine.steps.steps import Steps
from limpet.errors import InvalidArgument, StepFailed
from limpet.events import bodies as b
from limpet.journal import Entry, Summary, entries
from limpet.policy.retry import Retry
from limpet.stores import Store

__all__ = [
    "NOT_SUMMARISED",
    "Compaction",
    "RunCompaction",
    "Summarise",
    "Summariser",
    "Talk",
    "as_summariser",
    "checked_summary",
    "old_messages",
    "read_talk",
    "to_summarise",
]

NOT_SUMMARISED = "the conversation was not summarised"
Summarise = Callable[[list[Message]], str | Awaitable[str]]
"""Function that returns a summary of messages. The first of them is the summary so far, if there is one."""
# Maximum size of the messages that a function summarises at once, in tokens.
ROOM = 80_000
# Maximum number of messages that are considered, the newest.
MOST = 10_000


@defining
@dataclass(frozen=True, kw_only=True)
class Compaction:
    """When to summarise: above `above` tokens, keeping the newest `keep` tokens. None derives both from the window."""

    above: int | None = None
    keep: int | None = None

    def limits(self, room: int) -> tuple[int, int]:
        """Return both numbers, for a window with this room for messages."""
        above = room * 3 // 4 if self.above is None else self.above
        return above, above // 3 if self.keep is None else self.keep


class Summariser:
    """A function that summarises messages, and how a step calls it."""

    kind: ClassVar[Literal["model", "read"]] = "read"

    def __init__(self, fn: Summarise, room: int = ROOM) -> None:
        self._fn, self.room = fn, room

    async def summarise(self, messages: list[Message]) -> Any:
        """Return the summary of messages."""
        found = self._fn(messages)
        return await found if isawaitable(found) else found

    def called_with(self, messages: list[Message]) -> Callable[..., Any]:
        """Return the function that a step calls. A blocking one runs on a thread."""

        def summarise(reference: dict[str, Any]) -> Any:  # noqa: ARG001 - it refers to the messages, for the record
            return self._fn(messages)

        return summarise

    def traits(self, messages: list[Message]) -> Traits:  # noqa: ARG002 - other summarisers use it
        """Return the traits of the step."""
        return Traits(effect="none", retry=Retry(3))

    def reference(self, messages: list[Message]) -> Mapping[str, Any]:  # noqa: ARG002 - other summarisers use it
        """Return what the step records besides the position of the messages."""
        return {}


def as_summariser(given: Summarise | Summariser, name: str) -> Summariser:
    """Return a summariser for a function. Raises InvalidArgument, with the argument's name, for another object."""
    if isinstance(given, Summariser):
        return given
    try:
        fits = not isinstance(given, type) and signature(given).bind([]) is not None
    except (TypeError, ValueError):  # it takes other arguments, or has no signature
        fits = False
    if not fits:
        reason = f"{brief(given)} is not a function of a list of messages; pass one, or limpet.summarise_with(model)"
        raise InvalidArgument(path=name, reason=reason)
    return Summariser(given)


class Talk(NamedTuple):
    """The part of a conversation that no summary replaces, and the summaries of the rest, both in order."""

    entries: tuple[Entry, ...]
    summaries: tuple[Summary, ...]

    @property
    def sizes(self) -> list[int]:
        """Sizes of the messages in tokens."""
        return [tokens_of(each.content.size) + EACH for each in self.entries]


async def read_talk(store: Store, conversation: str, upto: int | None = None) -> Talk:
    """Read the newest messages that no summary replaces."""
    found: list[Entry] = []
    summaries: list[Summary] = []
    async for each in entries(store, conversation, upto=upto):
        if isinstance(each, Summary):
            summaries.append(each)
        elif len(found) < MOST:
            found.append(each)
        else:
            break
    return Talk(tuple(found[::-1]), tuple(summaries[::-1]))


async def old_messages(store: Store, talk: Talk, keep: int, room: int) -> tuple[list[Entry], list[Message]]:
    """Return the entries to summarise, and the messages to give to the summariser."""
    found: list[Entry | Summary] = [*talk.entries, *talk.summaries]
    contents = await store.unpack_all([each.content for each in found])
    calls = {each.seq: _calls_of(content) for each, content in zip(talk.entries, contents, strict=False)}
    summary = "\n".join(map(text_of, contents[len(talk.entries) :]))
    ordered = _with_results(talk.entries, calls)
    items = [_item(each, calls[each.seq]) for each in ordered]
    places = to_summarise(items, [item.size + EACH for item in items], keep, room, summary)
    old = sorted((ordered[place] for place in places), key=lambda each: each.seq)
    return old, await shown(store, [*talk.summaries, *old]) if old else []


def _calls_of(content: Any) -> tuple[str, ...]:
    """Return the ids of the tool calls in a message."""
    calls = content.get("calls") if isinstance(content, Mapping) else None
    return tuple(str(each.get("id")) for each in calls if isinstance(each, Mapping)) if isinstance(calls, list) else ()


def _with_results(found: Sequence[Entry], calls: Mapping[int, tuple[str, ...]]) -> list[Entry]:
    """Move each result behind the message with its call: messages of others may stand between them."""
    made = {call for each in calls.values() for call in each}
    results: dict[str, list[Entry]] = {}
    for each in found:
        if each.message.call in made:
            results.setdefault(each.message.call or "", []).append(each)
    ordered: list[Entry] = []
    for each in found:
        if each.message.call not in made:
            ordered.append(each)
            ordered += [result for call in calls[each.seq] for result in results.pop(call, ())]
    return ordered


def _item(each: Entry, calls: tuple[str, ...]) -> Item:
    message = each.message
    return Item(each.seq, message.role, tokens_of(each.content.size), calls, message.call or "", message.pinned)


def to_summarise(items: Sequence[Item], sizes: Sequence[int], keep: int, room: int, summary: str) -> list[int]:
    """Return the places of the messages to summarise next, together with the summary so far."""
    return oldest(items, sizes, keep, room - min(tokens(summary), room // 3))


def checked_summary(found: Any) -> str:
    """Return a summary. Raises ValueError if it is no text, or empty."""
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"the summary is {brief(found)}; return a text that is not empty")
    return found


class RunCompaction:
    """`run.compact` in one execution."""

    def __init__(self, execution: Execution, steps: Steps, conversation: RunConversation) -> None:
        self._x, self._steps, self._conversation = execution, steps, conversation

    def compact(self, summariser: Summariser, rules: Compaction) -> Coroutine[Any, Any, bool]:
        """Assign the names in the log, and return a coroutine that summarises older messages if there are too many."""
        names = [self._x.take_name(each) for each in ("compact", "summary", "compacted")]
        return self._compact(names, summariser, *rules.limits(summariser.room))

    async def _compact(self, names: Sequence[str], summariser: Summariser, above: int, keep: int) -> bool:
        x, conversation = self._x, self._conversation
        begun, step, done = names
        head = await conversation.head(begun, x.find(begun, b.ValueRecorded))
        if not head:
            return False
        talk = await x.recorder.load(lambda: read_talk(x.kit.store, conversation.id, head))
        if step not in x.history.records and not self._is_due(talk, above):
            return False
        old, messages = await x.recorder.load(lambda: old_messages(x.kit.store, talk, keep, summariser.room))
        if not old:
            return False
        reference = {"conversation": conversation.id, "head": head, **summariser.reference(messages)}
        tool: Tool[..., Any, Any] = Tool(summariser.called_with(messages), "summary", summariser.traits(messages))
        tool.kind = summariser.kind
        called, record = self._steps.find(tool, [reference], {}, step)
        try:
            summary = checked_summary(await self._steps.run(called, record))
        except (StepFailed, ValueError) as error:
            x.state.raise_flag(NOT_SUMMARISED, error.summary if isinstance(error, StepFailed) else str(error))
            return False
        gone = [each.seq for each in old]
        body, blobs = conversation.summary(summary, gone, [each.seq for each in talk.entries], talk.summaries)
        await conversation.put(done, x.find(done, b.MessageSaid), [body], blobs)
        return True

    def _is_due(self, talk: Talk, above: int) -> bool:
        own = [place for place, each in enumerate(talk.entries) if _is_reply(each.message, self._x.run)]
        has_failed = NOT_SUMMARISED in self._x.state.working.freeze().risk_flags
        return has_outgrown(talk.sizes, above, max(own, default=0) if has_failed else None)


def _is_reply(message: b.MessageAdded, run: str) -> bool:
    return message.role == "assistant" and message.run == run
