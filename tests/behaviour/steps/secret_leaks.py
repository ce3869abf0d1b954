"""Secrets in every form, sent by a careless agent through every place where one could leak."""

import asyncio
import base64
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar
from unittest.mock import patch
from urllib.parse import quote
from zipfile import ZipFile

import msgspec
from msgspec import structs
from pydantic import BaseModel, SecretBytes, SecretStr
from typer.main import get_command
from typer.testing import CliRunner

import limpet
from limpet import Secret
from limpet.cli.commands import command
from limpet.events import blobs_of
from limpet.events.values import encode
from limpet.journal import load
from limpet.journal.snapshots import save
from tests.unit.credentials import EVERY, letters

__all__ = ["CONTROL", "PATTERNED", "SHAPES", "SINKS", "TYPED", "Shape", "World", "collect"]

T = TypeVar("T")
COMMAND: Any = get_command(command)
Spill = Callable[[str], Exception]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One form in which a secret is passed."""

    name: str
    needle: str
    hint: Any
    make: Callable[[], Any]
    """Make the value that the agent's code passes, once per execution."""
    text: str
    """Text about the secret for goals, questions and reasons."""
    spill: Spill
    spilled: str
    by_name: bool = False
    default: bool = False

    @property
    def forms(self) -> tuple[bytes, ...]:
        """The secret's possible encodings: plain, URL-quoted and base64."""
        value = self.needle.encode()
        return value, quote(value).encode(), base64.b64encode(value).rstrip(b"=")


# Errors that contain the secret


def _message(text: str) -> Exception:
    return ValueError(f"no access with {text}")


def _args(text: str) -> Exception:
    return RuntimeError("odd", text, {"it": [text]})


def _cause(text: str) -> Exception:
    error = ValueError("outside")
    error.__cause__ = KeyError(text)
    return error


def _context(text: str) -> Exception:
    error = ValueError("outside")
    error.__context__ = OSError(13, text)
    return error


def _note(text: str) -> Exception:
    error = ValueError("outside")
    error.add_note(f"it was {text}")
    return error


def _group(text: str) -> Exception:
    return ExceptionGroup("many", [ValueError(text), ExceptionGroup("more", [KeyError(text)])])


def _shown(text: str) -> Exception:
    class Client:
        def __repr__(self) -> str:
            return f"Client({text})"

    return ValueError(Client())


def _ours(text: str) -> Exception:
    return limpet.NotFound(what="account", id=text)


