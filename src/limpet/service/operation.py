"""Operations: the queries and commands that every interface offers, each declared once, as a method of the app.

`@query` and `@command` attach what interfaces need to know to a method. Its signature has the parameters: their types,
limits and descriptions are in their annotations. `operations_of` collects the operations of an app; HTTP, MCP, the
command line and the reference pages are made from them.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from limpet.clock import Duration
from limpet.engine.execution.principal import Principal, Right
from limpet.errors import InvalidArgument, LimpetError, NotPermitted, QueryTimeout, Unexpected
from limpet.redaction import hide_secrets_in
from limpet.service.access import LOCAL, Permission, check_permission, check_right
from limpet.service.audit import AuditEvent
from limpet.service.json_values import as_json
from limpet.service.page import Page, own_cursor, tenant_cursor
from limpet.service.tokens import TENANT

__all__ = [
    "ALL_DOORS",
    "After",
    "AgentName",
    "Before",
    "By",
    "Caller",
    "CommandId",
    "ConversationId",
    "Cursor",
    "Door",
    "FellBehind",
    "InDoors",
    "Last",
    "Limit",
    "Operation",
    "Param",
    "Parameter",
    "RequestId",
    "Resource",
    "RunId",
    "Since",
    "StepNumber",
    "StreamStart",
    "Text",
    "command",
    "limpet_errors",
    "operations_of",
    "query",
    "stream",
]

lines = logging.getLogger("limpet")
F = TypeVar("F", bound=Callable[..., Any])

Door = Literal["python", "cli", "http", "mcp"]
ALL_DOORS: frozenset[Door] = frozenset({"python", "cli", "http", "mcp"})
# Maximum number of items in a page, and of bytes in a result.
MAX_ITEMS = 1000
MAX_BYTES = 4_000_000
# Items of a stream whose text is kept for other callers.
MOST_RECENT = 1_000
# Size in bytes of a result that is encoded at once, not in a thread.
SHORT = 4_000
# Timeout of an operation, in seconds.
TIMEOUT = 60
# The largest integer that is exact in every language, JavaScript included.
MAX_INTEGER = 2**53 - 1
# Parameters that follow from the request of a caller over HTTP or MCP.
FROM_REQUEST = ("by", "command_id")
# The default of a parameter that has none.
REQUIRED: Any = object()


class FellBehind(Exception):
    """A caller over HTTP did not take the items of a stream for too long: it has to reconnect."""


class StreamStart(Struct, frozen=True):
    """The first item of a stream that begins now: where to go on if the connection is cut before the next one."""

    cursor: str


class Param(Struct, frozen=True, eq=False):
    """Describes a parameter for clients."""

    description: str
    ge: int | None = None
    """Smallest value of a number."""
    le: int | None = None
    """Largest value of a number."""
    examples: Sequence[Any] = ()
    flag: str | None = None
    """Name of the command line option, if it is not the parameter's name."""
    is_argument: bool = False
    """Whether the command line takes it by position."""
    is_free_text: bool = False
    """Whether a parameter in the path may be any text, also one with a slash. It is the last part of its path."""
    right: Right | None = None
    """Right that a caller over HTTP or MCP needs in order to set it."""


class Parameter(Struct, frozen=True, kw_only=True):
    """A parameter of an operation, as it is outside Python."""

    name: str
    type: Any
    default: Any
    about: Param
    resource: "Resource | None"

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is REQUIRED


class Resource(Struct, frozen=True):
    """Marks a parameter that identifies something. The command line accepts a unique prefix, and completes it."""

    kind: Literal["run", "request", "conversation", "agent"]


class InDoors(Struct, frozen=True):
    """Marks a parameter that has another type outside Python; None for one that only Python has."""

    type: Any


