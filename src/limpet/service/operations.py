"""Questions: what every door can be asked, under one name, with one JSON, and changes nothing.

A door takes each of these from the table, so that what one can be asked, all can: over HTTP a question has a path, for
a model it is a tool. What is given is checked here, before anything is looked at.
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
from limpet.service.artifacts import LONGEST, PIECE, ArtifactPiece, piece_of
from limpet.service.conversations import ConversationInfo, SessionInfo
from limpet.service.json_views import as_json
from limpet.service.moments import Comparison, Diff, MomentJson
from limpet.service.prompts import PromptView
from limpet.service.queries import CallInfo, DecisionInfo, ErrorInfo
from limpet.service.report import ReportJson, report
from limpet.service.resolve import run_of
from limpet.service.verify import Verified
from limpet.service.workers import AgentInfo, Stats, WorkerInfo

__all__ = ["OPERATIONS", "Operation", "limpet_errors"]

lines = logging.getLogger("limpet")

# How many are given at once, and how many bytes of a log.
MOST = 1000
FULL = 4_000_000
# In seconds.
PATIENCE = 60
# Numbers are exact up to there in every language.
HIGHEST = 2**53 - 1

Ask = Callable[..., Awaitable[Any]]
RunId = Annotated[str, Field(description="The id of a run.")]
StepNumber = Annotated[int, Field(ge=1, le=HIGHEST, description="The number of a step.")]
Before = Annotated[int | None, Field(ge=1, le=HIGHEST, description="Just before this step.")]
After = Annotated[int | None, Field(ge=1, le=HIGHEST, description="As soon as this step had its result.")]
Most = Annotated[int | None, Field(ge=1, le=HIGHEST, description="As much as fits into so many.")]
Last = Annotated[int, Field(ge=1, le=MOST, description="How many, the newest.")]
Since = Annotated[str | None, Field(description="Only of so long, such as 7d.")]
Words = Annotated[str, Field(description="Some words, in any case of letters.")]
AgentName = Annotated[str | None, Field(description="Only of this agent.")]
SessionId = Annotated[str | None, Field(description="Only of this session.")]


@dataclass(frozen=True)
class Operation:
    """One question, as all doors know it."""

    name: str
    path: str
    """Where it is asked over HTTP; what stands in braces is given there, the rest behind a question mark."""
    ask: Ask
    as_it_is: bool = False
    """Whether nothing is looked for in the answer that looks like a credential."""

    @property
    def words(self) -> str:
        """What it gives."""
        return inspect.cleandoc(self.ask.__doc__ or "")

    @cached_property
    def form(self) -> Any:
        """What it gives, as the contract knows it: a form, or a list of one."""
        return get_type_hints(self.ask)["return"]

    @cached_property
    def given(self) -> type[BaseModel]:
        """What may be given, and must be."""
        hints = get_type_hints(self.ask, include_extras=True)
        _, *taken = inspect.signature(self.ask).parameters.values()
        fields: dict[str, Any] = {
            each.name: (hints[each.name], ... if each.default is inspect.Parameter.empty else each.default)
            for each in taken
        }
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        """What is given in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    async def answer(self, app: App, given: Mapping[str, Any]) -> Any:
        """The answer as plain data, without what looks like a credential; raises nothing but Limpet's own errors."""
        try:
            checked = self.given.model_validate(given)
        except ValidationError as error:
            raise self._unfit(error) from None
        with limpet_errors(self.name):
            async with asyncio.timeout(PATIENCE):
                found = await self.ask(app, **dict(checked))
            return await asyncio.to_thread(self._shown, found)  # much of it takes its time

    def _shown(self, found: Any) -> Any:
        plain = as_json(found)
        return plain if self.as_it_is else hide_secrets_in(plain)

    def _unfit(self, error: ValidationError) -> InvalidArgument:
        """The first that does not fit, and why."""
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        reason = wrong["msg"][:1].lower() + wrong["msg"][1:]
        if wrong["type"] == "extra_forbidden":
            reason = f"{self.name} takes {', '.join(self.given.model_fields) or 'nothing'}"
        return InvalidArgument(path=".".join(map(str, wrong["loc"])) or "It", reason=reason)


