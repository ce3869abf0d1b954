"""Functions that a model may call: tools, agents, external sources, and built-ins (notes, plan, questions, handoffs).

The result of a call is always text, also if it failed, so that the model can continue.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from limpet.arguments import brief
from limpet.engine.approvals.externals import External
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.schema_check import faults
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.strands import current_scope
from limpet.engine.run.run import Run
from limpet.errors import (
    AgentFailed,
    ContractError,
    DefinitionError,
    Expired,
    InvalidPatch,
    InvalidValue,
    NotFound,
    OutcomeUnknown,
    OutputUnavailable,
    RecordConflict,
    Rejected,
    Stale,
    StepFailed,
)
from limpet.events import bodies as b
from limpet.events import canonical
from limpet.llm.model import ToolCall, ToolSpec

__all__ = [
    "BUILT_IN",
    "CallableTool",
    "Handoff",
    "Normalise",
    "Toolbox",
    "Usable",
    "by_name",
    "callable_tools",
    "handoff_of",
    "toolboxes",
    "unchanged_result",
]

# Maximum size of a result in a prompt, in bytes. A larger one is stored as an artifact, and read in pieces.
MAX_SHOWN = 16_000
OPENED, NOTE = 6_000, 80
STALE = "limpet.Stale"
Does = Callable[[Run[Any], dict[str, Any]], Awaitable[Any]]
Normalise = Callable[[Run[Any], ToolCall, Any], Awaitable[Any]]
"""Hook that turns the result of a call into what the model is shown. It may patch the agent's state."""


async def unchanged_result(run: Run[Any], call: ToolCall, result: Any) -> Any:  # noqa: ARG001 - other hooks use them
    """Return the result unchanged. This is the default of `normalise`."""
    return result