RunId = Annotated[str, Param(description="Run id.", examples=["ticket-42"]), Resource("run")]
RequestId = Annotated[str, Param(description="Request id.", examples=["01j9x"]), Resource("request")]
ConversationId = Annotated[str, Param(description="Conversation id.", examples=["chat-7"]), Resource("conversation")]
AgentName = Annotated[
    str | None, Param(description="Only this agent.", examples=["support"]), Resource("agent"), InDoors(str | None)
]
StepNumber = Annotated[int, Param(ge=1, le=MAX_INTEGER, description="Step number.", examples=[6])]
Before = Annotated[int | None, Param(ge=1, le=MAX_INTEGER, description="State just before this step.", examples=[6])]
After = Annotated[
    int | None, Param(ge=1, le=MAX_INTEGER, description="State just after this step was settled.", examples=[6])
]
Limit = Annotated[int, Param(ge=1, le=MAX_ITEMS, description="Maximum number of items.", examples=[20])]
Last = Annotated[int, Param(ge=1, le=MAX_ITEMS, description="Maximum number; the newest are returned.", examples=[20])]
Cursor = Annotated[str | None, Param(description="Where to read on: `next` of the page before.")]
Since = Annotated[
    Duration | datetime | None,
    Param(description="Only since then: a period before now, such as 7d, or a time.", examples=["7d"]),
    InDoors(str | None),
]
Text = Annotated[str, Param(description="Text to search for, ignoring case.", examples=["refund"])]
Caller = Annotated[Principal | None, InDoors(None)]
"""The authenticated caller of an operation over HTTP or MCP, for one whose result depends on that."""
By = Annotated[
    str | Principal | None, Param(description="Who sends it, which is recorded.", examples=["ann"]), InDoors(str | None)
]
CommandId = Annotated[
    str | None,
    Param(description="Your id of this command. Repeating it with the same content has no further effect."),
]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A query or command, as all interfaces offer it."""

    name: str
    is_command: bool
    path: str | None
    """HTTP path. Parameters in braces are part of the path."""
    function: Callable[..., Awaitable[Any]]
    doors: frozenset[Door] = ALL_DOORS
    needs: tuple[Permission, ...]
    """A caller over HTTP or MCP needs one of these permissions."""
    topic: str = ""
    example: str = ""
    """Arguments of the command line, as an example."""
    redacts_itself: bool = False
    """Whether the method redacts what it returns: a piece of a text must not be redacted again."""
    is_large: bool = False
    """Whether it may read much of a log, or of the store. Servers keep such work apart from the rest."""
    is_idempotent: bool = True
    is_destructive: bool = False
    is_stream: bool = False
    """Whether it is a query that yields items as they come, each with a cursor."""
    result: Any = None
    """Type of the result outside Python, where it differs."""

    @property
    def http_method(self) -> Literal["GET", "POST"]:
        """HTTP method."""
        return "POST" if self.is_command else "GET"

    @property
    def description(self) -> str:
        """Description for clients, from the method's docstring."""
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def summary(self) -> str:
        """First sentence of the description."""
        return " ".join(self.description.split("\n\n", maxsplit=1)[0].split())

    @cached_property
    def result_type(self) -> Any:
        """Type of the result outside Python."""
        found = self.result or self.python_type
        return get_args(found)[0] if self.is_stream else found

    @cached_property
    def python_type(self) -> Any:
        """Type that the method returns in Python."""
        return get_type_hints(self.function)["return"]

    @cached_property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters by name."""
        hints = get_type_hints(self.function, include_extras=True)
        found: dict[str, Parameter] = {}
        for each in [*self._signature.values()][1:]:
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                options = get_type_hints(get_args(hints[each.name])[0], include_extras=True)
                given: dict[str, tuple[Any, Any]] = {name: (hint, None) for name, hint in options.items()}
            else:
                is_required = each.default is inspect.Parameter.empty or each.name in self.in_path
                given = {each.name: (hints[each.name], REQUIRED if is_required else each.default)}
            for name, (hint, default) in given.items():
                made = _parameter(name, hint, [] if default == () else default)
                if made is not None:
                    found[name] = made
        return found

    @cached_property
    def sent(self) -> Mapping[str, Parameter]:
        """The parameters that callers over HTTP and MCP send.

        Who sends a command, and the command's id, follow from the request.
        """
        return {name: each for name, each in self.parameters.items() if name not in FROM_REQUEST}

    @cached_property
    def _arguments(self) -> type[msgspec.Struct]:
        fields: list[Any] = []
        for each in self.sent.values():
            default = msgspec.field(default_factory=list) if each.default == [] else each.default
            fields.append((each.name, each.type) if each.is_required else (each.name, each.type, default))
        return msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments that callers send."""
        _, parts = msgspec.json.schema_components([self._arguments], ref_template="#/$defs/{name}")
        found = parts.pop(self.name)
        properties = {
            name: {"description": _description(each.about), **found["properties"][name], **_limits(each.about)}
            for name, each in self.sent.items()
        }
        whole = {"type": "object", "properties": properties, "required": found.get("required", [])}
        return {**whole, "additionalProperties": False, **({"$defs": parts} if parts else {})}

    def resource(self, parameter: str) -> "Resource | None":
        """Return what a parameter identifies."""
        return self.parameters[parameter].resource

    def is_positional(self, parameter: str) -> bool:
        """Return whether a parameter is passed by position in Python."""
        known = self._signature.get(parameter)
        return known is not None and known.kind is inspect.Parameter.POSITIONAL_ONLY

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        """Names of the parameters in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path or ""))

    async def run(
        self, app: Any, arguments: Mapping[str, Any], *, who: Principal, command_id: str | None = None
    ) -> Any:
        """Run the operation for an authenticated caller, and return its result as redacted plain JSON.

        The audit log records it: commands, reads of payloads, and refusals. Raises only LimpetError: also NotPermitted.
        A repeated `command_id` has no further effect.
        """
        try:
            found = await self._run(app, arguments, who, command_id)
        except LimpetError as error:
            await self._audit(app, who, self._subject(arguments), error.code, command_id)
            raise
        made = found.get("id") if isinstance(found, dict) else None
        await self._audit(app, who, made or self._subject(arguments), "done", command_id)
        return found

    @property
    def is_audited(self) -> bool:
        """Whether each use is recorded: a command, or a query that shows more than the state of runs."""
        return self.is_command or "look" not in self.needs

    async def _audit(self, app: Any, who: Principal, subject: str, outcome: str, command_id: str | None) -> None:
        """Record a use of the operation, unless the caller is on the same machine."""
        if who is not LOCAL and (self.is_audited or outcome == NotPermitted.code):
            event = AuditEvent(action=self.name, who=who, subject=subject, outcome=outcome, request=command_id or "")
            await app.audit_trail.record_use(event, is_command=self.is_command)

    def _subject(self, arguments: Mapping[str, Any]) -> str:
        """Return what the operation is used on."""
        named = (name for name, each in self.parameters.items() if each.resource is not None or name in self.in_path)
        return str(next((arguments[name] for name in named if name in arguments), ""))

    async def _run(self, app: Any, arguments: Mapping[str, Any], who: Principal, command_id: str | None) -> Any:
        tenant = "" if who.tenant == TENANT else who.tenant
        checked = self._permitted(arguments, who, command_id)
        if checked.get("cursor") is not None:
            checked["cursor"] = own_cursor(checked["cursor"], tenant)
        found = await self._call(app, checked)
        if isinstance(found, Page) and found.next is not None:
            found.next = tenant_cursor(found.next, tenant)
        return self.to_json(found) if self._is_short(found) else await asyncio.to_thread(self.to_json, found)

    def _is_short(self, found: Any) -> bool:
        """Return whether encoding a result takes less time than a thread takes to begin."""
        if self.is_large or isinstance(found, list | tuple) or hasattr(found, "as_json"):
            return False
        return len(msgspec.json.encode(found, enc_hook=str)) <= SHORT

    async def stream(
        self, app: Any, arguments: Mapping[str, Any], *, who: Principal
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield the items of a stream for an authenticated caller: each with its cursor, as redacted JSON text. The
        text is empty where the stream only says where it begins.

        Raises LimpetError, and FellBehind if the caller did not take items for too long. An item that many callers get
        is encoded once.
        """
        tenant = "" if who.tenant == TENANT else who.tenant
        try:
            checked = self._permitted(arguments, who, None)
            if checked["after"] is not None:
                checked["after"] = own_cursor(checked["after"], tenant, "after")
        except LimpetError as error:
            await self._audit(app, who, self._subject(arguments), error.code, None)
            raise
        await self._audit(app, who, self._subject(arguments), "done", None)
        positional = [checked.pop(name) for name in list(checked) if self.is_positional(name)]
        streaming: Any = self.function
        async with aclosing(streaming(app, *positional, **checked)) as items:
            async for item in items:
                if isinstance(item, StreamStart):
                    yield tenant_cursor(item.cursor, tenant), b""
                    continue
                cursor = item.cursor if hasattr(item, "cursor") else str(item.seq)
                yield tenant_cursor(cursor, tenant), self._encoded(item)

    def _encoded(self, item: Any) -> bytes:
        """Return an item of a stream as JSON text; the same object is encoded once."""
        known = self._recent.get(id(item))
        if known is not None and known[0] is item:
            return known[1]
        text = msgspec.json.encode(self.to_json(item))
        self._recent[id(item)] = item, text
        while len(self._recent) > MOST_RECENT:
            self._recent.pop(next(iter(self._recent)))
        return text

    @cached_property
    def _recent(self) -> dict[int, tuple[Any, bytes]]:
        return {}

    def _permitted(self, arguments: Mapping[str, Any], who: Principal, command_id: str | None) -> dict[str, Any]:
        """Return the arguments of a caller, with what follows from the request. Raises NotPermitted."""
        check_permission(who, self.name, self.needs)
        checked = self._checked(arguments, self.sent, strict=self.is_command)
        for name, each in self.sent.items():
            if checked[name] != each.default:
                check_right(who, self.name, name, each.about.right)
        if "by" in self.parameters:
            checked["by"] = who
        if "caller" in self._signature:
            checked["caller"] = who
        if command_id is not None:  # a new run gets it as its id
            given = "command_id" if "command_id" in self.parameters else "id"
            if checked.get(given) is None and given in self.parameters:
                checked[given] = command_id
        return checked

    async def call(self, app: Any, arguments: Mapping[str, Any]) -> Any:
        """Validate the arguments, run the operation, and return its result. Raises only LimpetError."""
        return await self._call(app, self._checked(arguments, self.parameters))

    async def _call(self, app: Any, checked: dict[str, Any]) -> Any:
        with limpet_errors(self.name):
            async with asyncio.timeout(TIMEOUT):
                return await app._operate(self, checked)

    def to_json(self, found: Any) -> Any:
        """Return a result as plain JSON, redacted and of limited size."""
        plain = as_json(found)
        return bounded(plain if self.redacts_itself else hide_secrets_in(plain), is_page=isinstance(found, Page))

    def _checked(
        self, arguments: Mapping[str, Any], parameters: Mapping[str, Parameter], *, strict: bool = False
    ) -> dict[str, Any]:
        """Return the arguments with their types. Raises InvalidArgument.

        Unless `strict`, text is converted: a query in a URL has no other type. The text "null" is a text.
        """
        for name in arguments.keys() - parameters.keys():
            takes = ", ".join(parameters) or "none"
            raise InvalidArgument(path=name, reason=f"unknown argument; {self.name} takes {takes}")
        for name, each in parameters.items():
            if each.is_required and name not in arguments:
                raise InvalidArgument(path=name, reason="is required")
        found: dict[str, Any] = {}
        for name, each in parameters.items():
            if name not in arguments:
                found[name] = each.default
                continue
            try:
                wanted = _not_null(each.type) if isinstance(arguments[name], str) else each.type
                value = msgspec.convert(arguments[name], wanted, strict=strict, str_keys=True)
            except (msgspec.ValidationError, ValueError) as error:
                reason = str(error)
                raise InvalidArgument(path=name, reason=f"{reason[:1].lower()}{reason[1:]}") from None
            if isinstance(value, int) and not isinstance(value, bool):
                _check_limits(name, value, each.about)
            found[name] = value
        return found


