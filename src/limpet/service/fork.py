"""Fork a run: create a run that continues from a step or event of another one, with some changes.

All options are validated before anything is created: the step, the patch, the results, the input.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from limpet.engine.approvals.refusals import refusal_in
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.tools import Tool, find_tool
from limpet.engine.definitions.types import codec_of
from limpet.engine.execution.principal import Principal
from limpet.engine.replay.history import Record
from limpet.engine.replay.learned import Learned
from limpet.engine.run.conversation import conversation_of
from limpet.engine.run.working_state import StateChange
from limpet.errors import InvalidArgument, InvalidValue
from limpet.events import AnyBody, Effects, Limits, Outside, Payload, StatePatch, digest
from limpet.events import bodies as b
from limpet.ids import LONGEST_ID, check_id
from limpet.journal import load_whole
from limpet.journal.steps import no_step
from limpet.redaction import Redaction
from limpet.service.conversations import last_message_at
from limpet.service.initial_state import with_limits
from limpet.state import LogView, RunState, step_of
from limpet.state.patch import Working
from limpet.stores import Create, RunFilter, RunRow, Store, Taken
from limpet.stores.blobs import Blob
from limpet.stores.fork_reads import StepRange

__all__ = ["ForkOptions", "make_fork", "plan_fork"]

_JSON = codec_of(Any)
_MODES = ("ask", "stub", "live")
_KEYS = tuple(name for name in StateChange.__struct_fields__ if name != "source")
# Kinds of events at the end of a log that do not belong to the last step.
_TAIL = ("run.", "compensation.", "cancel.", "pause.", "resume.", "risk.", "score.")
# Number of events to read at a time from the end of a log.
PAGE = 100


class ForkOptions(Struct, frozen=True, kw_only=True):
    """Options of a fork."""

    at: int | None = None
    """Number of the first step that is not shared."""
    seq: int | None = None
    """Number of the last event that is shared."""
    patch: Mapping[str, Any] = {}
    results: Mapping[int, Any] = {}
    effects: Effects = "ask"
    live: tuple[Outside, ...] = ()
    """External calls that are allowed although effects are stubbed."""
    version: str | None = None
    input: Any = ...
    """A new input; an ellipsis keeps the old one."""
    limits: Limits | None = None
    """Limits that replace the run's."""
    deadline: int | None = None
    """Another deadline."""
    by: Principal
    """Who forks the run."""


async def plan_fork(
    store: Store, row: RunRow, agent: Agent[Any, Any] | None, options: ForkOptions, now: int
) -> tuple[b.RunForked, list[Blob]]:
    """Return the first event of a fork and its blobs. Raises InvalidArgument."""
    if options.effects not in _MODES:
        raise InvalidArgument(path="effects", reason=f"unknown mode {options.effects!r}; use {', '.join(_MODES)}")
    if options.live and options.effects != "stub":
        reason = "needs effects='stub'; otherwise, external calls are always allowed"
        raise InvalidArgument(path=options.live[0], reason=reason)
    at = await _last_shared_event(store, row, options)
    memory = Learned()
    state = (await load_whole(store, row.id, at_most=at, learner=memory)).state
    version = options.version or state.agent_version
    body = b.RunForked(run=row.id, at=at, step=0, effects=options.effects, agent=state.agent, agent_version=version)
    memory.history.apply_fork(body)
    numbers = {record.number: record.name for record in memory.history.records.values() if record.number is not None}
    working = Working(state.working)
    patch = _patch(agent, options.patch, working, store.redaction)
    if options.limits is not None:
        patch = replace(patch or StatePatch(), budget=with_limits(state.working.budget, options.limits))
    if patch is not None:
        working.apply(patch)
    known = working.freeze()
    blobs: list[Blob] = []
    results = {}
    for number, value in options.results.items():
        name = _tool_of(memory, numbers, number, state)
        tool = find_tool(name)
        packed = _packed(store, _result(tool, name, number, value), blobs)
        results[str(number)] = packed if tool is None else packed.under(tool.result_versions)
    more: dict[str, Any] = {}
    if options.input is not ...:
        packed = _packed(store, _input(agent, options.input), blobs)
        more["input"] = packed if agent is None else packed.under(agent.input_codec.versions)
    body = b.RunForked(
        run=row.id,
        at=at,
        step=max(_settled(state), *(_number_of(record) for record in memory.history.records.values()), 0),
        effects=options.effects,
        live=options.live,
        agent=state.agent,
        agent_version=version,
        patch=patch,
        results=results,
        deadline=options.deadline or _deadline(agent, state, now),
        user=state.user,
        session=state.session,
        conversation=state.conversation,
        exclusive=_exclusive(agent, state, row),
        labels=state.labels,
        steps=state.position.steps,
        goal=known.goal,
        item=known.position,
        items=len(known.plan),
        engine=row.engine,
        **options.by.sender,
        **more,
    )
    return body, blobs


