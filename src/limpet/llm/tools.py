"""What a model may call: tools, other agents, and what every agent of a model can do: note, plan, ask, read on.

What comes of a call is text, also when nothing does: a model can go on from that.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from limpet.engine.agents import Agent
from limpet.engine.externals import External
from limpet.engine.run import Run
from limpet.engine.schema import faults
from limpet.engine.tools import Tool
from limpet.errors import (
    AgentFailed,
    ContractError,
    DefinitionError,
    Expired,
    InvalidPatch,
    InvalidValue,
    NotFound,
    Rejected,
    Stale,
    StepFailed,
)
from limpet.events import canonical
from limpet.llm.model import Call, ToolSpec

__all__ = ["Offered", "offered"]

# How much of a result a model sees, in bytes; more is put away, and can be opened.
MOST_SHOWN = 16_000
OPENED = 6_000
STALE = "limpet.Stale"
BUILT_IN = {
    "note_fact": ("Remember something for the whole task.", {"key": "string", "value": "string"}),
    "set_plan": ("Say in which steps you will proceed; the last plan counts.", {"items": "array"}),
    "open_question": ("Note what you do not know yet.", {"question": "string"}),
    "close_question": ("Note that an open question is answered.", {"question": "string", "answer": "string"}),
    "ask_person": ("Ask a person, and wait for the answer, for days if need be.", {"question": "string"}),
    "open_artifact": ("Read on in a big result.", {"artifact_id": "string", "start": "integer"}),
}
Does = Callable[[Run[Any], dict[str, Any]], Awaitable[Any]]


class Offered(NamedTuple):
    """Something that a model may call."""

    spec: ToolSpec
    does: Does

    async def call(self, run: Run[Any], call: Call, *, most: int) -> str:
        """What comes of a call, in text."""
        try:
            args = msgspec.json.decode(call.args or "{}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return f"The arguments are not JSON: {error}"
        wrong = faults(args, self.spec.schema)
        if wrong:
            return f"The arguments do not fit: {'; '.join(wrong[:5])}"
        try:
            return await _shown(run, self.spec.name, await self.does(run, args), most)
        except Rejected as no:
            return f"{no.by} did not allow it: {no.because}"
        except StepFailed as failed:
            return f"It failed: {failed.error_type}: {failed.message}"
        except (AgentFailed, ContractError, Expired, InvalidPatch, InvalidValue, NotFound, Stale) as error:
            return f"It did not work: {error.says}"


async def _shown(run: Run[Any], name: str, value: Any, most: int) -> str:
    """A result as a model sees it; a big one is put away."""
    text = value if isinstance(value, str) else canonical(value).decode()
    if len(text.encode()) <= most:
        return text or "done"
    summary = f"result of {name}, begins with: {text[:200]}"
    stored = await run.artifact(text, type="text/plain", summary=summary)
    return f"[{stored.bytes} bytes, put away as artifact {stored.artifact_id}; it begins with] {text[: most // 4]}"


def offered(tools: Sequence[Tool[..., Any, Any] | Agent[Any, Any] | External[..., Any]]) -> Mapping[str, Offered]:
    """Everything that a model may call, by name."""
    found = {name: _built_in(name) for name in BUILT_IN}
    for each in tools:
        made = _of(each)
        if made.spec.name in found:
            raise DefinitionError(what=made.spec.name, reason="two tools of this name are offered to a model")
        found[made.spec.name] = made
    return found


def _of(each: Tool[..., Any, Any] | Agent[Any, Any] | External[..., Any]) -> Offered:
    if isinstance(each, Agent):
        return _of_agent(each)
    return _of_source(each) if isinstance(each, External) else _of_tool(each)


def _of_tool(tool: Tool[..., Any, Any]) -> Offered:
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
    return Offered(ToolSpec(name=tool.name, description=description, schema=tool.schema), does)


def _is_stale(refused: Stale | StepFailed) -> bool:
    """Whether it did not start because of old news; one of which nobody knows whether it did is not begun again."""
    return isinstance(refused, Stale) or (type(refused) is StepFailed and refused.error_type == STALE)


async def _read_again(run: Run[Any], tool: Tool[..., Any, Any]) -> bool:
    """Read what a tool goes by once more, as it was read last; false if that cannot be."""
    try:
        for source in tool.fresh:
            assert isinstance(source, External)
            await run.read_again(source)
    except (InvalidValue, StepFailed, TypeError):  # it was never read, and takes arguments; or it does not answer
        return False
    return True


def _of_source(source: External[..., Any]) -> Offered:
    async def does(run: Run[Any], args: dict[str, Any]) -> Any:
        positional, named = source.tool.unbind(args)
        return source.tool.plain_result(await run.read(source, *positional, **named))

    description = inspect.getdoc(source.tool.fn) or f"Read {source.name}."
    return Offered(ToolSpec(name=source.name, description=description, schema=source.tool.schema), does)


def _of_agent(agent: Agent[Any, Any]) -> Offered:
    schema = agent.input_shape.schema()
    is_object = schema.get("type") == "object" or "$ref" in schema
    takes = schema if is_object else _schema({"input": schema}, schema.get("type") != "null")

    async def does(run: Run[Any], args: dict[str, Any]) -> Any:
        given = agent.load_input(args if is_object else args.get("input"))
        return agent.dump_output(await run.call(agent, given))

    description = inspect.getdoc(agent.fn) or f"Let {agent.name} do it."
    return Offered(ToolSpec(name=agent.name, description=description, schema=takes), does)


def _schema(properties: Mapping[str, Any], required: bool = True) -> dict[str, Any]:
    names = list(properties) if required else []
    return {"type": "object", "properties": dict(properties), "required": names, "additionalProperties": False}


def _built_in(name: str) -> Offered:
    description, takes = BUILT_IN[name]
    properties: dict[str, Any] = {
        each: {"type": "array", "items": {"type": "string"}} if kind == "array" else {"type": kind}
        for each, kind in takes.items()
    }
    return Offered(ToolSpec(name=name, description=description, schema=_schema(properties)), _DOES[name])


async def _note_fact(run: Run[Any], args: dict[str, Any]) -> str:
    await run.patch(facts={args["key"]: args["value"]}, source="model")
    return "noted"


async def _set_plan(run: Run[Any], args: dict[str, Any]) -> str:
    await run.patch(plan=args["items"])
    return "noted"


async def _open_question(run: Run[Any], args: dict[str, Any]) -> str:
    await run.patch(questions=[args["question"]])
    return "noted"


async def _close_question(run: Run[Any], args: dict[str, Any]) -> str:
    if args["question"] not in run.state.open_questions:
        return f"There is no such open question; there are: {'; '.join(run.state.open_questions) or 'none'}"
    await run.patch(answered={args["question"]: args["answer"]})
    return "noted"


async def _ask_person(run: Run[Any], args: dict[str, Any]) -> str:
    return await run.ask(args["question"], answer=str)


async def _open_artifact(run: Run[Any], args: dict[str, Any]) -> str:
    data = await run.content(args["artifact_id"])
    start = max(args["start"], 0)
    piece = data[start : start + OPENED].decode(errors="replace")
    left = max(len(data) - start - OPENED, 0)
    return f"{piece}\n[{left} bytes are left; go on at {start + OPENED}]" if left else piece


_DOES: Mapping[str, Does] = {
    "note_fact": _note_fact,
    "set_plan": _set_plan,
    "open_question": _open_question,
    "close_question": _close_question,
    "ask_person": _ask_person,
    "open_artifact": _open_artifact,
}