Needs = Permission | tuple[Permission, ...]


def query(path: str | None, *, needs: Needs, **more: Any) -> Callable[[F], F]:
    """Declare a method as a query: it changes nothing."""
    return _declare(is_command=False, path=path, needs=_all(needs), **more)


def stream(path: str, *, needs: Needs, **more: Any) -> Callable[[F], F]:
    """Declare a method as a stream: it yields items as they come. It has a parameter `after`, a cursor."""
    doors: frozenset[Door] = frozenset({"python", "http"})
    return _declare(is_command=False, is_stream=True, path=path, needs=_all(needs), **{"doors": doors, **more})


def command(path: str | None, *, needs: Needs, **more: Any) -> Callable[[F], F]:
    """Declare a method as a command. MCP offers those that name it in their doors."""
    return _declare(is_command=True, path=path, needs=_all(needs), **{"doors": ALL_DOORS - {"mcp"}, **more})


def _all(needs: Needs) -> tuple[Permission, ...]:
    return needs if isinstance(needs, tuple) else (needs,)


def _declare(**more: Any) -> Callable[[F], F]:
    def mark(function: F) -> F:
        function.__operation__ = more  # type: ignore[attr-defined]
        return function

    return mark


def operations_of(app: type) -> dict[str, Operation]:
    """Return the operations of a class of apps by name, in the order of its topics."""
    found: dict[str, Operation] = {}
    for kind in app.__mro__:
        for name, function in vars(kind).items():
            declared = getattr(function, "__operation__", None)
            if declared is not None:  # a method that overrides an operation need not declare it again
                made = Operation(function=function, **{"name": name, "topic": getattr(kind, "topic", ""), **declared})
                found.setdefault(made.name, made)
    return found