@contextmanager
def limpet_errors(what: str) -> Iterator[None]:
    """Whatever goes wrong inside is an error of ours; one that is not is told in the log as it came, too."""
    try:
        yield
    except LimpetError:
        raise
    except TimeoutError as error:
        raise QueryTimeout(what=what, seconds=PATIENCE) from error
    except Exception as error:
        lines.exception("%s was not answered", what)
        raise Unexpected(error_type=type(error).__qualname__, message=str(error)) from error


OPERATIONS: dict[str, Operation] = {}


def _question(path: str, *, as_it_is: bool = False) -> Callable[[Ask], Ask]:
    """Put a question into the table, under its name."""

    def put(ask: Ask) -> Ask:
        OPERATIONS[ask.__name__] = Operation(ask.__name__, path, ask, as_it_is)
        return ask

    return put


@_question("/runs")
async def runs(
    app: App,
    status: Annotated[Status | None, Field(description="Only these.")] = None,
    agent: AgentName = None,
    session: SessionId = None,
    last: Last = 20,
) -> list[RunInfo]:
    """The newest runs: where each is, and what it waits for."""
    return await app.runs(status=status, agent=agent, session=session, last=last)


@_question("/runs/{run}")
async def show(app: App, run: RunId) -> ReportJson:
    """A run on one page: where it is, what it did, what it waits for, and what went wrong last."""
    return (await report(app, (await run_of(app.store, run)).id)).as_json()


@_question("/runs/{run}/log")
async def log(
    app: App,
    run: RunId,
    after: Annotated[int, Field(ge=0, le=HIGHEST, description="Only what came after this event.")] = 0,
    limit: Annotated[int, Field(ge=1, le=MOST, description="How many at most; ask again after the last one.")] = 100,
) -> list[EventView]:
    """What happened to a run, event by event, in order; as many as fit into 4 MB."""
    found, size = list[EventView](), 0
    async for event in app.events((await run_of(app.store, run)).id, after, follow=False):
        found.append(event)
        size += len(msgspec.json.encode(event))
        if len(found) == limit or size > FULL:
            break
    return found


@_question("/runs/{run}/state")
async def state(
    app: App,
    run: RunId,
    before: Before = None,
    after: After = None,
    seq: Annotated[int | None, Field(ge=1, le=HIGHEST, description="After this event.")] = None,
) -> MomentJson:
    """What a run knew before or after a step, or after an event; without any of them, now."""
    return (await app.state(run, before=before, after=after, seq=seq)).as_json()


@_question("/runs/{run}/context")
async def context(
    app: App,
    run: RunId,
    before: Before = None,
    after: After = None,
    max_tokens: Most = None,
    max_bytes: Most = None,
) -> ContextSlice:
    """The slice that fits of what a run knows, or knew before or after a step, and of what was said until then."""
    return await app.context(run, before=before, after=after, max_tokens=max_tokens, max_bytes=max_bytes)


@_question("/runs/{run}/prompt/{step}")
async def prompt(app: App, run: RunId, step: StepNumber) -> PromptView:
    """Exactly what a model was asked at a step, made again from its reference, and why it saw that."""
    return await app.prompt(run, step=step)


@_question("/runs/{run}/diff/{step}")
async def diff(app: App, run: RunId, step: StepNumber) -> Diff:
    """What a step changed in what a run knows."""
    return await app.diff(run, step=step)


@_question("/runs/{one}/compare/{other}")
async def compare(app: App, one: RunId, other: RunId) -> Comparison:
    """Where two runs went apart, and how they differ in state, decisions, results, cost and time."""
    return await app.compare(one, other)


@_question("/runs/{run}/verify")
async def verify(app: App, run: RunId) -> Verified:
    """Check the hashes and rows of a run: is its log as it was written?"""
    return await app.verify(run)


