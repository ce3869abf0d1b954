"""Make a conversation valid for providers: every call is directly followed by exactly one result. Repairs are reported.

A call can lack its result after a crash of another program, in an imported conversation, or if a run ended in between.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from limpet.context.window import Item
from limpet.llm.model import Finish, PromptMessage, Reply, Thoughts, ToolCall
from limpet.llm.providers import valid_name

__all__ = [
    "NO_RESULT",
    "UNDER_WAY",
    "RepairedTranscript",
    "StoredMessage",
    "content_of",
    "is_object",
    "message_of",
    "record_of",
    "repair",
    "reply_of",
]

NO_RESULT = "[no result: the call was interrupted, and it is not known what came of it]"
UNDER_WAY = "[no result yet: another run of this conversation is at it]"
# Characters that providers do not accept in ids, and the maximum length of an id.
INVALID_IN_ID = re.compile("[^A-Za-z0-9_-]")
MAX_ID = 64


class StoredMessage(Struct, frozen=True, dict=True):
    """A message and its position in the conversation; position 0 means that it was inserted as a repair."""

    seq: int
    message: PromptMessage
    pinned: bool = False
    run: str = ""
    """The run that added it, if any."""
    repaired: bool = False
    """Whether it was added for a call without a result."""

    @cached_property
    def item(self) -> Item:
        """The properties that its selection depends on."""
        message = self.message
        calls = tuple(call.id for call in message.calls)
        return Item(self.seq, message.role, message.size, calls, message.call, self.pinned, message.least_size)

    def with_message(self, **changes: Any) -> "StoredMessage":
        """Return it with some fields of the message changed."""
        return structs.replace(self, message=structs.replace(self.message, **changes))


class RepairedTranscript(NamedTuple):
    """A conversation that every provider accepts, and what was wrong with it."""

    messages: tuple[StoredMessage, ...]
    faults: tuple[str, ...]


def content_of(message: PromptMessage) -> Any:
    """Return a message as it is stored: its text, or its text and calls."""
    if not message.calls:
        return message.text
    return {"text": message.text, "calls": [msgspec.to_builtins(call) for call in message.calls]}


def record_of(reply: Reply, asked: str) -> Any:
    """Return a reply as its step records it: its text, if that is all. The text is stored once, together with the
    message.

    Reasoning data is recorded only with calls: no provider needs it after an answer.
    """
    found = content_of(PromptMessage(role="assistant", text=reply.text, calls=reply.calls))
    more: dict[str, Any] = {}
    if reply.finish != _default_finish(reply.calls):
        more["finish"] = reply.finish
    if not asked.endswith(reply.model):
        more["model"] = reply.model
    if reply.calls and reply.thoughts is not None:
        more["thoughts"] = msgspec.to_builtins(reply.thoughts)
    return {"text": reply.text, **(found if isinstance(found, dict) else {}), **more} if more else found


def _default_finish(calls: Sequence[ToolCall]) -> Finish:
    """Return the finish reason that a record omits."""
    return "calls" if calls else "stop"


def reply_of(found: Any) -> Reply:
    """Return a reply from its record."""
    if isinstance(found, str):
        return Reply(text=found)
    calls = tuple(ToolCall(**each) for each in found.get("calls", ()))
    return Reply(
        text=found.get("text", ""),
        calls=calls,
        finish=found.get("finish", _default_finish(calls)),
        model=found.get("model", ""),
        thoughts=Thoughts(**found["thoughts"]) if "thoughts" in found else None,
    )


def message_of(role: Any, content: Any, call: str = "") -> PromptMessage:
    """Return a stored message as a prompt message, whatever its content is."""
    call = _id(call) if call else ""
    if isinstance(content, dict):
        found = content.get("calls") if role == "assistant" else None
        calls = tuple(_call(each, place) for place, each in enumerate(found if isinstance(found, list) else ()))
        return PromptMessage(role=role, text=_text(content.get("text")), calls=calls, call=call)
    return PromptMessage(role=role, text=_text(content), call=call)


def _text(content: Any) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


def _call(given: Any, place: int) -> ToolCall:
    named = given if isinstance(given, dict) else {}
    return ToolCall(
        id=_id(_text(named.get("id")) or f"call-{place}"),
        name=valid_name(_text(named.get("name")) or "unknown"),
        args=_args(named.get("args")),
    )


def _id(given: str) -> str:
    """Return an id that every provider accepts; the same input gives the same id."""
    if len(given) <= MAX_ID and not INVALID_IN_ID.search(given):
        return given
    return f"call_{sha256(given.encode(errors='replace')).hexdigest()[:32]}"


def _args(given: Any) -> str:
    """Return arguments as a JSON object. Anything else is wrapped in one, because not every provider accepts it."""
    if given is None or given == "":
        return "{}"
    text = _text(given)
    return text if is_object(text) else msgspec.json.encode({"not_an_object": text}).decode()


def is_object(text: str) -> bool:
    """Return whether a text is a complete JSON object."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False


