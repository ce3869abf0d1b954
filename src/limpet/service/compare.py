"""Compare two runs: the first decision, call or answer that differs, then the rest, aligned."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Struct

from limpet.events import AnyBody, Event, Payload
from limpet.events import bodies as b
from limpet.journal import load
from limpet.service.diffs import ChangeInfo, Diff
from limpet.service.moments import used_by
from limpet.service.steps import call_text, describe_failure, plain_value, result_text, short
from limpet.service.views import load_values
from limpet.state import AgentState, LogView, RunState, StepView
from limpet.state.log_view import SETTLED
from limpet.stores import Store
from limpet.view import View

__all__ = ["Comparison", "DivergenceInfo", "compare"]

# Acts of each run, after those that are equal, that are aligned; the number of pairs grows with its square.
MOST = 2_000
NONE = "—"


class DivergenceInfo(View, frozen=True, kw_only=True):
    """The first thing that differs between two runs."""

    seq: int
    """The event of the first run; of the second, if the first has ended before."""
    one: str
    """Text of what the first run did."""
    other: str
    """Text of what the other run did instead."""


class Comparison(Diff, frozen=True, kw_only=True):
    """Where two runs diverge, and how their acts, states, usage and outcomes differ."""

    divergence: DivergenceInfo | None = None
    """The first difference."""


class _Act(Struct, frozen=True):
    """Something that a run did, or that happened to it: a call, a reply, a decision, an answer."""

    part: str
    subject: str
    """The same in two runs that did the same; the outcome may differ."""
    outcome: Any
    """Outcome for comparison."""
    seq: int
    text: str
    """Subject and outcome, for people."""

    @property
    def identity(self) -> tuple[str, str]:
        return self.part, self.subject


async def compare(store: Store, one: str, other: str) -> Comparison:
    """Compare two runs: where they diverge, and how their acts and final states differ."""
    acts = [[*_acts(await _log(store, run))] for run in (one, other)]
    states = [await load(store, run) for run in (one, other)]
    equal = _equal_start(*acts)
    first, second = (each[equal:] for each in acts)
    divergence = None
    if first or second:
        divergence = DivergenceInfo(
            seq=(first or second)[0].seq,
            one=first[0].text if first else "nothing more",
            other=second[0].text if second else "nothing more",
        )
    changes = [
        *_aligned(first[:MOST], second[:MOST]),
        *_parts(states[0].working, states[1].working),
        *_changes("spent", *(_used(state) for state in states)),
        *_changes("outcome", *({"": _outcome(state)} for state in states)),
    ]
    head = "both runs did the same" if divergence is None else f"the first {equal} acts are the same, then:"
    text = "\n".join([head, *(change.text for change in changes)])
    return Comparison(changes=tuple(changes), text=text, divergence=divergence)


async def _log(store: Store, run: str) -> list[tuple[Event, AnyBody]]:
    events = [event async for event in store.log(run)]
    return list(zip(events, await load_values(store, [store.decode(event) for event in events]), strict=True))


def _acts(log: Iterable[tuple[Event, AnyBody]]) -> Iterator[_Act]:
    """Yield what a run did, in order. The decision that a model's reply stands for is told with the reply."""
    view, others, called = LogView(), list[_Act](), dict[str, str]()
    for event, body in log:
        view.add(event, body)
        act = _of_event(event, body, called, view)
        if act is not None:
            others.append(act)
    steps = [_of_step(step) for step in view.steps.values()]
    replied = {_scope(step.name) for step in view.steps.values() if step.kind == "model"}
    told = [act for act in others if not (act.part == "decision" and _scope(act.subject) in replied)]
    yield from sorted((*steps, *told), key=lambda act: act.seq)


def _scope(name: str) -> str:
    return name.partition(": ")[0].rpartition("/")[0]


def _of_step(step: StepView) -> _Act:
    args, result = plain_value(step.args), plain_value(step.result)
    if step.kind == "model":
        call = identity = call_text(step.tool, args)
    else:
        call, identity = call_text(step.tool, args), f"{step.tool}({msgspec.json.encode(args).decode()})"
    if step.status in SETTLED and step.attempts[-1].status == "completed":
        said = f"{result_text(step.kind, result)}{' (edited)' if step.edited else ''}"
        return _Act("step", identity, ("completed", result), step.seq, f"{call} → {said}")
    error = step.status if step.error is None else describe_failure(step.error)
    return _Act("step", identity, (step.status, error), step.seq, f"{call} ✗ {short(error)}")


