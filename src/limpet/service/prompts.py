"""The context slice of a run, and the exact prompt of a model call, rebuilt from its record."""

from typing import Any

import msgspec

from limpet.context.slice import ContextSlice, Known, slice_of
from limpet.engine.run.compaction import read_talk
from limpet.engine.run.conversation import conversation_of, shown, task_of
from limpet.errors import InvalidArgument, NotFound
from limpet.events import bodies as b
from limpet.journal import latest, load
from limpet.llm.model import Prompt
from limpet.llm.prompt import (
    BuildContext,
    BuiltPrompt,
    Context,
    Frame,
    PromptState,
    build_prompt,
    choose_context,
    digest_of,
    read_context,
    summary_of,
)
from limpet.llm.summary import summary_request
from limpet.service.conversations import last_message_at
from limpet.service.moments import Point, point
from limpet.stores import RunRow, Store
from limpet.view import View

__all__ = ["PromptView", "context_of", "read_prompt"]

NOT_EXACT = "differs from what was sent: the code that builds the prompt has changed, or a secret was hidden"
UNKNOWN = "or the agent has its own build_context; pass its code with --app MODULE:ATTRIBUTE or agents=[...]"
# Maximum number of messages that a slice is chosen from.
RECENT = 500
# Maximum number of steps in a note.
MANY = 10


class PromptView(View, frozen=True, kw_only=True):
    """The prompt of a model call, and why it contained each part."""

    run: str
    """Run id."""
    step: int
    """Number of the step."""
    model: str
    """Name of the model."""
    prompt: Prompt
    """The prompt."""
    is_exact: bool
    """Whether the prompt equals, byte for byte, what was sent. If not, the code that builds it has changed, or a secret
    was hidden.
    """
    why: tuple[str, ...]
    """Origin of each part, and what was left out."""

    def __str__(self) -> str:
        lines = [f"step {self.step} of {self.run}, prompt of {self.model}:", *(f"  {each}" for each in self.why)]
        for message in self.prompt.messages:
            wanted = "".join(f" [calls {call.name}({call.args})]" for call in message.calls)
            lines += ["", f"{message.role}{f' ({message.call})' if message.call else ''}: {message.text}{wanted}"]
        return "\n".join(lines)


async def context_of(
    store: Store, row: RunRow, where: Point, *, max_tokens: int | None, max_bytes: int | None
) -> ContextSlice:
    """Return the part of a run's state and messages at a point that fits into the limits."""
    for name, given in (("max_tokens", max_tokens), ("max_bytes", max_bytes)):
        if given is not None and given < 0:
            raise InvalidArgument(path=name, reason="must not be negative")
    seq = await point(store, row.id, where)
    state = await load(store, row.id, at_most=seq)
    conversation = row.conversation or conversation_of(row.id)
    upto = await last_message_at(store, row.id, seq, conversation)
    found = await latest(store, conversation, last=RECENT, upto=upto) if upto else []
    messages = [each.spoken() for each in await shown(store, found)]
    step = state.position.step or None
    known = Known(state.working, step, state.since or step, state.status, await task_of(store, state.input))
    return slice_of(known, messages=messages, max_tokens=max_tokens, max_bytes=max_bytes)


async def _not_a_model_call(store: Store, run: str, step: int) -> NotFound:
    """Return the error for a step that is not a model call."""
    asked = dict[int, None]()
    async for event in store.log(run):
        body = store.decode(event)
        if isinstance(body, b.StepStarted) and body.kind == "model":
            asked[body.number] = None
    steps = f"{', '.join(map(str, [*asked][:MANY]))}{'…' if len(asked) > MANY else ''}"
    fix = f"Pass the step of a model call: {steps}." if asked else "Pass another run: this one has no model calls."
    return NotFound(what="model call", id=f"{run}/{step}", fix=fix)


