"""The read operations that every interface offers, each with one name, one set of parameters and one JSON result.

HTTP and MCP build their routes and tools from the table `OPERATIONS`, so both offer the same. Arguments are validated
here, before anything is read.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from limpet.context.slice import ContextSlice
from limpet.engine.execution.views import EventView, Request, RunInfo, Status
from limpet.engine.run.conversation import Message
from limpet.errors import InvalidArgument, LimpetError, QueryTimeout, Unexpected
from limpet.redaction import hide_secrets_in
from limpet.service.app import App
from limpet.service.artifacts import DEFAULT_PIECE, MAX_CHARACTER, ArtifactPiece, piece_of
from limpet.service.conversations import ConversationInfo, SessionInfo
from limpet.service.json_views import as_json
from limpet.service.moments import Comparison, Diff, MomentJson
from limpet.service.prompts import PromptView
from limpet.service.queries import CallInfo, DecisionInfo, ErrorInfo
from limpet.service.report import Report
from limpet.service.resolve import run_of
from limpet.service.verify import Verified
from limpet.service.workers import AgentInfo, Stats, WorkerInfo

__all__ = ["OPERATIONS", "Operation", "limpet_errors"]

lines = logging.getLogger("limpet")

# Maximum number of items in a result, and of bytes of events in a log.
MAX_ITEMS = 1000
MAX_LOG_BYTES = 4_000_000
# Timeout of an operation, in seconds.
TIMEOUT = 60
# The largest integer that is exact in every language, JavaScript included.
MAX_INTEGER = 2**53 - 1

Handler = Callable[..., Awaitable[Any]]
RunId = Annotated[str, Field(description="Run id.")]
StepNumber = Annotated[int, Field(ge=1, le=MAX_INTEGER, description="Step number.")]
Before = Annotated[int | None, Field(ge=1, le=MAX_INTEGER, description="State just before this step.")]
After = Annotated[int | None, Field(ge=1, le=MAX_INTEGER, description="State just after this step was settled.")]
Size = Annotated[int | None, Field(ge=1, le=MAX_INTEGER, description="Maximum size of the result.")]
Last = Annotated[int, Field(ge=1, le=MAX_ITEMS, description="Maximum number; the newest are returned.")]
Since = Annotated[str | None, Field(description="Only the last period, such as 7d.")]
Text = Annotated[str, Field(description="Text to search for, ignoring case.")]
AgentName = Annotated[str | None, Field(description="Only this agent.")]
SessionId = Annotated[str | None, Field(description="Only this session.")]


@dataclass(frozen=True)
class Operation:
    """A read operation, as all interfaces offer it."""

    name: str
    path: str
    """HTTP path. Parameters in braces are part of the path; the others are query parameters."""
    handler: Handler
    unredacted: bool = False
    """Whether the result may contain credentials: it is not redacted."""

    @property
    def description(self) -> str:
        """Description for clients, from the function's docstring."""
        return inspect.cleandoc(self.handler.__doc__ or "")

    @cached_property
    def result_type(self) -> Any:
        """Type of the result, for the OpenAPI schema."""
        return get_type_hints(self.handler)["return"]

    @cached_property
    def parameters(self) -> type[BaseModel]:
        """Model of the parameters, which validates them."""
        hints = get_type_hints(self.handler, include_extras=True)
        _, *parameters = inspect.signature(self.handler).parameters.values()
        fields: dict[str, Any] = {
            each.name: (hints[each.name], ... if each.default is inspect.Parameter.empty else each.default)
            for each in parameters
        }
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        """Names of the parameters in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    async def run(self, app: App, arguments: Mapping[str, Any]) -> Any:
        """Validate the arguments, run the operation, and return its result as redacted plain JSON. Raises only
        LimpetError.
        """
        try:
            checked = self.parameters.model_validate(arguments)
        except ValidationError as error:
            raise self._invalid_argument(error) from None
        with limpet_errors(self.name):
            async with asyncio.timeout(TIMEOUT):
                found = await self.handler(app, **dict(checked))
            return await asyncio.to_thread(self._to_json, found)  # encoding a large result takes long

    def _to_json(self, found: Any) -> Any:
        plain = as_json(found)
        return plain if self.unredacted else hide_secrets_in(plain)

    def _invalid_argument(self, error: ValidationError) -> InvalidArgument:
        """Describe the first invalid argument."""
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        reason = wrong["msg"][:1].lower() + wrong["msg"][1:]
        if wrong["type"] == "extra_forbidden":
            reason = f"unknown argument; {self.name} takes {', '.join(self.parameters.model_fields) or 'none'}"
        return InvalidArgument(path=".".join(map(str, wrong["loc"])) or "arguments", reason=reason)


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


OPERATIONS: dict[str, Operation] = {}


def _operation(path: str, *, unredacted: bool = False) -> Callable[[Handler], Handler]:
    """Register a function as an operation under its name."""

    def register(handler: Handler) -> Handler:
        OPERATIONS[handler.__name__] = Operation(handler.__name__, path, handler, unredacted)
        return handler

    return register


@_operation("/runs")
async def runs(
    app: App,
    status: Annotated[Status | None, Field(description="Only runs with this status.")] = None,
    agent: AgentName = None,
    session: SessionId = None,
    last: Last = 20,
) -> list[RunInfo]:
    """List the newest runs, with the status of each and what it waits for."""
    return await app.runs(status=status, agent=agent, session=session, last=last)


@_operation("/runs/{run}")
async def show(app: App, run: RunId) -> Report:
    """Show a report of one run: its status, what it did, what it waits for, and its last error."""
    return await app.show(run)


@_operation("/runs/{run}/log")
async def log(
    app: App,
    run: RunId,
    after: Annotated[int, Field(ge=0, le=MAX_INTEGER, description="Only events after this number.")] = 0,
    limit: Annotated[int, Field(ge=1, le=MAX_ITEMS, description="Maximum number of events.")] = 100,
) -> list[EventView]:
    """List the events of a run in order, up to 4 MB of them. To continue, pass the last `seq` as `after`."""
    found, size = list[EventView](), 0
    async for event in app.events((await run_of(app.store, run)).id, after, follow=False):
        found.append(event)
        size += len(msgspec.json.encode(event))
        if len(found) == limit or size > MAX_LOG_BYTES:
            break
    return found


@_operation("/runs/{run}/state")
async def state(
    app: App,
    run: RunId,
    before: Before = None,
    after: After = None,
    seq: Annotated[int | None, Field(ge=1, le=MAX_INTEGER, description="State after this event.")] = None,
) -> MomentJson:
    """Show the state of a run before or after a step, or after an event. The default is the current state."""
    return (await app.state(run, before=before, after=after, seq=seq)).as_json()


@_operation("/runs/{run}/context")
async def context(
    app: App,
    run: RunId,
    before: Before = None,
    after: After = None,
    max_tokens: Size = None,
    max_bytes: Size = None,
) -> ContextSlice:
    """Show the part of a run's state and messages that fits into a limit, now or before or after a step."""
    return await app.context(run, before=before, after=after, max_tokens=max_tokens, max_bytes=max_bytes)


