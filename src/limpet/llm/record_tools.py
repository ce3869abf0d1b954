"""Tools with which a model reads and patches shared records."""

from collections.abc import Sequence
from typing import Any

from limpet.engine.run.run import Run
from limpet.engine.run.shared_records import RecordChange, SharedRecord, shown_record
from limpet.journal import record_id
from limpet.llm.model import ToolSpec
from limpet.llm.tools import CallableTool
from limpet.state.shared_record import RecordState

__all__ = ["record_tools"]

TEXTS, NAMED = {"type": "array", "items": {"type": "string"}}, {"type": "object"}
NAMED_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
PARTS = {
    "facts": NAMED,
    "retract": TEXTS,
    "plan": TEXTS,
    "revise": NAMED_TEXTS,
    "questions": NAMED_TEXTS,
    "answered": NAMED_TEXTS,
    "close": TEXTS,
    "data": NAMED,
    "unset": TEXTS,
}
READ = "Read a record that you share with others: facts, plan, questions and data, and its version."
PATCH = (
    "Change a shared record that you have read at the version `read`. `revise` maps items of the plan to pending, "
    "doing, done or skipped; questions go by an id. If another has changed the same part meanwhile, read it again."
)


def record_tools(records: Sequence[str]) -> list[CallableTool]:
    """Return the tools for some records, or none if there are none. Raises InvalidArgument for a wrong name."""
    if not records:
        return []
    name = {"enum": [*dict.fromkeys(each for each in records if record_id(each))]}
    read = {"type": "object", "properties": {"record": name}, "required": ["record"]}
    properties = {"record": name, "read": {"type": "integer", "minimum": 0}, **PARTS}
    patch = {"type": "object", "properties": properties, "required": ["record", "read"]}
    return [
        _tool("read_record", READ, read, _read),
        _tool("patch_record", PATCH, patch, _patch),
    ]


def _tool(name: str, description: str, schema: dict[str, Any], does: Any) -> CallableTool:
    spec = ToolSpec(name=name, description=description, schema=schema)
    return CallableTool(spec, does, checks={**schema, "additionalProperties": False})


async def _read(run: Run[Any], args: dict[str, Any]) -> Any:
    return _shown(await run.record(args["record"]))


async def _patch(run: Run[Any], args: dict[str, Any]) -> str:
    read = shown_record(args.pop("record"), RecordState(version=args.pop("read")))
    change: RecordChange = {"source": "model", **args}  # type: ignore[typeddict-item]
    await run.patch_record(read, **change)
    return "done; read it again before you change it again"


def _shown(record: SharedRecord) -> dict[str, Any]:
    """Return a record as short as possible, because it is in every prompt that follows."""
    shown: dict[str, Any] = {"version": record.version}
    parts = {
        "facts": {each.key: {"value": each.value, "by": each.by} for each in record.known_facts},
        "plan": [f"{item} ({status})" for item, status in zip(record.plan, record.plan_status, strict=True)],
        "questions": {each.id: {"question": each.question, "answer": each.answer} for each in record.questions},
        "data": dict(record.data),
    }
    return shown | {part: value for part, value in parts.items() if value}
