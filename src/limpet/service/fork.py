"""Forks: a run that goes on from any step of another, with what somebody wants to be otherwise.

What is asked for is checked before anything is made: the step, what is to be known, the results, the input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any

from msgspec.structs import replace

from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.tools import Tool, find_tool
from limpet.engine.definitions.types import codec_of
from limpet.engine.replay.history import Record
from limpet.engine.replay.learned import Learned
from limpet.engine.run.conversation import conversation_of
from limpet.engine.run.working_state import StateChange
from limpet.errors import InvalidArgument, InvalidValue
from limpet.events import Effects, Outside, Payload, StatePatch, digest
from limpet.events import bodies as b
from limpet.ids import LONGEST_ID, check_id
from limpet.journal import load_whole
from limpet.redaction import Redaction
from limpet.service.conversations import last_message_at
from limpet.service.moments import no_step
from limpet.state import RunState
from limpet.state.patch import Working
from limpet.stores import Create, RunFilter, RunRow, Store, Taken
from limpet.stores.blobs import Blob

__all__ = ["ForkOptions", "make_fork", "plan_fork"]

_JSON = codec_of(Any)
_MODES = ("ask", "stub", "live")
_KEYS = tuple(each.name for each in fields(StateChange) if each.name != "source")
# What comes at the end of a log, after the last that its code did.
_TAIL = ("run.", "compensation.", "cancel.", "pause.", "resume.", "risk.")


@dataclass(frozen=True, kw_only=True)
class ForkOptions:
    """What a fork is to be."""

    at: int | None = None
    """The number of the first step that is not shared."""
    seq: int | None = None
    """Or the number of the last event that is."""
    patch: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[int, Any] = field(default_factory=dict)
    effects: Effects = "ask"
    live: tuple[Outside, ...] = ()
    """What of the outside is used all the same where effects are made up."""
    version: str | None = None
    input: Any = ...
    """Another input; an ellipsis for the same."""


async def plan_fork(
    store: Store, row: RunRow, agent: Agent[Any, Any] | None, wanted: ForkOptions, now: int
) -> tuple[b.RunForked, list[Blob]]:
    """How a fork begins, and the blobs that come with it; raises what is wrong with what is wanted."""
    if wanted.effects not in _MODES:
        raise InvalidArgument(path="effects", reason=f"{wanted.effects!r} is none of {', '.join(_MODES)}")
    if wanted.live and wanted.effects != "stub":
        reason = "only a fork with effects='stub' leaves the outside alone"
        raise InvalidArgument(path=wanted.live[0], reason=reason)
    at = await _cut(store, row, wanted)
    memory = Learned()
    state = (await load_whole(store, row.id, at_most=at, learner=memory)).state
    version = wanted.version or state.agent_version
    body = b.RunForked(run=row.id, at=at, step=0, effects=wanted.effects, agent=state.agent, agent_version=version)
    memory.history.branch_off(body)
    numbers = {record.number: record.name for record in memory.history.records.values() if record.number is not None}
    patch = _patch(agent, wanted.patch, store.redaction)
    working = Working(state.working)
    if patch is not None:
        working.apply(patch)
    known = working.freeze()
    blobs: list[Blob] = []
    results = {}
    for number, value in wanted.results.items():
        name = _tool_of(memory, numbers, number, state)
        tool = find_tool(name)
        packed = _packed(store, _result(tool, name, number, value), blobs)
        results[str(number)] = packed if tool is None else packed.under(tool.result_versions)
    more: dict[str, Any] = {}
    if wanted.input is not ...:
        packed = _packed(store, _input(agent, wanted.input), blobs)
        more["input"] = packed if agent is None else packed.under(agent.input_codec.versions)
    body = b.RunForked(
        run=row.id,
        at=at,
        step=max(_settled(state), *(_number_of(record) for record in memory.history.records.values()), 0),
        effects=wanted.effects,
        live=wanted.live,
        agent=state.agent,
        agent_version=version,
        patch=patch,
        results=results,
        deadline=_deadline(agent, state, now),
        user=state.user,
        session=state.session,
        conversation=state.conversation,
        exclusive=_exclusive(agent, state, row),
        labels=state.labels,
        steps=state.position.steps,
        goal=known.goal,
        item=known.position,
        items=len(known.plan),
        **more,
    )
    return body, blobs


def _settled(state: RunState) -> int:
    """The highest number of a step that has ended; in a loop of turns, the code does not come to most of them again."""
    steps = range(state.position.step, 0, -1)
    return next((number for number in steps if not _is_under_way(state, number)), 0)


def _is_under_way(state: RunState, number: int) -> bool:
    return any(step.number == number for step in state.steps)


async def _cut(store: Store, row: RunRow, wanted: ForkOptions) -> int:
    """The last event that is shared."""
    if (wanted.at is None) == (wanted.seq is None):
        raise InvalidArgument(path="at", reason="say at=, the number of a step, or seq=, that of an event")
    for name, number in (("at", wanted.at), ("seq", wanted.seq)):
        if number is not None and not isinstance(number, int):
            raise InvalidArgument(path=name, reason=f"{number!r} is no number")
    if wanted.seq is None:
        return await _before(store, row, wanted.at or 0)
    if not 1 <= wanted.seq <= row.seq:
        raise InvalidArgument(path="seq", reason=f"its events are 1 to {row.seq}")
    return wanted.seq


async def _before(store: Store, row: RunRow, step: int) -> int:
    """The last event before anything of a step; for the step after the last one, before the run came to its end."""
    if step < 1:
        raise InvalidArgument(path="at", reason="steps are counted from 1")
    begun: dict[int, int] = {}
    last = 1
    async for event in store.log(row.id):
        if event.kind in ("step.started", "request.opened", "run.forked"):
            body = store.decode(event)
            if isinstance(body, b.RunForked):  # numbers go on from there
                begun = {number: seq for number, seq in begun.items() if number <= body.step}
            elif isinstance(body, b.StepStarted | b.RequestOpened) and body.number is not None:
                begun.setdefault(body.number, event.seq)
        if not event.kind.startswith(_TAIL):
            last = event.seq
    if step not in begun and step > max([0, *begun]) + 1:
        raise no_step(row.id, step, max([0, *begun]))
    return begun.get(step, last + 1) - 1


async def make_fork(
    store: Store, run: str, body: b.RunForked, blobs: Sequence[Blob], *, actor: str, id: str | None
) -> str:
    """Make a fork: under its id, where the same one may be already, or under the next name that is free."""
    if id is not None:
        legs = await _legs(store, check_id(id), run, body, actor)
        if isinstance(await store.append(*legs, blobs=blobs), Taken):
            first = legs[0].bodies[0]
            assert isinstance(first, b.RunForked)
            await store.create(id, first, actor=actor)  # it is the same, or refused
        return id
    for number in count(1 + await store.count(RunFilter(origin=run))):
        name = _fork_id(run, number)
        if not isinstance(await store.append(*await _legs(store, name, run, body, actor), blobs=blobs), Taken):
            return name
    raise AssertionError


async def _legs(store: Store, name: str, run: str, body: b.RunForked, actor: str) -> list[Create]:
    """A fork, and with it one of the conversation that it is in: what it says is said there."""
    talk, own = body.conversation or conversation_of(run), conversation_of(name)
    at = await last_message_at(store, run, body.at, talk)
    if not at:
        return [Create(run=name, bodies=(body,), actor=actor)]
    told = b.ConversationForked(conversation=talk, at=at, session=body.session, user=body.user)
    mine = replace(body, conversation=own if body.conversation is not None else None)
    return [Create(run=name, bodies=(mine,), actor=actor), Create(run=own, bodies=(told,), actor=actor)]


def _fork_id(run: str, number: int) -> str:
    """What a fork is called; after a digest of the run, where its id would be too long."""
    name = f"{run}.{number}"
    return name if len(name) <= LONGEST_ID else f"{digest(run)[:32]}.{number}"


def _patch(agent: Agent[Any, Any] | None, given: Mapping[str, Any], redaction: Redaction) -> StatePatch | None:
    """A change of the state, as `run.patch` takes it."""
    if not given:
        return None
    unknown = sorted(given.keys() - set(_KEYS))
    if unknown:
        raise InvalidArgument(path=f"patch.{unknown[0]}", reason=f"a patch has {', '.join(_KEYS)}")
    change = dict(given)
    if "data" in change:
        change["data"] = _plain(change["data"])
        if agent is not None:
            agent.data_codec.load(change["data"])
    patch = StateChange(**change, source="fork").patch(_JSON, None, redaction)
    return patch if agent is None or "data" not in change else replace(patch, data_versions=agent.data_codec.versions)


def _tool_of(memory: Learned, numbers: Mapping[int, str], number: int, state: RunState) -> str:
    """The tool of a step that is shared and that the code comes to again."""
    name = numbers.get(number)
    if name is None:
        reason = "it is not a step before the cut that has ended"
        if memory.history.turns and 1 <= number <= state.position.step and not _is_under_way(state, number):
            reason = "its turn is over, and is not entered again: fork in that turn, or say what is known with a patch"
        raise InvalidArgument(path=f"results.{number}", reason=reason)
    opened = memory.history.records[name].opened
    assert isinstance(opened, b.StepStarted)
    return opened.tool


def _result(tool: Tool[..., Any, Any] | None, name: str, number: int, value: Any) -> Any:
    """A result as JSON, if its tool could have given it; where the tool is not known, any."""
    plain = _plain(value)
    try:
        if tool is not None:
            tool.load_result(plain)
    except InvalidValue as error:
        raise InvalidArgument(path=f"results.{number}", reason=f"{name} does not give this: {error.reason}") from error
    return plain


def _input(agent: Agent[Any, Any] | None, value: Any) -> Any:
    plain = _plain(value)
    return plain if agent is None else agent.dump_json(plain)


def _plain(value: Any) -> Any:
    """What somebody gives, typed or not, as JSON."""
    return codec_of(type(value)).dump(value)


def _packed(store: Store, plain: Any, blobs: list[Blob]) -> Payload:
    payload, more = store.pack(plain)
    blobs += more
    return payload


def _deadline(agent: Agent[Any, Any] | None, state: RunState, now: int) -> int | None:
    """As long as a new run would have; where the agent is not known, as long as the other one had."""
    if agent is not None:
        return None if agent.rules.deadline is None else now + agent.rules.deadline
    return None if state.deadline is None else now + max(state.deadline - state.created, 0)


def _number_of(record: Record) -> int:
    """Of a step, or of one that a person did not allow."""
    return record.opened.number or 0 if isinstance(record.opened, b.StepStarted | b.RequestOpened) else 0


def _exclusive(agent: Agent[Any, Any] | None, state: RunState, row: RunRow) -> str | None:
    if agent is None:
        return row.exclusive
    if agent.rules.exclusive is None:
        return None
    owner = state.session if agent.rules.exclusive == "session" else state.user
    return None if owner is None else f"{agent.rules.exclusive}:{owner}"