@_operation("/runs/{run}/prompt/{step}")
async def prompt(app: App, run: RunId, step: StepNumber) -> PromptView:
    """Show the exact prompt of a model call, rebuilt from its record, and why it contained each part."""
    return await app.prompt(run, step=step)


@_operation("/runs/{run}/diff/{step}")
async def diff(app: App, run: RunId, step: StepNumber) -> Diff:
    """Show what a step changed in the state of a run."""
    return await app.diff(run, step=step)


@_operation("/runs/{one}/compare/{other}")
async def compare(app: App, one: RunId, other: RunId) -> Comparison:
    """Compare two runs: where their logs diverge, and how state, decisions, results, cost and time differ."""
    return await app.compare(one, other)


@_operation("/runs/{run}/verify")
async def verify(app: App, run: RunId) -> Verified:
    """Check the hashes of a run's log, and the rows derived from it."""
    return await app.verify(run)


@_operation("/runs/{run}/artifacts/{artifact}", unredacted=True)
async def artifact(
    app: App,
    run: RunId,
    artifact: Annotated[str, Field(description="Artifact id, from the run's context or state.")],
    start: Annotated[int, Field(ge=0, le=MAX_INTEGER, description="Offset of the first byte.")] = 0,
    limit: Annotated[
        int, Field(ge=MAX_CHARACTER, le=4_000_000, description="Maximum number of bytes.")
    ] = DEFAULT_PIECE,
) -> ArtifactPiece:
    """Read an artifact of a run, or a piece of it. To continue, pass `next` as `start`."""
    return await piece_of(app.store, (await run_of(app.store, run)).id, artifact, start=start, limit=limit)