def _settled(state: RunState) -> int:
    """Return the highest number of a settled step. In a loop of turns, the code does not reach most steps again."""
    steps = range(state.position.step, 0, -1)
    return next((number for number in steps if not _is_running(state, number)), 0)


def _is_running(state: RunState, number: int) -> bool:
    return any(step.number == number for step in state.steps)


async def _last_shared_event(store: Store, row: RunRow, options: ForkOptions) -> int:
    """Return the last event that is shared."""
    if (options.at is None) == (options.seq is None):
        raise InvalidArgument(path="at", reason="pass at= (a step number) or seq= (an event number)")
    for name, number in (("at", options.at), ("seq", options.seq)):
        if number is not None and not isinstance(number, int):
            raise InvalidArgument(path=name, reason=f"{number!r} is not an integer")
    if options.seq is None:
        return await _before(store, row, options.at or 0)
    if not 1 <= options.seq <= row.seq:
        raise InvalidArgument(path="seq", reason=f"must be between 1 and {row.seq}, the last event of {row.id}")
    return options.seq


async def _before(store: Store, row: RunRow, step: int) -> int:
    """Return the last event before anything of a step. For the step after the last one, the last event before the run's
    end.
    """
    if step < 1:
        raise InvalidArgument(path="at", reason="must be at least 1, the first step")
    found = await _events_of(store, row.id, StepRange(after=step - 1, before=step + 1))
    if found:
        return found[0][0] - 1
    newest = await _events_of(store, row.id, StepRange(limit=1, backwards=True))
    last = max([row.step, *(number for _, number in newest)])
    if step > last + 1:
        raise no_step(row.id, step, last)
    before = None
    while page := await store.read(row.id, before=before, limit=PAGE, backwards=True):
        for event in page:
            if not event.kind.startswith(_TAIL) and not _is_refusal(store.decode(event), step):
                return event.seq
        before = page[-1].seq
    return 1


def _is_refusal(body: AnyBody, step: int) -> bool:
    """Return whether an event records that this step was refused: the fork decides that again."""
    refusal = refusal_in(body) if isinstance(body, b.ValueRecorded) else None
    return refusal is not None and refusal.number == step


async def _events_of(store: Store, run: str, steps: StepRange) -> list[tuple[int, int]]:
    """Return the sequences of the events of some steps, with their steps. What a fork does not share does not count."""
    view, found, forked_at = LogView(), list[tuple[int, int]](), 0
    for event in await store.read_steps(run, steps):
        body = store.decode(event)
        view.add(event, body)
        number = step_of(body)
        if isinstance(body, b.RunForked):
            forked_at = event.seq
        elif number is not None:
            found.append((event.seq, number))
    shared = {number for number, step in view.steps.items() if step.shared}
    return [(seq, number) for seq, number in found if seq > forked_at or number in shared]


async def make_fork(
    store: Store, run: str, body: b.RunForked, blobs: Sequence[Blob], *, actor: str, id: str | None
) -> str:
    """Create a fork, with a given id (the same fork may exist) or with the next free one."""
    if id is not None:
        legs = await _legs(store, check_id(id), run, body, actor)
        if isinstance(await store.append(*legs, blobs=blobs), Taken):
            first = legs[0].bodies[0]
            assert isinstance(first, b.RunForked)
            await store.create(id, first, actor=actor)  # Raises IdConflict if it is a different run.
        return id
    for number in count(1 + await store.count(RunFilter(origin=run))):
        name = _fork_id(run, number)
        if not isinstance(await store.append(*await _legs(store, name, run, body, actor), blobs=blobs), Taken):
            return name
    raise AssertionError