def repair(said: Sequence[StoredMessage], run: str = "") -> RepairedTranscript:
    """Return the messages with exactly one result directly after each call; insert missing results, and drop the rest.

    `run` is the run that reads them. Calls of other runs may still be running.
    """
    if _is_valid(said):
        return RepairedTranscript(tuple(said), ())
    faults: list[str] = []
    distinct = _distinct(said, faults)
    results = _results(distinct, faults)
    found: list[StoredMessage] = []
    for each in distinct:
        message = each.message
        if message.role == "tool":
            continue  # added after its call
        if not message.text and not message.calls:
            faults.append(f"message {each.seq} is empty")
            continue
        found.append(each)
        found += _answers(each, results, faults, run)
    return RepairedTranscript(tuple(found), tuple(faults))


def _is_valid(said: Sequence[StoredMessage]) -> bool:
    """Return whether each call has its own id and is directly followed by its result, as in most conversations."""
    ids: set[str] = set()
    open_: list[ToolCall] = []
    for each in said:
        message = each.message
        if message.role == "tool":
            call = open_.pop() if open_ else None
            if call is None or call.id != message.call or call.name != message.tool:
                return False
        elif open_ or not (message.text or message.calls):
            return False
        elif message.calls:
            known = len(ids)
            ids.update(call.id for call in message.calls)
            if len(ids) - known != len(message.calls):
                return False
            open_ += reversed(message.calls)
    return not open_


def _distinct(said: Sequence[StoredMessage], faults: list[str]) -> list[StoredMessage]:
    """Make call ids unique: a later duplicate gets another id, and so does the next result with that id."""
    found: list[StoredMessage] = []
    made: set[str] = set()
    latest: dict[str, list[str]] = {}
    """New ids of duplicates that have no result yet, by old id, the newest last."""
    answered = {each.message.call for each in said if each.message.role == "tool"}
    for each in said:
        calls: list[ToolCall] = []
        for place, call in enumerate(each.message.calls):
            id = call.id
            if id in made:
                faults.append(f"message {each.seq} has a call with an id that another has: {id}")
                id = _id(f"{id[: MAX_ID - 24]}_{each.seq}_{place}")
                latest.setdefault(call.id, []).extend({id} - answered)  # an inserted result has that id
            made.add(id)
            calls.append(call if id == call.id else structs.replace(call, id=id))
        if calls:
            found.append(each if tuple(calls) == each.message.calls else each.with_message(calls=tuple(calls)))
        elif each.message.role == "tool" and latest.get(each.message.call):
            found.append(each.with_message(call=latest[each.message.call].pop()))
        else:
            found.append(each)
    return found


def _results(said: Iterable[StoredMessage], faults: list[str]) -> dict[str, StoredMessage]:
    """Return the first result of each earlier call. A real result replaces an inserted one."""
    found: dict[str, StoredMessage] = {}
    made: set[str] = set()
    for each in said:
        made |= {call.id for call in each.message.calls}
        if each.message.role != "tool":
            continue
        before = found.get(each.message.call)
        if each.message.call not in made:
            faults.append(f"message {each.seq} is the result of a call that was not made")
        elif before is None or (before.repaired and not each.repaired):
            found[each.message.call] = each
        else:
            faults.append(f"message {each.seq} is a second result of {each.message.call}")
    return found


def _answers(
    each: StoredMessage, results: dict[str, StoredMessage], faults: list[str], run: str
) -> Iterator[StoredMessage]:
    """Yield the result of each call, with the name of its tool, which some providers need."""
    for call in each.message.calls:
        result = results.pop(call.id, None)
        if result is None:
            is_others = each.run not in ("", run)
            if not is_others:
                faults.append(f"message {each.seq} calls {call.name}, but has no result")
            text = UNDER_WAY if is_others else NO_RESULT
            result = StoredMessage(0, PromptMessage(role="tool", text=text, call=call.id), run=each.run)
        yield result if result.message.tool == call.name else result.with_message(tool=call.name)