@_operation("/inbox")
async def inbox(
    app: App,
    to: Annotated[str | None, Field(description="Only for this person or group.")] = None,
    run: Annotated[str | None, Field(description="Only this run.")] = None,
    risk: Annotated[str | None, Field(description="Only this risk.")] = None,
    older_than: Annotated[str | None, Field(description="Only requests open for this long, such as 1h.")] = None,
    first: Annotated[int, Field(ge=1, le=MAX_ITEMS, description="Maximum number; the oldest are returned.")] = 50,
) -> list[Request]:
    """List the open requests, the oldest first."""
    return (await app.inbox(to=to, run=run, risk=risk, older_than=older_than))[:first]


@_operation("/conversations")
async def conversations(app: App, session: SessionId = None, last: Last = 50) -> list[ConversationInfo]:
    """List the newest conversations."""
    return (await app.conversations(session=session))[:last]


@_operation("/conversations/{conversation}/messages")
async def messages(
    app: App,
    conversation: Annotated[str, Field(description="Conversation id.")],
    last: Last = 40,
    whole: Annotated[bool, Field(description="Return the summarised messages in place of their summaries.")] = False,
) -> list[Message]:
    """List the messages of a conversation, in order."""
    return await app.messages(conversation, last=last, whole=whole)


@_operation("/sessions")
async def sessions(app: App, last: Last = 50) -> list[SessionInfo]:
    """List the newest sessions."""
    return (await app.sessions())[:last]


@_operation("/search")
async def search(
    app: App,
    text: Text,
    kind: Annotated[str | None, Field(description="Only events of this kind, such as step.failed.")] = None,
    since: Since = None,
    last: Last = 20,
) -> list[EventView]:
    """Find events of all runs and conversations that contain a text, the newest first."""
    return await app.search(text, kind=kind, since=since, last=last)


@_operation("/decisions")
async def decisions(
    app: App, text: Text = "", agent: AgentName = None, since: Since = None, last: Last = 20
) -> list[DecisionInfo]:
    """List the decisions of agents, with options and reasons, the newest first."""
    return await app.decisions(text, agent=agent, since=since, last=last)


@_operation("/errors")
async def errors(app: App, agent: AgentName = None, since: Since = None, last: Last = 20) -> list[ErrorInfo]:
    """List the failures of all runs and how each was handled, the newest first."""
    return await app.errors(agent=agent, since=since, last=last)


@_operation("/calls")
async def calls(
    app: App,
    tool: Annotated[str | None, Field(description="Only this tool.")] = None,
    where: Annotated[
        list[str], Field(description="Conditions on arguments: cents>100, order.id=o-1, to~example. All must match.")
    ] = [],  # noqa: B006 - never modified
    agent: AgentName = None,
    since: Since = None,
    last: Last = 20,
) -> list[CallInfo]:
    """List calls of tools, each with the decision before it and its reason, the newest first."""
    return await app.tool_calls(tool, where=where, agent=agent, since=since, last=last)


@_operation("/agents")
async def agents(app: App) -> list[AgentInfo]:
    """List the agents that have been registered in the store, by any process."""
    return await app.agents()


@_operation("/workers")
async def workers(app: App) -> list[WorkerInfo]:
    """List the registered workers: the agents that each serves, and whether its lease is valid."""
    return await app.workers()


@_operation("/stats")
async def stats(app: App) -> Stats:
    """Count the runs, open requests and live workers."""
    return await app.stats()
