"""Wrong values for every argument of every public method of Run and App.

Each call either raises a LimpetError and writes nothing, or leaves a log that can be read. Methods and parameters are
found by introspection: a new one fails here until it has an example. Without `--full`, every eighth call is made.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_overloads, get_type_hints

import pytest

import limpet
from limpet import testing
from limpet.engine.run.run import Run
from limpet.engine.run.shared_records import shown_record
from limpet.service.app import App
from limpet.service.artifacts import content_of
from limpet.state.shared_record import RecordState
from limpet.stores import RunFilter
from limpet.testing.app import TestApp

WRITTEN = "run.created", "run.claimed", "state.patched", "run.completed"
# These outcomes are recorded: the call was valid, but did not succeed.
RECORDED = limpet.StepFailed, limpet.Expired, limpet.RecordConflict
# Without --full, one of this many wrong calls is made.
EVERY = 12


class Text(str):
    """A subclass of str."""

    __slots__ = ()


def _deep() -> Any:
    found: Any = "x"
    for _ in range(2_000):
        found = [found]
    return found


# Created for each call, since a method may consume the value.
WRONG: Mapping[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "zero": lambda: 0,
    "int": lambda: 5,
    "negative": lambda: -1,
    "float": lambda: 1.5,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "huge": lambda: 10**400,
    "beyond 64 bits": lambda: 1 << 70,
    "empty": lambda: "",
    "word": lambda: "no such thing",
    "surrogate": lambda: "a\ud800b",
    "nul": lambda: "a\0b",
    "long": lambda: "x" * 70_000,
    "subclass of str": lambda: Text("text"),
    "bytes": lambda: b"bytes",
    "object": object,
    "list": list,
    "list of ints": lambda: [5],
    "list of surrogates": lambda: ["\ud800"],
    "list of None": lambda: [None],
    "dict": dict,
    "int keys": lambda: {1: 2},
    "surrogate keys": lambda: {"\ud800": 1},
    "surrogate values": lambda: {"key": "\ud800"},
    "object values": lambda: {"key": object()},
    "set": lambda: {1, 2},
    "tuple": lambda: (1, 2),
    "function": lambda: lambda: None,
    "class": lambda: int,
    "generator": lambda: (each for each in (1, 2)),
    "naive time": lambda: datetime(2026, 1, 1),  # noqa: DTZ001 - wrong on purpose
    "first year": lambda: datetime(1, 1, 1, tzinfo=UTC),
    "path": lambda: Path("no/such/file"),
    "exception": lambda: ValueError("no"),
    "deep": _deep,
}


@limpet.tool(effect="none", name="law_look")
async def look(order: str) -> str:
    return order


@limpet.tool(effect="idempotent", risk="external_action", name="law_refund")
async def refund(order: str) -> str:
    return order


@limpet.external(ttl="1h", name="law_price")
async def price(item: str = "tea") -> int:
    return len(item)


@limpet.agent(name="law_child")
async def child(run: Run, task: str) -> str:
    return task


NO_RECORD = shown_record("board", RecordState())


class Example(NamedTuple):
    """A valid call, whose arguments are replaced by wrong ones, one after the other."""

    args: Mapping[str, Any]
    kwargs: Mapping[str, Any] = {}


VERBS: Mapping[str, tuple[Example, ...]] = {
    "step": (Example({"tool": look, "args": "o-1"}),),
    "read": (Example({"source": price, "args": "tea"}),),
    "read_again": (Example({"source": price}),),
    "call": (
        Example(
            {"agent": child, "input": "go"},
            {"budget": limpet.Budget(max_steps=3), "deadline": "1h", "facts": ["known"], "artifacts": []},
        ),
        Example({"agent": "law_child", "input": "go"}),
    ),
    "handoff": (Example({"agent": child, "input": "go"}, {"facts": ["known"], "artifacts": []}),),
    "start": (Example({"agent": child, "input": "go"}, {"id": None}),),
    "ask": (
        Example({"question": "Is it?"}, {"to": "ann", "expires": "1h", "escalate": ["bob"], "default": True}),
        Example({"question": "Which?"}, {"options": ["a", "b"], "default": "a", "expires": "1h", "name": "which"}),
        Example({"question": "How many?"}, {"answer": int, "default": 5, "expires": "1h"}),
    ),
    "sleep": (Example({"how_long": "1h"}),),
    "receive": (Example({"name": "go", "type": str}, {"timeout": "1h"}),),
    "patch": (
        Example(
            {},
            {
                "goal": "settle it",
                "facts": {"price": 5},
                "plan": ["look"],
                "revise": {"look": "doing"},
                "questions": ["why?"],
                "answered": {"old?": "yes"},
                "flags": ["angry"],
                "lower": ["old"],
                "discard": [],
                "data": {"seen": 1},
                "budget": limpet.Budget(max_steps=90),
                "constraints": {"region": "eu"},
                "source": "shop",
                "retract": ["known"],
                "derived_from": ["other"],
            },
        ),
    ),
    "signal": (Example({"run": "other", "name": "go", "value": "x"}),),
    "record": (Example({"name": "board"}),),
    "patch_record": (
        Example(
            {"record": NO_RECORD},
            {
                "facts": {"price": 5},
                "retract": [],
                "source": "the page",
                "derived_from": ["cost"],
                "plan": ["look"],
                "revise": {"look": "done"},
                "questions": {"q1": "When?"},
                "answered": {},
                "close": [],
                "data": {"k": 1},
                "unset": [],
            },
        ),
    ),
    "send_patch": (
        Example(
            {"run": "other"},
            {
                "goal": "settle it",
                "facts": {"price": 5},
                "plan": ["look"],
                "questions": ["why?"],
                "answered": {},
                "flags": ["angry"],
                "lower": [],
                "source": "shop",
                "retract": [],
                "derived_from": ["other"],
            },
        ),
    ),
    "decide": (Example({"question": "Which?"}, {"choose": 1, "over": [1, 2], "because": "less", "confidence": 0.5}),),
    "artifact": (Example({"data": b"big"}, {"type": "text", "summary": "It is big."}),),
    "content": (Example({"artifact": "a-1"}),),
    "say": (Example({"text": "Hello."}, {"role": "assistant"}),),
    "compact": (Example({"summarise": str}, {"above": 5, "keep": 5}),),
    "messages": (Example({}, {"last": 5}),),
    "context": (Example({}, {"max_tokens": 2_000, "max_bytes": 5_000}),),
    "scope": (Example({"name": "inner"}),),
    "turns": (Example({}, {"max": 1}),),
    "version": (Example({"change": "new-way"}),),
    "now": (Example({}),),
    "random": (Example({}),),
    "uuid": (Example({}),),
}


@dataclass
class Outcome:
    """The outcome of one call."""

    error: BaseException | None = None


def public(kind: type) -> set[str]:
    """Return the names of the public methods of a class."""
    return {name for name, each in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def parameters(kind: type, name: str) -> set[str]:
    """Return every parameter of a public method, including those of its overloads."""
    fn = getattr(kind, name)
    found: set[str] = set()
    for each in (*get_overloads(fn), fn):
        signature = inspect.signature(each).parameters.values()
        found |= {p.name for p in signature if p.kind is not p.VAR_KEYWORD}
        for more in (p.annotation for p in signature if p.kind is p.VAR_KEYWORD):
            found |= {name for kind in get_args(more) for name in get_type_hints(get_origin(kind) or kind)}
    return found - {"self", "kwargs"}


def wrong_calls(example: Example) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield the calls with each argument replaced by each wrong value."""
    for name in (*example.args, *example.kwargs):
        for wrong, make in WRONG.items():
            args = [make() if each == name else given for each, given in example.args.items()]
            kwargs = {each: make() if each == name else given for each, given in example.kwargs.items()}
            yield f"{name}={wrong}", args, kwargs


