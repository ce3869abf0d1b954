"""A conversation as models take it: every call has its result, right behind it, once. What is not so is mended, marked.

A pair may be broken by a crash of another program, a conversation that was loaded, or a run that ended in between.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from limpet.llm.model import Call, Message

__all__ = ["NO_RESULT", "Mended", "Said", "content_of", "mended", "message_of"]

NO_RESULT = "[no result: the call was interrupted, and it is not known what came of it]"


class Said(NamedTuple):
    """A message, and where it stands in its conversation; one that was put in to mend it stands nowhere."""

    seq: int
    message: Message
    pinned: bool = False


class Mended(NamedTuple):
    """A conversation that every provider takes, and what was done to it."""

    said: tuple[Said, ...]
    faults: tuple[str, ...]


def content_of(message: Message) -> Any:
    """A message as it is stored: its text, or what a model said and wanted called."""
    if not message.calls:
        return message.text
    return {"text": message.text, "calls": [msgspec.to_builtins(call) for call in message.calls]}


def message_of(role: Any, content: Any, call: str = "") -> Message:
    """A stored message as models take it, whatever it holds."""
    if isinstance(content, dict):
        found = content.get("calls")
        calls = tuple(_call(each, place) for place, each in enumerate(found if isinstance(found, list) else ()))
        text = content.get("text")
        return Message(role=role, text=text if isinstance(text, str) else "", calls=calls, call=call)
    return Message(
        role=role, text=content if isinstance(content, str) else msgspec.json.encode(content).decode(), call=call
    )


def _call(given: Any, place: int) -> Call:
    named = given if isinstance(given, dict) else {}
    args = named.get("args", "{}")
    return Call(
        id=str(named.get("id") or f"call-{place}"),
        name=str(named.get("name") or "unknown"),
        args=args if isinstance(args, str) else msgspec.json.encode(args).decode(),
    )


def mended(said: Sequence[Said]) -> Mended:
    """The same with every call answered once, right behind it: what is missing is put in, the rest is left out."""
    faults: list[str] = []
    results = _results(said, faults)
    found: list[Said] = []
    for each in said:
        message = each.message
        if message.role == "tool":
            continue  # it comes behind its call
        if message.role == "assistant" and not message.text and not message.calls:
            faults.append(f"message {each.seq} is empty")
            continue
        found.append(each)
        found += _answers(each, results, faults)
    return Mended(tuple(found), tuple(faults))


def _results(said: Iterable[Said], faults: list[str]) -> dict[str, Said]:
    """The first result of every call that was made before it."""
    found: dict[str, Said] = {}
    made: set[str] = set()
    for each in said:
        made |= {call.id for call in each.message.calls}
        if each.message.role != "tool":
            continue
        if each.message.call not in made:
            faults.append(f"message {each.seq} is the result of a call that was not made")
        elif each.message.call in found:
            faults.append(f"message {each.seq} is a second result of {each.message.call}")
        else:
            found[each.message.call] = each
    return found


def _answers(each: Said, results: dict[str, Said], faults: list[str]) -> Iterator[Said]:
    for call in each.message.calls:
        result = results.pop(call.id, None)
        if result is None:
            faults.append(f"message {each.seq} wants {call.name} called, and there is no result")
            result = Said(0, Message(role="tool", text=NO_RESULT, call=call.id, tool=call.name))
        yield result