class Toolbox(Protocol):
    """A source of tools, such as an MCP server. They are listed when a run starts, and the list is recorded."""

    @property
    def name(self) -> str:
        """Name of the source, for the record."""

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the available tools, as JSON."""

    def callable_tools(self, listed: Sequence[Mapping[str, Any]], /) -> list["CallableTool"]:
        """Return the tools that a model may call, from a recorded list."""


class Handoff(NamedTuple):
    """A permanent handoff of the task."""

    agent: Agent[Any, Any]
    input: Any


class CallableTool(NamedTuple):
    """Something that a model may call."""

    spec: ToolSpec
    execute: Does
    hands_to: Agent[Any, Any] | None = None
    """The agent that takes over permanently after the call."""
    checks: Mapping[str, Any] | None = None
    """JSON Schema that arguments are checked against, if it is stricter than the one that the model gets."""

    def args(self, call: ToolCall) -> dict[str, Any] | str:
        """Return the arguments of a call, or a text that says what is wrong with them."""
        try:
            args: dict[str, Any] = msgspec.json.decode(call.args or "{}")
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            return f"The arguments are not JSON: {error}"
        wrong = faults(args, self.checks or self.spec.schema, "arguments")
        return f"The arguments do not fit: {'; '.join(wrong[:5])}" if wrong else args

    async def call(self, run: Run[Any], call: ToolCall, normalise: Normalise) -> str:
        """Execute a call and return its result as text, preceded by a note if a person changed the arguments."""
        args = self.args(call)
        if isinstance(args, str):
            return args
        text = await self._result(run, call, args, normalise)
        return await _edit_note(run, self.spec.name, args) + text

    async def _result(self, run: Run[Any], call: ToolCall, args: dict[str, Any], normalise: Normalise) -> str:
        try:
            result = await self.execute(run, args)
            return await _shown(run, f"result of {self.spec.name}", await normalise(run, call, result))
        except Rejected as no:
            return f"{no.by} did not allow it: {no.because}"
        except (OutcomeUnknown, OutputUnavailable) as error:
            return error.summary
        except StepFailed as failed:
            return f"It failed: {failed.error_type}: {failed.message}"
        except _TOLD as error:
            return f"It did not work: {error.summary}"


# Errors that the model is told, so that it can do something else.
_TOLD = (AgentFailed, ContractError, Expired, InvalidPatch, InvalidValue, NotFound, RecordConflict, Stale)
Usable = Tool[..., Any, Any] | Agent[Any, Any] | External[..., Any] | Toolbox
"""Everything that an LLM agent can use as a tool."""


def _max_shown(run: Run[Any]) -> int:
    limits = run.execution.journal.working.budget
    return (limits and limits.max_artifact_bytes_in_context) or MAX_SHOWN


async def _edit_note(run: Run[Any], name: str, args: dict[str, Any]) -> str:
    """Return a note if a person approved the call with other arguments: the model's own message still has the old ones.

    It depends only on answers in the log, so it is the same in every execution.
    """
    x, path = run.execution, current_scope().path
    opened = [record.opened for each, record in x.history.records.items() if each.startswith(path)]
    shown = [each for each in opened if isinstance(each, b.RequestOpened) and each.kind == "approval"]
    found = x.history.answer_to(shown[-1].request) if shown else None
    if found is None or found[1].decision != "approved":
        return ""
    asked = await x.recorder.unpack(shown[0].args)
    used = await x.recorder.unpack(found[1].args or shown[-1].args)
    if used == asked:
        return ""
    whole = [key for key, value in asked.items() if value == args]  # an MCP tool takes all arguments as one
    text = await _shown(run, f"arguments of {name}", used[whole[0]] if whole else used)
    return f"A person changed the arguments to {text}. "


async def _shown(run: Run[Any], what: str, value: Any) -> str:
    """Return a value as text for the model. A large one is stored as an artifact."""
    text, most = value if isinstance(value, str) else canonical(value).decode(), _max_shown(run)
    if len(text.encode()) <= most:
        return text or "done"
    summary = f"{what}, begins with: {text[:200]}"
    stored = await run.artifact(text, type="text/plain", summary=summary)
    return f"[{stored.bytes} bytes, put away as artifact {stored.artifact_id}; it begins with] {text[: most // 4]}"


def callable_tools(
    tools: Sequence[Usable],
    handoffs: Sequence[Agent[Any, Any]],
    builtin: bool | Sequence[str],
    others: Sequence[CallableTool] = (),
) -> Mapping[str, CallableTool]:
    """Return everything that a model may call, by name, except the tools of toolboxes."""
    own = [_of(each) for each in tools if isinstance(each, Tool | Agent | External)]
    return by_name((*_chosen(builtin), *others, *own, *map(_of_handoff, handoffs)))


def _chosen(builtin: bool | Sequence[str]) -> list[CallableTool]:
    """Return the chosen built-in tools, in their usual order. Raises DefinitionError for an unknown name."""
    names = (BUILT_IN if builtin else ()) if isinstance(builtin, bool) else builtin
    if unknown := [each for each in names if each not in BUILT_IN]:
        reason = f"no built-in tool is called {unknown[0]!r}; there are: {', '.join(BUILT_IN)}"
        raise DefinitionError(what="llm_agent(builtin=…)", reason=reason)
    return [tool for name, tool in BUILT_IN.items() if name in names]


def toolboxes(tools: Sequence[Usable]) -> list[Toolbox]:
    """Return the toolboxes. Raises DefinitionError for anything that is not a tool."""
    found = [each for each in tools if not isinstance(each, Tool | Agent | External)]
    for each in found:
        if not callable(getattr(each, "list_tools", None)):
            reason = "not a tool; put @limpet.tool(effect=...) on the function"
            raise DefinitionError(what=f"the tool {brief(each)}", reason=reason)
    return found


def by_name(tools: Iterable[CallableTool]) -> Mapping[str, CallableTool]:
    """Return tools by name. Raises DefinitionError for a duplicate."""
    found: dict[str, CallableTool] = {}
    for made in tools:
        if made.spec.name in found:
            raise DefinitionError(what=made.spec.name, reason="two tools of a model have this name")
        found[made.spec.name] = made
    return found


def _of(each: Tool[..., Any, Any] | Agent[Any, Any] | External[..., Any]) -> CallableTool:
    if isinstance(each, Agent):
        return _of_agent(each)
    return _of_source(each) if isinstance(each, External) else _of_tool(each)


def _of_tool(tool: Tool[..., Any, Any]) -> CallableTool:
    async def does(run: Run[Any], args: dict[str, Any]) -> Any:
        positional, named = tool.unbind(args)
        try:
            result = await run.step(tool, *positional, **named)
        except (Stale, StepFailed) as refused:
            if not _is_stale(refused) or not await _read_again(run, tool):
                raise
            result = await run.step(tool, *positional, **named)
        return tool.plain_result(result)

    description = inspect.getdoc(tool.fn) or tool.name
    return CallableTool(ToolSpec(name=tool.name, description=description, schema=tool.schema), does)


def _is_stale(refused: Stale | StepFailed) -> bool:
    """Return whether a tool did not start because of stale data. One with an unknown outcome is not started again."""
    return isinstance(refused, Stale) or (type(refused) is StepFailed and refused.error_type == STALE)


async def _read_again(run: Run[Any], tool: Tool[..., Any, Any]) -> bool:
    """Read the sources of a tool again with their last arguments. Returns False if that is not possible."""
    try:
        for source in tool.fresh:
            assert isinstance(source, External)
            await run.read_again(source)
    except (InvalidValue, StepFailed, TypeError):  # never read and needs arguments, or does not answer
        return False
    return True


def _of_source(source: External[..., Any]) -> CallableTool:
    async def does(run: Run[Any], args: dict[str, Any]) -> Any:
        positional, named = source.tool.unbind(args)
        return source.tool.plain_result(await run.read(source, *positional, **named))

    description = inspect.getdoc(source.tool.fn) or f"Read {source.name}."
    return CallableTool(ToolSpec(name=source.name, description=description, schema=source.tool.schema), does)


def _of_agent(agent: Agent[Any, Any]) -> CallableTool:
    async def does(run: Run[Any], args: dict[str, Any]) -> Any:
        return agent.dump_output(await run.call(agent, _input(agent, args)))

    description = inspect.getdoc(agent.fn) or f"Let {agent.name} do it."
    return CallableTool(ToolSpec(name=agent.name, description=description, schema=_argument_schema(agent)), does)


def _of_handoff(agent: Agent[Any, Any]) -> CallableTool:
    async def does(run: Run[Any], args: dict[str, Any]) -> Any:  # noqa: ARG001 - same signature for all
        _input(agent, args)
        return f"{agent.name} is to go on with it."

    description = f"Hand the task over to {agent.name}, for good. {inspect.getdoc(agent.fn) or ''}".rstrip()
    spec = ToolSpec(name=f"hand_over_to_{agent.name}", description=description, schema=_argument_schema(agent))
    return CallableTool(spec, does, hands_to=agent)


def handoff_of(tools: Mapping[str, CallableTool], call: ToolCall) -> Handoff | None:
    """Return the handoff that a call requests, or None if it requests none or its arguments are invalid."""
    tool = tools.get(call.name)
    if tool is None or tool.hands_to is None:
        return None
    args = tool.args(call)
    try:
        return None if isinstance(args, str) else Handoff(tool.hands_to, _input(tool.hands_to, args))
    except (ContractError, InvalidValue):
        return None


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" or "$ref" in schema


def _argument_schema(agent: Agent[Any, Any]) -> dict[str, Any]:
    """Return an agent's input type as the JSON Schema of a call's arguments."""
    schema = agent.input_codec.schema()
    return schema if _is_object(schema) else _schema({"input": schema}, () if schema.get("type") == "null" else None)


def _input(agent: Agent[Any, Any], args: Mapping[str, Any]) -> Any:
    """Return an agent's input from the arguments of a call."""
    return agent.load_input(args if _is_object(agent.input_codec.schema()) else args.get("input"))