async def _legs(store: Store, name: str, run: str, body: b.RunForked, actor: str) -> list[Create]:
    """Return the appends that create a fork and, if it has a conversation, a fork of that conversation for its
    messages.
    """
    talk, own = body.conversation or conversation_of(run), conversation_of(name)
    at = await last_message_at(store, run, body.at, talk)
    if not at:
        return [Create(run=name, bodies=(body,), actor=actor)]
    forked = b.ConversationForked(conversation=talk, at=at, session=body.session, user=body.user)
    mine = replace(body, conversation=own if body.conversation is not None else None)
    return [Create(run=name, bodies=(mine,), actor=actor), Create(run=own, bodies=(forked,), actor=actor)]


def _fork_id(run: str, number: int) -> str:
    """Return the id of a fork; based on a digest if the run's id is too long."""
    name = f"{run}.{number}"
    return name if len(name) <= LONGEST_ID else f"{digest(run)[:32]}.{number}"


def _patch(
    agent: Agent[Any, Any] | None, given: Mapping[str, Any], before: Working, redaction: Redaction
) -> StatePatch | None:
    """Return a state patch, given as for `run.patch`."""
    if not given:
        return None
    unknown = sorted(given.keys() - set(_KEYS))
    if unknown:
        raise InvalidArgument(path=f"patch.{unknown[0]}", reason=f"unknown field; allowed: {', '.join(_KEYS)}")
    change = dict(given)
    if "data" in change:
        change["data"] = _plain(change["data"])
        if agent is not None:
            agent.data_codec.load(change["data"])
    patch = StateChange(**change, source="fork").patch(_JSON, None, before, redaction)
    return patch if agent is None or "data" not in change else replace(patch, data_versions=agent.data_codec.versions)


def _tool_of(memory: Learned, numbers: Mapping[int, str], number: int, state: RunState) -> str:
    """Return the tool of a shared step that the code reaches again. Raises InvalidArgument for any other step."""
    name = numbers.get(number)
    if name is None:
        reason = "not a settled step before the fork point"
        if memory.history.turns and 1 <= number <= state.position.step and not _is_running(state, number):
            reason = "its turn has ended and is not entered again; fork in that turn, or change the state with patch="
        raise InvalidArgument(path=f"results.{number}", reason=reason)
    opened = memory.history.records[name].opened
    assert isinstance(opened, b.StepStarted)
    return opened.tool


def _result(tool: Tool[..., Any, Any] | None, name: str, number: int, value: Any) -> Any:
    """Return a result as JSON, checked against the tool's return type if the tool is known."""
    plain = _plain(value)
    try:
        if tool is not None:
            tool.load_result(plain)
    except InvalidValue as error:
        raise InvalidArgument(
            path=f"results.{number}", reason=f"not a result of {name}: {error.at('result')}"
        ) from error
    return plain


def _input(agent: Agent[Any, Any] | None, value: Any) -> Any:
    plain = _plain(value)
    return plain if agent is None else agent.dump_json(plain)


def _plain(value: Any) -> Any:
    """Return a value, typed or not, as JSON."""
    return codec_of(type(value)).dump(value)


def _packed(store: Store, plain: Any, blobs: list[Blob]) -> Payload:
    payload, more = store.pack(plain)
    blobs += more
    return payload


def _deadline(agent: Agent[Any, Any] | None, state: RunState, now: int) -> int | None:
    """Return the deadline of a fork: that of a new run, or if the agent is unknown, as long as the original run had."""
    if agent is not None:
        return None if agent.rules.deadline is None else now + agent.rules.deadline
    return None if state.deadline is None else now + max(state.deadline - state.created, 0)


def _number_of(record: Record) -> int:
    """Return the step number of a record: of a step, or of a request for one."""
    return record.opened.number or 0 if isinstance(record.opened, b.StepStarted | b.RequestOpened) else 0


def _exclusive(agent: Agent[Any, Any] | None, state: RunState, row: RunRow) -> str | None:
    if agent is None:
        return row.exclusive
    if agent.rules.exclusive is None:
        return None
    owner = state.session if agent.rules.exclusive == "session" else state.user
    return None if owner is None else f"{agent.rules.exclusive}:{owner}"