async def read_prompt(store: Store, run: str, step: int, chosen_by: BuildContext | None) -> PromptView:
    """Return the prompt of a model call. `chosen_by` is the agent's `build_context`, if its code is known."""
    before = await point(store, run, Point(before=step))
    [event] = await store.read(run, after=before, limit=1)
    started = store.decode(event)
    assert isinstance(started, b.StepStarted)
    args: Any = (await store.unpack(started.args)).get("reference") if started.kind == "model" else None
    if not isinstance(args, dict):
        raise await _not_a_model_call(store, run, step)
    if "request" in args:
        request = msgspec.convert(args["request"], Prompt)
        own = ("the agent built the prompt itself; it is recorded verbatim",)
        return PromptView(run=run, step=step, model=args["model"], prompt=request, is_exact=True, why=own)
    if "room" in args:
        return await _requested_summary(store, run, step, args)
    frame = await _frame(store, run, args)
    context = await read_context(store, args["conversation"], upto=args["head"], window=frame.window, run=run)
    if started.tool == "summary":
        request, why = _summary(frame, context, args)
    else:
        state = await load(store, run, at_most=before)
        at = PromptState(state.working, state.position.step or None, state.since)
        made = build_prompt(frame, context, at, chosen_by or choose_context)
        request, why = made.prompt, tuple(_why(made, context, args))
    is_exact = digest_of(request) == args["digest"]
    if not is_exact:
        why = (*why, NOT_EXACT if chosen_by is not None else f"{NOT_EXACT}, {UNKNOWN}")
    return PromptView(run=run, step=step, model=args["model"], prompt=request, is_exact=is_exact, why=why)


async def _frame(store: Store, run: str, args: dict[str, Any]) -> Frame:
    """Return the frame (the constant part of the prompts) that was recorded at that time."""
    async for event in store.log(run):
        body = store.decode(event) if event.kind == "value.recorded" else None
        if isinstance(body, b.ValueRecorded) and body.name == f"{args.get('frame')}#1":
            return msgspec.convert(await store.unpack(body.value), Frame)
    raise NotFound(what="frame of a model call", id=run)


async def _requested_summary(store: Store, run: str, step: int, args: dict[str, Any]) -> PromptView:
    """Return the prompt of a summary that `run.compact` asked for."""
    talk = await read_talk(store, args["conversation"], args["head"])
    old = [each for each in talk.entries if any(first <= each.seq <= last for first, last in args["ranges"])]
    request = summary_request(await shown(store, [*talk.summaries, *old]), args["room"], args["reply"])
    is_exact, why = digest_of(request) == args["digest"], _summarised(args)
    why = why if is_exact else (*why, NOT_EXACT)
    return PromptView(run=run, step=step, model=args["model"], prompt=request, is_exact=is_exact, why=why)


def _summarised(args: dict[str, Any]) -> tuple[str, ...]:
    return (f"messages {_list_ranges(args['ranges'])}, to be summarised",)


def _summary(frame: Frame, context: Context, args: dict[str, Any]) -> tuple[Prompt, tuple[str, ...]]:
    old = [each for each in context.messages if any(first <= each.seq <= last for first, last in args["ranges"])]
    return summary_of(frame, context.summary, old), _summarised(args)


def _why(made: BuiltPrompt, context: Context, args: dict[str, Any]) -> list[str]:
    chosen, lines = made.choice.chosen, ["the agent's instructions"]
    if made.choice.known:
        lines.append(f"the agent's state at that time: {made.choice.known.count(chr(10)) + 1} lines")
    for each in context.summaries:
        first, last = each.compacted.first, each.compacted.last
        lines.append(f"message {each.seq} of {args['conversation']}, a summary of messages {first} to {last}")
    if args["ranges"]:
        lines.append(
            f"messages {_list_ranges(args['ranges'])} of {args['conversation']}, which ended at {args['head']}"
        )
    thinking = sum(each.thoughts is not None for each in made.prompt.messages)
    if thinking:
        lines.append(f"with the model's own reasoning data for the calls of {thinking} of them")
    if chosen.left_out or context.has_older:
        lines.append(f"left out: {'more than ' if context.has_older else ''}{chosen.left_out} earlier messages")
    if chosen.limit is not None:
        lines.append(f"each message cut to about {chosen.limit} tokens")
    if context.faults:
        lines.append(f"repaired: {'; '.join(context.faults)}")
    return lines


def _list_ranges(ranges: list[list[int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges)