def _parameter(name: str, hint: Any, default: Any) -> Parameter | None:
    outside = _outside_python(hint)
    if outside is None:
        return None
    kind, *metadata = get_args(outside) if get_origin(outside) is Annotated else (outside,)
    while get_origin(kind) is Annotated:
        kind, *inner = get_args(kind)
        metadata += inner
    about = next((each for each in metadata if isinstance(each, Param)), Param(""))
    resource = next((each for each in metadata if isinstance(each, Resource)), None)
    return Parameter(name=name, type=kind, default=default, about=about, resource=resource)


def _description(about: Param) -> str:
    return about.description if about.right is None else f"{about.description} Needs the right `{about.right}`."


def _not_null(kind: Any) -> Any:
    """Return a type without None."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    kinds = [each for each in get_args(kind) if each is not NoneType]
    return reduce(or_, kinds)


def _limits(about: Param) -> dict[str, Any]:
    found = {"minimum": about.ge, "maximum": about.le, "examples": list(about.examples) or None}
    return {name: value for name, value in found.items() if value is not None}


def _check_limits(name: str, value: int, about: Param) -> None:
    if about.ge is not None and value < about.ge:
        raise InvalidArgument(path=name, reason=f"must be at least {about.ge}, not {value}")
    if about.le is not None and value > about.le:
        raise InvalidArgument(path=name, reason=f"must be at most {about.le}, not {value}")


def _outside_python(hint: Any) -> Any:
    """Return the annotation of a parameter outside Python, or None if only Python has it."""
    if get_origin(hint) is not Annotated:
        return hint
    _, *metadata = get_args(hint)
    other = next((each for each in metadata if isinstance(each, InDoors)), None)
    if other is None:
        return hint
    if other.type is None:
        return None
    return Annotated[(other.type, *(each for each in metadata if each is not other))]


@contextmanager
def limpet_errors(what: str) -> Iterator[None]:
    """Turn every exception into a LimpetError. Log unexpected ones with their traceback."""
    try:
        yield
    except LimpetError:
        raise
    except TimeoutError as error:
        raise QueryTimeout(what=what, seconds=TIMEOUT) from error
    except Exception as error:
        lines.exception("%s: unexpected error", what)
        raise Unexpected(error_type=type(error).__qualname__, message=str(error)) from error


def bounded(plain: Any, most: int = MAX_BYTES, *, is_page: bool = False) -> Any:
    """Shorten the longest texts and lists of a result until it is small enough, and say so in `truncated`.

    The items of a page are shortened, and none is dropped.
    """
    size = len(msgspec.json.encode(plain))
    if size <= most or not isinstance(plain, dict):
        return plain
    truncated: list[str] = []
    longest = most // 2
    while size > most and longest > 100:
        if is_page:
            items = [_shortened(each, longest, f"$[{place}]", truncated) for place, each in enumerate(plain["items"])]
            plain = {**plain, "items": items}
        else:
            plain = _shortened(plain, longest, "$", truncated)
        longest //= 2
        size = len(msgspec.json.encode(plain))
    return {**plain, "truncated": truncated[:MAX_ITEMS]}


def _shortened(value: Any, most: int, path: str, truncated: list[str]) -> Any:
    if isinstance(value, str) and len(value) > most:
        truncated.append(f"{path}: {len(value) - most} of {len(value)} characters")
        return f"{value[:most]}…"
    if isinstance(value, list):
        items, size = list[Any](), 0
        for place, each in enumerate(value):
            item = _shortened(each, most, f"{path}[{place}]", truncated)
            size += len(msgspec.json.encode(item))
            if size > most:
                truncated.append(f"{path}: {len(value) - place} of {len(value)} items")
                break
            items.append(item)
        return items
    if isinstance(value, dict):
        return {name: _shortened(each, most, f"{path}.{name}", truncated) for name, each in value.items()}
    return value