def _at_the_cut(text: str) -> Exception:
    return ValueError("x" * (4000 - len(text) // 2) + " " + text)


def _in_json(text: str) -> Exception:
    return ValueError(f"sent {msgspec.json.encode({'it': text}).decode()}")


SPILLS: tuple[Spill, ...] = (
    _message, _args, _cause, _context, _note, _group, _shown, _ours, _at_the_cut, _in_json,
)  # fmt: skip


# Types that can contain a Secret


class Model(BaseModel):
    """A pydantic model."""

    key: Secret
    name: str = "x"


class Nested(BaseModel):
    """A model inside a model."""

    model: Model
    many: list[Model] = []


class Page(BaseModel, Generic[T]):
    """A generic pydantic model."""

    items: list[T]


class Theirs(BaseModel):
    """A model with pydantic's own secret types."""

    text: SecretStr
    data: SecretBytes | None = None
    inner: dict[str, list[SecretStr]] = {}


@dataclass
class Record:
    """A dataclass."""

    key: Secret
    more: "list[Record]" = field(default_factory=list)


@dataclass
class Mixed:
    """A dataclass with a pydantic model inside."""

    model: Model
    key: Secret | None = None


class Typed(TypedDict):
    """A TypedDict."""

    key: Secret
    name: str


class Struct(msgspec.Struct):
    """A msgspec struct."""

    key: Secret
    more: dict[str, Secret] = {}


class Pair(NamedTuple):
    """A named tuple."""

    name: str
    key: Secret


@dataclass
class Box(Generic[T]):
    """A generic dataclass."""

    it: T


def _typed() -> list[Shape]:
    numbers = iter(range(5000, 6000))
    found: list[Shape] = []

    def shape(name: str, hint: Any, make: Callable[[str], Any], spill: Spill | None = None, **more: Any) -> None:
        value = f"open {letters(next(numbers), 14)} sesame"
        spill = spill or SPILLS[len(found) % len(SPILLS)]
        given = {"needle": value, "text": f"with {Secret('nothing')}", "spilled": value, **more}
        found.append(Shape(name=name, hint=hint, make=lambda: make(value), spill=spill, **given))

    theirs: dict[str, Any] = {"spilled": f"{SecretStr('nothing')}"}
    shape("argument", Secret, Secret)
    shape("argument_by_name", Secret, Secret, by_name=True)
    shape("default", Secret, Secret, default=True)
    shape("bytes", Secret[bytes], lambda value: Secret(value.encode()))
    shape("optional", Secret | None, Secret)
    shape("union", Secret | int, Secret)
    shape("union_of_three", Secret | list[int] | None, Secret)
    shape("list", list[Secret], lambda value: [Secret(value)] * 2)
    shape("dict", dict[str, Secret], lambda value: {"key": Secret(value)})
    shape("set", set[Secret], lambda value: {Secret(value), Secret(f"{value}!")})
    shape("frozenset", frozenset[Secret], lambda value: frozenset({Secret(value)}))
    shape("tuple", tuple[int, Secret], lambda value: (1, Secret(value)))
    shape("long_tuple", tuple[Secret, ...], lambda value: (Secret(value),))
    shape("list_of_optionals", list[Secret | None], lambda value: [None, Secret(value)])
    shape("dict_of_lists", dict[str, list[Secret]], lambda value: {"a": [Secret(value)]})
    shape("model", Model, lambda value: Model(key=Secret(value)))
    shape("model_from_text", Model, lambda value: Model(key=value))  # type: ignore[arg-type]
    shape("nested_model", Nested, lambda value: Nested(model=Model(key=Secret(value)), many=[Model(key=Secret(value))]))
    shape("generic_model", Page[Secret], lambda value: Page[Secret](items=[Secret(value)]))
    shape("dataclass", Record, lambda value: Record(Secret(value), [Record(Secret(value))]))
    shape("mixed_dataclass", Mixed, lambda value: Mixed(Model(key=Secret(value)), Secret(value)))
    shape("generic_dataclass", Box[Secret], lambda value: Box(Secret(value)))
    shape("typed_dict", Typed, lambda value: {"key": Secret(value), "name": "x"})
    shape("struct", Struct, lambda value: Struct(Secret(value), {"more": Secret(value)}))
    shape("named_tuple", Pair, lambda value: Pair("x", Secret(value)))
    shape("undeclared", Any, Secret)
    shape("undeclared_inside", Any, lambda value: {"a": [{"b": Secret(value)}]})
    shape("undeclared_record", Any, lambda value: Record(Secret(value)))
    shape(
        "pydantics_own", Theirs, lambda value: Theirs(text=SecretStr(value), data=SecretBytes(value.encode())), **theirs
    )
    shape(
        "pydantics_own_inside",
        Theirs,
        lambda value: Theirs(text=SecretStr("x"), inner={"a": [SecretStr(value)]}),
        **theirs,
    )
    shape("pydantics_own_alone", SecretStr, SecretStr, **theirs)
    for spill in SPILLS:
        shape(f"revealed{spill.__name__}", Secret, Secret, spill)
    shape("revealed_quoted", Secret, Secret, lambda value: ValueError(f"https://x.example/?k={quote(value)}"))
    shape("revealed_base64", Secret, Secret, lambda value: ValueError(base64.b64encode(value.encode())))
    shape("formatted", Secret, Secret, lambda value: ValueError(f"{Secret(value)!r:>20} {Secret(value):<20}"))
    return found


def _patterned() -> list[Shape]:
    """Return undeclared credentials, in arguments of several types."""
    forms: tuple[tuple[Any, Callable[[str], Any]], ...] = (
        (str, lambda text: text),
        (dict[str, Any], lambda text: {"response": {"headers": [text], "status": 401}}),
        (Any, lambda text: [{"log": text}]),
        (list[str], lambda text: ["a", text]),
        (Box[str], Box),
    )
    rows = zip(EVERY, cycle(forms), cycle(SPILLS), strict=False)
    return [
        Shape(
            name=given.name,
            needle=given.hides,
            hint=hint,
            make=partial(make, given.text),
            text=given.text,
            spill=spill,
            spilled=given.text,
        )
        for given, (hint, make), spill in rows
    ]


CONTROL = Shape(
    name="control", needle="nothing-to-hide-here", hint=Any, make=lambda: {"it": "nothing-to-hide-here"},
    text="nothing-to-hide-here", spill=_message, spilled="nothing-to-hide-here",
)  # fmt: skip
"""Ordinary text that must appear in every sink: it proves that a leaked secret would be found."""
TYPED, PATTERNED = _typed(), _patterned()
SHAPES = [*TYPED[::2], *PATTERNED[::10]]
"""A sample for daily runs; `TYPED` and `PATTERNED` are the complete lists."""


# The careless agent


@dataclass
class World:
    """Everything that was visible during the runs."""

    sinks: dict[str, bytearray] = field(default_factory=dict)
    received: dict[str, list[Any]] = field(default_factory=dict)
    """Values that tools were called with, by form."""

    def saw(self, sink: str, *what: object) -> None:
        """Record values that were visible in a sink."""
        seen = self.sinks.setdefault(sink, bytearray())
        for each in what:
            seen.extend(each if isinstance(each, bytes) else str(each).encode("utf-8", "replace"))
            seen.extend(b"\n")

    def saw_error(self, error: BaseException) -> None:
        """Record an error that was raised to a caller."""
        facts = error.facts if isinstance(error, limpet.LimpetError) else {}
        self.saw("errors", str(error), repr(error), dict(facts), "".join(traceback.format_exception(error)))


def _annotated(fn: Any, **hints: Any) -> Any:
    fn.__annotations__ = hints
    return fn


def agent_of(world: World, shape: Shape) -> limpet.Agent[Any, Any]:
    """Return an agent that puts a secret wherever one can be put."""
    received = world.received.setdefault(shape.name, [])

    async def use(value) -> Any:  # type: ignore[no-untyped-def]
        received.append(value)
        limpet.current().progress(f"using {shape.text}")
        limpet.current().partial({"so far": shape.text})
        await asyncio.sleep(0)  # noqa: TID251 - a turn, to record the progress
        return value

    async def keep(value) -> Any:  # type: ignore[no-untyped-def]
        return {"much": "x" * 9000, "it": [value if isinstance(value, Secret) else shape.text]}

    async def fail(value) -> Any:  # type: ignore[no-untyped-def]
        received.append(value)
        raise shape.spill(shape.spilled)

    if shape.default:
        use.__defaults__ = (Secret("by default"),)
    hints = {"value": shape.hint, "return": shape.hint}
    using = limpet.tool(effect="once", name=f"use_{shape.name}")(_annotated(use, **hints))
    keeping = limpet.tool(effect="none", name=f"keep_{shape.name}")(_annotated(keep, value=shape.hint))
    failing = limpet.tool(effect="idempotent", name=f"fail_{shape.name}")(_annotated(fail, **hints))
    risky = limpet.tool(effect="idempotent", name=f"risky_{shape.name}", risk="external_action")(
        _annotated(fail, **hints)
    )

    async def carry(run, given) -> Any:  # type: ignore[no-untyped-def]
        live, text = shape.make(), shape.text
        await (run.step(using, value=live) if shape.by_name else run.step(using, live))
        await run.patch(
            goal=f"to use {text}", plan=[f"use {text}", "end"], questions=[f"why {text}"], flags=[f"odd: {text}"],
            facts={"found": text, "seen": {text: [live] if isinstance(live, Secret) else text}},
            data={"key": live if isinstance(live, Secret) else text}, source=text,
        )  # fmt: skip
        await run.step(keeping, live)
        await run.decide(f"which {text}?", choose=text, over=[text, "none"], because=f"there is {text}")
        await run.artifact(b"content", type="text/plain", summary=f"about {text}")
        try:
            await run.step(failing, live)
        except limpet.StepFailed as error:
            world.saw_error(error)
        await run.receive("told", dict)
        await run.ask(f"may I use {text}?", options=[text, "no"])
        await run.step(risky, live)
        raise AssertionError

    given = _annotated(carry, run=limpet.Run, given=shape.hint, **{"return": shape.hint})
    approvals = limpet.Approvals("external_action", to="ann")
    return limpet.agent(name=f"carry_{shape.name}", approvals=approvals)(given)


class RecordingWebhook(limpet.Webhook):
    """A webhook that sends nothing and records its bodies."""

    def __init__(self, tell: Callable[[bytes], object]) -> None:
        super().__init__("https://shop.example/hook", secret=letters(1, 40))
        self._tell = tell

    def deliver(self, body: bytes, *, key: str, now: int) -> None:
        self._tell(body + key.encode() + str(now).encode())


# Collecting the sinks


SINKS = (
    "database file", "events", "snapshots", "request rows", "request contexts", "inbox", "blobs", "artifacts", "bundle",
    "errors", "recorded failures", "python log", "webhook", "channel", "app.log", "app.state", "app.diff",
    "app.compare", "app.runs", "contracts", "feed", "limpet runs", "limpet show", "limpet show --json", "limpet state",
    "limpet state --json", "limpet diff", "limpet compare", "limpet inbox", "limpet inbox --json", "limpet doctor",
    "limpet errors", "limpet search", "limpet calls", "limpet decisions", "limpet errors of runs",
)  # fmt: skip


@contextmanager
def recording_logs(world: World) -> Iterator[None]:
    """Record everything that is logged."""

    class RecordingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            world.saw("python log", self.format(record), vars(record))

    root, ear = logging.getLogger(), RecordingHandler(logging.DEBUG)
    before = root.level
    root.addHandler(ear)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(ear)
        root.setLevel(before)


def collect(folder: Path, wanted: Sequence[Shape] = SHAPES, *, every_command: bool = True) -> World:
    """Run all forms through the agent and collect everything that was visible.

    Without `every_command`, the commands about one run take turns: each is typed for every 24th form.
    """
    world, shapes = World(), [CONTROL, *wanted]
    with recording_logs(world):
        asyncio.run(_drive(world, folder, shapes))
        _record_commands(world, folder, shapes, every=1 if every_command else 24)
    for file in sorted(folder.glob("x.db*")):
        world.saw("database file", file.read_bytes())
    return world


async def _drive(world: World, folder: Path, shapes: Sequence[Shape]) -> None:
    agents = {shape.name: agent_of(world, shape) for shape in shapes}
    loop, told = asyncio.get_running_loop(), asyncio.Queue[bytes]()
    heard = asyncio.Queue[limpet.Request]()
    hook = RecordingWebhook(lambda body: loop.call_soon_threadsafe(told.put_nowait, body))
    notify: dict[str, Any] = {"hook": hook, "fn": heard.put}
    url = f"sqlite:///{folder}/x.db"
    async with limpet.open(url, agents=[*agents.values()], notify=notify, redact=True) as app:
        handles = {}
        for shape in shapes:
            agent, given, labels = agents[shape.name], shape.make(), {"note": shape.text}
            handles[shape.name] = await app.start(agent, given, id=f"run-{shape.name}", labels=labels)
            await app.start(agent, given, id=f"later-{shape.name}", at="1h")
            await app.cancel(f"later-{shape.name}", reason=f"because of {shape.text}")
            await app.signal(f"run-{shape.name}", "told", {"it": given if isinstance(given, Secret) else shape.text})
        risky: list[limpet.Request] = []
        while len(risky) < len(shapes):
            request = await asyncio.wait_for(heard.get(), 60)
            world.saw("channel", request, structs.asdict(request))
            if request.kind == "approval":
                risky.append(request)
                continue
            try:
                await app.answer(request, f"not {request.options[0]}", by="ann")
            except limpet.InvalidAnswer as error:
                world.saw_error(error)
            await app.answer(request, request.options[0], by="ann")
        for _ in range(2 * len(shapes)):
            world.saw("webhook", await told.get())
        await _record_requests(world, app)
        await asyncio.to_thread(_record_inbox_commands, world, folder)
        for request in risky:
            await app.approve(request, by="ann")
        for shape in shapes:
            await _record_end(world, handles[shape.name], shape)
            await _record_run(world, app, handles[shape.name].id, folder)
        await _record_all(world, app, shapes)


async def _record_end(world: World, handle: limpet.Handle[Any], shape: Shape) -> None:
    secret, log = shape.make(), logging.getLogger("limpet")
    try:
        await handle.result()
    except limpet.RunFailed as error:
        world.saw_error(error)
    spilled = shape.spill(shape.spilled)
    log.error("it failed: %s", spilled, exc_info=spilled)
    log.warning("with %r and %s", secret, shape.text)


async def _record_requests(world: World, app: limpet.App) -> None:
    world.saw("request rows", *await app.store.requests())
    for request in await app.inbox():
        world.saw("inbox", request, structs.asdict(request))
        world.saw("request contexts", request.context)


async def _record_run(world: World, app: limpet.App, run: str, folder: Path) -> None:
    store = app.store
    for event in [event async for event in store.log(run)]:
        body = store.decode(event)
        world.saw("events", encode(body), repr(body))
        failure = getattr(body, "failure", None)
        world.saw("recorded failures", *([repr(failure), encode(failure)] if failure is not None else []))
        for blob in blobs_of(body):
            world.saw("blobs", *[part async for part in store.read_blob(blob)])
    row, state = await store.get(run), await load(store, run)
    await save(store, row.head, state, None)
    snapshot = await store.snapshot(run)
    assert snapshot is not None
    world.saw("snapshots", snapshot.data)
    world.saw("app.log", *await app.log(run))
    moment = await app.state(run)
    world.saw("app.state", moment, repr(moment), moment.as_json(), moment.facts, moment.goal, moment.decisions)
    world.saw("artifacts", *moment.artifacts)
    world.saw("app.diff", await app.diff(run), repr(await app.diff(run)), await app.diff(run, step=1))
    compared = await app.compare(run, "run-control")
    world.saw("app.compare", compared, repr(compared))
    await app.export(run, folder / "bundle.zip")
    with ZipFile(folder / "bundle.zip") as bundle:
        world.saw("bundle", *(bundle.read(name) for name in bundle.namelist()))


async def _record_all(world: World, app: limpet.App, shapes: Sequence[Shape]) -> None:
    world.saw("app.runs", *await app.runs(last=1000))
    world.saw("contracts", *await app.agents())
    place = ""
    while (page := await app.store.feed(place)).events:
        world.saw("feed", *(event.body for event in page.events))
        place = page.next
    for shape in shapes:
        try:
            await app.get(shape.text)
        except limpet.NotFound as error:
            world.saw_error(error)


def _printed(*arguments: str) -> str:
    """Return the output of a command. The patch avoids rebuilding all commands for each call."""
    with patch("typer.testing._get_command", lambda _: COMMAND):
        return CliRunner().invoke(command, [*arguments]).output


def _limpet(world: World, sink: str, folder: Path, *arguments: str) -> None:
    world.saw(sink, _printed(arguments[0], "--url", f"sqlite:///{folder}/x.db", *arguments[1:]))


def _record_inbox_commands(world: World, folder: Path) -> None:
    _limpet(world, "limpet inbox", folder, "inbox")
    _limpet(world, "limpet inbox --json", folder, "inbox", "--json")


def _record_commands(world: World, folder: Path, shapes: Sequence[Shape], *, every: int) -> None:
    for json in ([], ["--json"]):
        _limpet(world, "limpet runs", folder, "runs", "--last", "1000", *json)
        _limpet(world, "limpet search", folder, "search", "run-", "--last", "1000", *json)
        _limpet(world, "limpet calls", folder, "calls", "--last", "1000", *json)
        _limpet(world, "limpet decisions", folder, "decisions", "--last", "1000", *json)
        _limpet(world, "limpet errors of runs", folder, "errors", "--last", "1000", *json)
    for place, shape in enumerate(shapes):
        run = f"run-{shape.name}"
        commands = [
            ("limpet show", "show", run),
            ("limpet show --json", "show", run, "--json"),
            ("limpet state", "state", run),
            ("limpet state --json", "state", run, "--json"),
            ("limpet diff", "diff", run, "1", "--json"),
            ("limpet compare", "compare", run, "run-control"),
            ("limpet errors", "show", "--", shape.text),
            ("limpet errors", "approve", "r", f"--args={shape.text}"),
        ]
        for sink, *words in commands if shape is CONTROL else commands[place % every :: every]:
            _limpet(world, sink, folder, *words)
    world.saw("limpet doctor", _printed("doctor", "tests.interfaces.cli.shop:both"))