def chosen_calls(example: Example, first: int, *, full: bool) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield all wrong calls with --full, otherwise every twelfth, so that each argument gets other wrong values."""
    return wrong_calls(example) if full else islice(wrong_calls(example), first % EVERY, None, EVERY)


class Case(NamedTuple):
    """One wrong call of a method."""

    verb: str
    what: str
    args: list[Any]
    kwargs: dict[str, Any]


CASES: dict[str, tuple[Case, Outcome]] = {}


@limpet.agent(name="law_caller")
async def caller(run: Run, case: str) -> str:
    """Make a wrong call, and continue."""
    (_, _, args, kwargs), outcome = CASES[case][0], CASES[case][1]
    await run.patch(facts={"known": 1, "other": 2}, questions=["old?"], flags=["old"])
    try:
        await perform(getattr(run, CASES[case][0].verb)(*args, **kwargs))
    except Exception as error:
        outcome.error = error
        if not isinstance(error, limpet.LimpetError):
            raise
    return case


async def perform(given: Any) -> None:
    """Await, enter or iterate the result of a method."""
    if isinstance(given, AbstractAsyncContextManager):
        async with given:
            pass
    elif isinstance(given, AsyncIterator):
        with suppress(TimeoutError):  # it may be endless, and have no item
            async with asyncio.timeout(0.05):
                async for _ in given:
                    break
    elif inspect.isawaitable(given):
        await given


def test_every_run_method_has_an_example_with_all_its_parameters() -> None:
    """A new method or parameter needs an example here."""
    assert public(Run) == set(VERBS)
    for name, examples in VERBS.items():
        given = {each for example in examples for each in (*example.args, *example.kwargs)}
        assert given == parameters(Run, name), name


@pytest.mark.parametrize("verb", sorted(VERBS))
async def test_a_run_method_with_a_wrong_value_raises_or_leaves_a_readable_log(verb: str, full: bool) -> None:
    """The run can be read and continues."""
    first = sorted(VERBS).index(verb)
    faults: list[str] = []
    async with testing.app(caller, child) as app:
        for example in VERBS[verb]:
            for what, args, kwargs in chosen_calls(example, first, full=full):
                id = f"r-{len(CASES)}"
                CASES[id] = (Case(verb, what, args, kwargs), Outcome())
                await app.start(caller, id, id=id)
                await app.settle()
                if wrong := await unreadable(app, id):
                    faults.append(f"{what}: {wrong}")
    assert not faults, "\n".join(faults)


async def unreadable(app: TestApp, id: str) -> str | None:
    """Return the fault of a run in which a wrong call was made, or None."""
    error = CASES[id][1].error
    if error is not None and not isinstance(error, limpet.LimpetError):
        return f"untyped {error!r}"
    try:
        await read_all(app, id)
    except Exception as unread:  # noqa: BLE001 - any exception is a fault
        return f"unreadable {unread!r} after {error!r}"
    status = (await app.info(id)).status
    kinds = [event.kind for event in await app.log(id)]
    if error is not None and status != "completed":
        return f"{status} after {error!r}, {kinds}"
    if error is not None and not isinstance(error, RECORDED) and tuple(kinds) != WRITTEN:
        return f"wrote {kinds} before {error!r}"
    return None if status in ("completed", "waiting") else f"{status}, {(await app.info(id))}, {kinds}"


async def read_all(app: App, run: str) -> None:
    """Read a run in every way."""
    await app.verify(run)
    await app.log(run)
    await app.state(run)
    await app.timeline(run)
    await app.inbox(run=run)


# Commands


@limpet.agent(
    name="law_world",
    approvals=limpet.Approvals("external_action"),
    budget=limpet.Budget(max_steps=20),
    deadline="1h",
)
async def world(run: Run, part: str) -> str:
    """Bring the run into the state that the input names."""
    await run.patch(goal="stand", facts={"part": part})
    await run.decide("Which?", choose=part, over=[part, "none"], because="it was said")
    match part:
        case "asking":
            await run.ask("Is it?")
        case "approving":
            await run.step(refund, "o-1")
        case "granted":
            await run.step(refund, "o-1")
            await run.receive("go", str)
        case "hearing":
            await run.receive("go", str)
        case "failed":
            raise ValueError("it fails")
        case _:
            await run.artifact(b"big", type="text", summary="It is big.")
            await run.step(look, "o-1")
    return part


PARTS = "asking", "approving", "granted", "hearing", "failed", "done"


@dataclass(frozen=True)
class Made:
    """A reference to an object of the world, by name."""

    name: str


@asynccontextmanager
async def worlds() -> AsyncIterator[tuple[TestApp, dict[str, Any]]]:
    """Create a run in each state, a conversation, and the other objects of commands."""
    async with testing.app(world, child) as app:
        for part in PARTS:
            await app.start(world, part, id=part)
        await app.settle()
        asked = {each.run: each for each in await app.inbox()}
        await app.approve(asked["granted"], by="ann", standing=True)
        await app.say("talk", "Hello.")
        await app.settle()
        [grant] = await app.grants("granted")
        await app.score("hearing", "quality", 0.5, by="ann")
        await app.patch_record("board", read=0, facts={"cost": 4}, plan=["look"])
        [artifact] = (await app.state("done")).artifacts
        made = {"ask": asked["asking"], "approval": asked["approving"].id, "grant": grant.grant}
        made["token"] = (await app.create_token("ann", roles=["viewer"])).info.id
        content = await content_of(app.store, "done", artifact.artifact_id)
        yield app, {**made, "artifact": artifact.artifact_id, "blob": content.blob}


async def nothing() -> int:
    return 1


COMMANDS: Mapping[str, tuple[Example, ...]] = {
    "agents": (Example({}),),
    "answer": (Example({"request": Made("ask"), "answer": True}, {"by": "ann", "command_id": None}),),
    "approve": (
        Example(
            {"request": Made("approval")},
            {"by": "ann", "args": {"order": "o-2"}, "standing": False, "command_id": None},
        ),
        Example({"request": Made("ask")}, {"by": "ann"}),
    ),
    "artifact": (Example({"run": "done", "artifact": Made("artifact")}),),
    "artifact_piece": (
        Example({"run": "done", "artifact": Made("artifact")}, {"start": 0, "limit": 100, "raw": True}),
    ),
    "replace": (
        Example(
            {},
            {
                "interface": "x",
                "idle": True,
                "creates_store": True,
                "store": None,
                "url": None,
                "worker": None,
            },
        ),
    ),
    "batch": (
        Example(
            {"command": "pause"},
            {
                "runs": (),
                "status": "waiting",
                "agent": None,
                "session": None,
                "user": "ann",
                "labels": {},
                "text": None,
                "since": "1d",
                "until": None,
                "reason": "later",
                "id": None,
                "by": "ann",
            },
        ),
    ),
    "cancel": (Example({"run": "hearing"}, {"reason": "enough", "by": "ann", "command_id": "c-1"}),),
    "close": (),
    "compact": (
        Example({"conversation": "talk", "summary": "They talked."}, {"keep": 5, "by": "ann", "command_id": "c-1"}),
    ),
    "compare": (Example({"one": "done", "other": "failed"}),),
    "context": (Example({"run": "done"}, {"before": None, "after": None, "max_bytes": 5_000, "max_tokens": 2_000}),),
    "conversations": (Example({}, {"session": None, "user": None, "last": 5, "cursor": None}),),
    "decisions": (Example({"text": "Which"}, {"run": None, "agent": None, "last": 5, "since": "1d", "cursor": None}),),
    "diff": (Example({"run": "done"}, {"since": None, "until": None, "step": None}),),
    "doctor": (Example({}, {"last": 5, "stuck": "10m"}),),
    "errors": (Example({}, {"run": None, "agent": None, "last": 5, "since": "1d", "cursor": None}),),
    "create_login": (
        Example(
            {"name": "ann"},
            {"roles": ["viewer"], "groups": ["a"], "expires": "1d", "tenant": None, "by": None},
        ),
    ),
    "events": (Example({"run": "done", "after": 0}, {"follow": False}),),
    "find": (
        Example({"kind": "run", "given": "done"}),
        Example({"kind": "artifact", "given": Made("artifact")}, {"run": "done"}),
    ),
    "now": (Example({}),),
    "replies": (Example({"run": "done", "after": 0}),),
    "whoami": (Example({}, {"caller": None}),),
    "export": (Example({"run": "done", "path": "run.zip"}, {"with_handoffs": True, "by": "ann"}),),
    "fork": (
        Example(
            {"run": "done"},
            {
                "at": 1,
                "budget": {"max_steps": 50},
                "by": "ann",
                "deadline": "2h",
                "effects": "stub",
                "id": None,
                "input": "asking",
                "model": None,
                "patch": {"goal": "other"},
                "reads": None,
                "results": {},
                "version": None,
            },
        ),
        Example({"run": "done"}, {"seq": 3}),
    ),
    "extend": (
        Example(
            {"run": "hearing"},
            {
                "budget": {"max_steps": 50},
                "deadline": "2h",
                "because": "it is slow",
                "by": "ann",
                "command_id": None,
            },
        ),
    ),
    "get": (Example({"run": "done", "agent": world}),),
    "grant": (Example({"run": "hearing"}, {"tool": "law_look", "risk": None, "by": "ann", "command_id": None}),),
    "grants": (Example({"run": "granted"}),),
    "inbox": (
        Example(
            {},
            {
                "older_than": "1us",
                "risk": None,
                "run": None,
                "to": "ann",
                "limit": 5,
                "cursor": None,
                "caller": limpet.Principal(name="ann", roles=("approver",)),
            },
        ),
    ),
    "info": (Example({"run": "done"}),),
    "import_tasks": (Example({"source": "tasks.json"}, {"agent": "law_world", "running": "pending", "by": "ann"}),),
    "input": (Example({"run": "done"}),),
    "load": (Example({"path": "run.zip"}, {"max_bytes": 1_000_000}),),
    "log": (Example({"run": "done"}, {"limit": 5, "cursor": "1"}),),
    "messages": (Example({"conversation": "talk"}, {"last": 5, "whole": False, "cursor": None}),),
    "prompt": (Example({"run": "done"}, {"step": 1}),),
    "once": (Example({"key": "k-1", "fn": nothing}),),
    "open": (),
    "patch": (
        Example(
            {"run": "hearing"},
            {
                "seq": None,
                "goal": "settle it",
                "facts": {"price": 5},
                "plan": ["look"],
                "questions": ["why?"],
                "answered": {},
                "flags": ["angry"],
                "lower": [],
                "source": "shop",
                "retract": [],
                "derived_from": ["other"],
                "by": "ann",
                "command_id": None,
            },
        ),
    ),
    "with_engine": (Example({}, {"engine": None}),),
    "move": (Example({"run": "hearing"}, {"engine": "builtin", "by": "ann", "command_id": None}),),
    "pause": (Example({"run": "hearing"}, {"reason": "later", "by": "ann", "command_id": None}),),
    "prune": (
        Example(
            {},
            {
                "older_than": "1d",
                "dry_run": True,
                "by_status": {"failed": "2d"},
                "by_agent": {"law_world": None},
                "archive": None,
                "snapshots": 3,
            },
        ),
        Example({}, {"older_than": 0, "dry_run": False, "archive": "kept", "snapshots": 3}),
    ),
    "request": (Example({"request": Made("ask")}, {"caller": None}),),
    "precedents": (Example({"request": Made("approval")}, {"caller": None}),),
    "lineage": (Example({"run": "done"}),),
    "reject": (Example({"request": Made("approval")}, {"by": "ann", "because": "no", "command_id": None}),),
    "replay": (Example({"run": "done"}, {"allow": [], "on_step": None, "to": None}),),
    "replay_all": (Example({}, {"agent": None, "last": 5, "status": ()}),),
    "result": (Example({"run": "done", "timeout": "1s"}, {"quiet": True}),),
    "resume": (Example({"run": "failed"}, {"by": None, "command_id": None}),),
    "revoke": (
        Example({"run": "granted", "grant": Made("grant")}, {"by": "ann", "because": "enough", "command_id": None}),
    ),
    "run": (
        Example(
            {"agent": world, "input": "done"},
            {
                "id": None,
                "by": "ann",
                "session": "s",
                "user": "u",
                "conversation": None,
                "labels": {"a": "b"},
                "state": {"goal": "stand"},
                "goal": "settle it",
                "facts": {"price": 5},
                "plan": ["look"],
                "constraints": None,
                "budget": {"max_steps": 50},
                "deadline": "2h",
                "quiet": True,
            },
        ),
    ),
    "runs": (
        Example(
            {},
            {
                "agent": None,
                "conversation": None,
                "last": 5,
                "session": None,
                "status": None,
                "user": None,
                "waits_for": None,
                "parent": None,
                "fork_of": None,
                "labels": ["team=sales"],
                "text": "law",
                "scored": "quality<0.5",
                "since": "1d",
                "until": None,
                "sort": "updated",
                "cursor": None,
            },
        ),
    ),
    "save_heads": (Example({"path": "heads.json"}),),
    "say": (Example({"conversation": "talk", "text": "Hello."}, {"interrupt": False, "by": None, "command_id": None}),),
    "score": (
        Example(
            {"run": "done", "name": "quality", "value": 0.5},
            {"comment": "well done", "step": None, "by": "ann", "command_id": None},
        ),
    ),
    "scores": (
        Example(
            {},
            {
                "run": "done",
                "name": "quality",
                "who": "ann",
                "agent": None,
                "since": "1d",
                "dataset": True,
                "last": 5,
                "cursor": None,
            },
        ),
    ),
    "search": (Example({"text": "Which"}, {"kind": None, "last": 5, "since": "1d", "cursor": None}),),
    "sessions": (Example({}, {"last": 5, "cursor": None}),),
    "signal": (Example({"run": "hearing", "name": "go", "value": "x"}, {"by": None, "command_id": None}),),
    "unscore": (Example({"run": "hearing", "name": "quality"}, {"step": None, "by": "ann", "command_id": None}),),
    "start": (
        Example(
            {"agent": world, "input": "done"},
            {
                "id": None,
                "by": "ann",
                "session": "s",
                "user": "u",
                "conversation": "talk",
                "labels": {"a": "b"},
                "state": {"goal": "stand"},
                "goal": "settle it",
                "facts": {"price": 5},
                "plan": ["look"],
                "constraints": {},
                "budget": {"max_steps": 50},
                "deadline": "2h",
                "at": "1s",
            },
        ),
        Example({"agent": "law_world", "input": "done"}),
    ),
    "state": (Example({"run": "done"}, {"before": None, "after": None, "seq": None, "at": None, "steps": 5}),),
    "stats": (Example({}),),
    "activity": (Example({}, {"agent": None, "until": None, "last": 5}),),
    "show": (Example({"run": "done"}),),
    "step": (Example({"run": "done", "step": 1}),),
    "steps": (Example({"run": "done"}, {"limit": 5, "cursor": None, "newest": True, "seq": 3}),),
    "create_token": (
        Example(
            {"name": "ann"},
            {
                "roles": ["operator"],
                "kind": "service",
                "rights": ["raw"],
                "groups": ["finance"],
                "expires": "90d",
                "tenant": "main",
                "by": "ann",
                "command_id": None,
            },
        ),
    ),
    "audit": (Example({}, {"who": "ann", "action": None, "outcome": None, "since": "1d", "limit": 5, "cursor": None}),),
    "export_audit": (Example({"path": "audit.jsonl"}, {"by": "ann"}),),
    "revoke_token": (Example({"token": Made("token")}, {"by": "ann"}),),
    "tokens": (Example({}, {"limit": 5, "cursor": None}),),
    "task": (Example({"run": "done"}),),
    "tasks": (Example({}, {"state": "failed", "agent": None, "last": 5, "cursor": None}),),
    "timeline": (Example({"run": "done"}, {"limit": 5, "cursor": None}),),
    "tool_calls": (
        Example(
            {"tool": "law_look"},
            {"run": "done", "agent": None, "last": 5, "since": "1d", "where": ["order=o-1"], "cursor": None},
        ),
    ),
    "value": (Example({"payload": {"json": 1}}),),
    "value_piece": (Example({"run": "done", "blob": Made("blob")}, {"start": 0, "limit": 100, "raw": True}),),
    "verify": (Example({"run": "done"}), Example({}, {"heads": None, "pruned": None})),
    "workers": (Example({}),),
    "records": (Example({}, {"last": 5, "cursor": None}),),
    "record": (Example({"record": "board"}, {"version": None}),),
    "record_changes": (Example({"record": "board"}, {"since": 0, "until": None, "limit": 5, "cursor": None}),),
    "patch_record": (
        Example(
            {"record": "board"},
            {
                "read": 2,
                "facts": {"price": 5},
                "retract": [],
                "source": "the page",
                "derived_from": ["cost"],
                "plan": ["look"],
                "revise": {"look": "done"},
                "questions": {"q1": "When?"},
                "answered": {},
                "close": [],
                "data": {"k": 1},
                "unset": [],
                "by": "ann",
                "command_id": None,
            },
        ),
    ),
    "watch_records": (Example({}, {"record": None, "after": "0", "caller": None}),),
    "watch_inbox": (Example({}, {"to": None, "after": "0", "caller": None}),),
    "watch_replies": (Example({"run": "done"}, {"after": "0", "caller": None}),),
    "watch_run": (Example({"run": "done"}, {"after": "0", "caller": None}),),
    "watch_runs": (
        Example(
            {},
            {
                "status": ["completed"],
                "agent": None,
                "session": None,
                "user": None,
                "parent": None,
                "labels": ["team=sales"],
                "text": None,
                "after": "0",
                "caller": None,
            },
        ),
    ),
}


def test_every_app_method_has_an_example_with_all_its_parameters() -> None:
    """A new command or parameter needs an example here."""
    assert public(App) == set(COMMANDS)
    for name, examples in COMMANDS.items():
        given = {each for example in examples for each in (*example.args, *example.kwargs)}
        assert given == parameters(App, name), name


def test_there_are_at_least_five_thousand_wrong_calls() -> None:
    examples = [each for table in (VERBS, COMMANDS) for found in table.values() for each in found]
    assert sum(1 for each in examples for _ in wrong_calls(each)) >= 5_000


@pytest.mark.parametrize("command", sorted(COMMANDS))
async def test_an_app_method_with_a_wrong_value_raises_or_leaves_readable_logs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Every run can be read afterwards."""
    first = sorted(COMMANDS).index(command)
    monkeypatch.chdir(tmp_path)
    faults: list[str] = []
    for example in COMMANDS[command]:
        calls = chosen_calls(example, first, full=full)
        while found := await until_changed(command, calls, faults):
            faults += [each for each in found if each]
    assert not faults, "\n".join(faults)