def _schema(properties: Mapping[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    names = list(properties if required is None else required)
    return {"type": "object", "properties": dict(properties), "required": names, "additionalProperties": False}


TEXT, TEXTS, NUMBER = {"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "integer"}


async def _note_fact(run: Run[Any], args: dict[str, Any]) -> str:
    key = args["key"]
    if "value" in args:
        said = _with_doubts(run, "noted", key)
        rests_on = [each for each in args.get("derived_from", ()) if each in run.state.facts]
        await run.patch(facts={key: args["value"]}, source="model", derived_from=rests_on)
        return said
    if key not in run.state.facts:
        return f"There is no such fact; there are: {', '.join(run.state.facts) or 'none'}"
    said = _with_doubts(run, "taken back", key)
    await run.patch(retract=[key])
    return said


def _with_doubts(run: Run[Any], done: str, key: str) -> str:
    doubtful = ", ".join(fact.key for fact in run.state.derived_from(key))
    return f"{done}; look again at what was concluded from it: {doubtful}" if doubtful else done


async def _set_plan(run: Run[Any], args: dict[str, Any]) -> str:
    plan, done = args.get("items", run.state.plan), args.get("done", ())
    if unknown := [each for each in done if each not in plan]:
        return f"There is no item {unknown[0]!r}; the plan has: {'; '.join(plan) or 'none'}"
    await run.patch(plan=args.get("items"), revise=dict.fromkeys(done, "done"))
    return "noted"


async def _note_question(run: Run[Any], args: dict[str, Any]) -> str:
    question = args["question"]
    if "answer" not in args:
        await run.patch(questions=[question])
    elif question not in run.state.open_questions:
        return f"There is no such open question; there are: {'; '.join(run.state.open_questions) or 'none'}"
    else:
        await run.patch(answered={question: args["answer"]})
    return "noted"


async def _ask_person(run: Run[Any], args: dict[str, Any]) -> str:
    return await run.ask(args["question"], answer=str)


async def _open_artifact(run: Run[Any], args: dict[str, Any]) -> str:
    data, start = await run.content(args["artifact_id"]), max(args.get("start", 0), 0)
    most = start + min(OPENED, max(_max_shown(run) - NOTE, NOTE))
    ends = (place for place in range(most, most - 4, -1) if not b"\x80" <= data[place : place + 1] < b"\xc0")
    end = next(ends, most)  # do not cut a character of a text
    piece, left = data[start:end].decode(errors="ignore"), max(len(data) - end, 0)
    return f"{piece}\n[{left} bytes are left; go on at {end}]" if left else piece


def _built_in(does: Does, description: str, properties: Mapping[str, Any], *required: str) -> CallableTool:
    """Return a built-in tool. Every prompt contains its schema, so the schema is as short as possible."""
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    spec = ToolSpec(name=does.__name__.removeprefix("_"), description=description, schema=schema)
    return CallableTool(spec, does, checks={**schema, "additionalProperties": False})


BUILT_IN = by_name(
    (
        _built_in(
            _note_fact,
            "Keep a fact for the task; no value drops it.",
            {"key": TEXT, "value": TEXT, "derived_from": TEXTS},
            "key",
        ),
        _built_in(_set_plan, "Set your plan; mark items done.", {"items": TEXTS, "done": TEXTS}),
        _built_in(_note_question, "Note a question, or its answer.", {"question": TEXT, "answer": TEXT}, "question"),
        _built_in(_ask_person, "Ask a person.", {"question": TEXT}, "question"),
        _built_in(_open_artifact, "Read on in a result.", {"artifact_id": TEXT, "start": NUMBER}, "artifact_id"),
    )
)
"""Tools that every LLM agent has, unless `builtin=` says otherwise. They change the run's state, or ask a person."""