@_question("/runs/{run}/artifacts/{artifact}", as_it_is=True)
async def artifact(
    app: App,
    run: RunId,
    artifact: Annotated[str, Field(description="The id of an artifact, as the run's context and state say it.")],
    start: Annotated[int, Field(ge=0, le=HIGHEST, description="From this byte on.")] = 0,
    limit: Annotated[int, Field(ge=LONGEST, le=4_000_000, description="How many bytes at most.")] = PIECE,
) -> ArtifactPiece:
    """What an artifact of a run holds, or as much of it as fits; `next` is where to go on."""
    return await piece_of(app.store, (await run_of(app.store, run)).id, artifact, start=start, limit=limit)


@_question("/inbox")
async def inbox(
    app: App,
    to: Annotated[str | None, Field(description="For this person, or this group.")] = None,
    run: Annotated[str | None, Field(description="Only of this run.")] = None,
    risk: Annotated[str | None, Field(description="Only of this risk.")] = None,
    older_than: Annotated[str | None, Field(description="Only what waits for so long, such as 1h.")] = None,
    first: Annotated[int, Field(ge=1, le=MOST, description="How many, the oldest.")] = 50,
) -> list[Request]:
    """What waits for a person, the oldest first."""
    return (await app.inbox(to=to, run=run, risk=risk, older_than=older_than))[:first]


@_question("/conversations")
async def conversations(app: App, session: SessionId = None, last: Last = 50) -> list[ConversationInfo]:
    """The newest conversations."""
    return (await app.conversations(session=session))[:last]


@_question("/conversations/{conversation}/messages")
async def messages(
    app: App,
    conversation: Annotated[str, Field(description="The id of a conversation.")],
    last: Last = 40,
    whole: Annotated[bool, Field(description="What summaries stand for, instead of them.")] = False,
) -> list[Message]:
    """What was said in a conversation, in order."""
    return await app.messages(conversation, last=last, whole=whole)


@_question("/sessions")
async def sessions(app: App, last: Last = 50) -> list[SessionInfo]:
    """The newest sessions."""
    return (await app.sessions())[:last]


@_question("/search")
async def search(
    app: App,
    text: Words,
    kind: Annotated[str | None, Field(description="Only events of this kind, such as step.failed.")] = None,
    since: Since = None,
    last: Last = 20,
) -> list[EventView]:
    """Events of all runs and conversations that hold some words, the newest first."""
    return await app.search(text, kind=kind, since=since, last=last)


@_question("/decisions")
async def decisions(
    app: App, text: Words = "", agent: AgentName = None, since: Since = None, last: Last = 20
) -> list[DecisionInfo]:
    """What agents chose, from what and why, the newest first."""
    return await app.decisions(text, agent=agent, since=since, last=last)


@_question("/errors")
async def errors(app: App, agent: AgentName = None, since: Since = None, last: Last = 20) -> list[ErrorInfo]:
    """What went wrong in all runs, and how it was handled, the newest first."""
    return await app.errors(agent=agent, since=since, last=last)


@_question("/calls")
async def calls(
    app: App,
    tool: Annotated[str | None, Field(description="Only of this tool.")] = None,
    where: Annotated[
        list[str], Field(description="On arguments: cents>100, order.id=o-1, to~example. All must hold.")
    ] = [],  # noqa: B006 - nobody changes it
    agent: AgentName = None,
    since: Since = None,
    last: Last = 20,
) -> list[CallInfo]:
    """Calls of tools, and what was decided before each, and why; the newest first."""
    return await app.tool_calls(tool, where=where, agent=agent, since=since, last=last)


@_question("/agents")
async def agents(app: App) -> list[AgentInfo]:
    """The agents that the store knows, whoever has their code."""
    return await app.agents()


@_question("/workers")
async def workers(app: App) -> list[WorkerInfo]:
    """The processes that drive runs: what each serves, and whether it lives."""
    return await app.workers()


@_question("/stats")
async def stats(app: App) -> Stats:
    """How many runs, requests and workers there are."""
    return await app.stats()