async def until_changed(
    command: str, calls: Iterator[tuple[str, list[Any], dict[str, Any]]], faults: list[str]
) -> list[str | None]:
    """Make wrong calls in one world until one changes it, and return the damage; an empty list means the end."""
    async with worlds() as (app, made):
        before = await ends(app)
        for what, args, kwargs in calls:
            error = await called(app, command, [real(each, made) for each in args], kwargs)
            if isinstance(error, Exception) and not isinstance(error, limpet.LimpetError):
                faults.append(f"{what}: untyped {error!r}")
            after = await ends(app)
            if after == before:
                continue
            if error is not None and not isinstance(error, (*RECORDED, limpet.NotDone, limpet.RunFailed)):
                faults.append(f"{what}: wrote before {error!r}")
            return [await damage(app, what, after)]
    return []


def real(given: Any, made: dict[str, Any]) -> Any:
    """Return the object that a reference means in this world."""
    return made[given.name] if isinstance(given, Made) else given


async def called(app: App, command: str, args: list[Any], kwargs: dict[str, Any]) -> Exception | None:
    try:
        await perform(getattr(App, command)(app, *args, **kwargs))
    except Exception as error:  # noqa: BLE001 - returned
        return error
    return None


async def ends(app: App) -> dict[str, int]:
    """Return the last sequence of every log."""
    rows = [*(await app.store.runs(limit=1000)).rows]
    rows += (await app.store.runs(RunFilter(type="conversation"), limit=1000)).rows
    return {row.id: row.seq for row in rows}


async def damage(app: TestApp, what: str, logs: Mapping[str, int]) -> str | None:
    """Return what cannot be read after a command and all its consequences, or None."""
    try:
        await app.settle()
        await app.verify()
        await app.runs()
        await app.inbox()
        for run in logs:
            if (await app.store.get(run)).type == "run":
                await read_all(app, run)
            else:
                await app.messages(run)
    except Exception as error:  # noqa: BLE001 - any exception is damage
        return f"{what}: unreadable {error!r}"
    waits = {
        row.id: [each for each in row.waits if "operator" in each] for row in (await app.store.runs(limit=1000)).rows
    }
    parked = [run for run, each in waits.items() if each and each != ["operator:paused"]]
    return f"{what}: {parked} wait for an operator" if parked else None