def _of_event(event: Event, body: AnyBody, called: dict[str, str], view: LogView) -> _Act | None:
    match body:
        case b.DecisionMade():
            text = f"{body.question} {_value(body.chosen)}: {body.because}"
            return _Act("decision", f"{body.name}: {body.question}", plain_value(body.chosen), event.seq, text)
        case b.RequestAnswered():
            question = view.requests[body.request].question if body.request in view.requests else body.request
            outcome = body.decision, plain_value(body.answer), plain_value(body.args), body.because
            said = " ".join(filter(None, (body.by, body.decision, _value(body.answer), body.because)))
            return _Act("request", question, outcome, event.seq, f"{question} {said}")
        case b.AgentCalled():
            called[body.run] = body.agent
            return None
        case b.AgentReturned():
            agent = called.get(body.run, body.run)
            how = body.outcome if body.failure is None else describe_failure(body.failure)
            text = f"{agent} {how} {_value(body.output)}".rstrip()
            return _Act("run", agent, (how, plain_value(body.output)), event.seq, text)
        case b.SignalReceived():
            text = f"signal {body.signal} {_value(body.value)}"
            return _Act("signal", body.signal, plain_value(body.value), event.seq, text)
        case _:
            return None


def _value(payload: Payload | None) -> str:
    return "" if payload is None else result_text("tool", plain_value(payload))


def _equal_start(one: Sequence[_Act], other: Sequence[_Act]) -> int:
    """Return how many acts are the same at the start."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (mine, its) in enumerate(pairs) if not _same(mine, its)), min(len(one), len(other)))


def _same(one: _Act, other: _Act) -> bool:
    return one.identity == other.identity and one.outcome == other.outcome


def _aligned(one: Sequence[_Act], other: Sequence[_Act]) -> Iterator[ChangeInfo]:
    """Yield the acts that differ, those with the same subject beside each other."""
    matcher = SequenceMatcher(None, [act.identity for act in one], [act.identity for act in other], autojunk=False)
    for _, first, last, start, end in matcher.get_opcodes():
        mine, its = one[first:last], other[start:end]
        for left, right in zip_longest(mine, its):
            if left is not None and right is not None and left.part != right.part:
                yield from (_difference(left, None), _difference(None, right))
            elif left is None or right is None or not _same(left, right):
                yield _difference(left, right)


def _difference(left: _Act | None, right: _Act | None) -> ChangeInfo:
    act = left or right
    assert act is not None
    texts = [NONE if each is None else each.text for each in (left, right)]
    outcomes = [None if each is None else each.text for each in (left, right)]
    text = f"{act.part}: {texts[0]} / {texts[1]}"
    return ChangeInfo(part=act.part, key=act.subject, before=outcomes[0], after=outcomes[1], text=text)


def _parts(one: AgentState, other: AgentState) -> Iterator[ChangeInfo]:
    """Yield how two states differ in what they say. Where a fact comes from, and ids, are not compared."""
    yield from _changes("goal", *({"": state.goal} for state in (one, other)))
    yield from _changes("plan", *(_plan(state) for state in (one, other)))
    yield from _changes("fact", *(_facts(state) for state in (one, other)))
    yield from _changes("question", *(dict.fromkeys(state.open_questions, "open") for state in (one, other)))
    yield from _changes("artifact", *(_artifacts(state) for state in (one, other)))
    yield from _changes("flag", *(dict.fromkeys(state.risk_flags, "raised") for state in (one, other)))
    yield from _changes("data", *({"": _data(state)} for state in (one, other)))


def _plan(state: AgentState) -> dict[str, str]:
    return {f"{number} {each.item}": each.status for number, each in enumerate(state.items, 1)}


def _facts(state: AgentState) -> dict[str, Any]:
    return {fact.key: msgspec.json.decode(fact.value) for fact in state.known_facts}


def _artifacts(state: AgentState) -> dict[str, str]:
    return {each.summary: f"{each.type}, {each.bytes} bytes" for each in state.artifacts}


def _data(state: AgentState) -> Any:
    return None if isinstance(state.data, msgspec.UnsetType) else msgspec.json.decode(state.data)


def _used(state: RunState) -> dict[str, float]:
    return used_by(state.spent)


def _outcome(state: RunState) -> str:
    return f"{state.status} {_value(state.output)}".strip()


def _changes(part: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[ChangeInfo]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old != new:
            name = f"{part} {key}".rstrip()
            text = f"{name}: {_shown(old)} / {_shown(new)}"
            yield ChangeInfo(part=part, key=key, before=old, after=new, text=text)


def _shown(value: Any) -> str:
    if value is None or value == "":
        return NONE
    return f"{value:g}" if isinstance(value, float) else short(value if isinstance(value, str) else repr(value))
