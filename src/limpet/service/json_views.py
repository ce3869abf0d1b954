"""The JSON that all interfaces return: one type per kind of thing, with stable names.

A field keeps its name and type, and a new field breaks no client. Removing or changing one requires a new version of
the API; a test names the field that changed.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct, UnsetType
from typing_extensions import is_typeddict

from limpet.context.slice import ContextSlice
from limpet.engine.execution.views import EventView, Request, RunInfo, RunInput
from limpet.engine.run.conversation import Message
from limpet.engine.run.shared_records import SharedRecord
from limpet.llm import model
from limpet.service.activity import Activity
from limpet.service.artifacts import ArtifactPiece
from limpet.service.audit import AuditInfo
from limpet.service.benchmark import Measurement
from limpet.service.compare import Comparison
from limpet.service.conversations import CompactionInfo, ConversationInfo, Delivery, SessionInfo
from limpet.service.diffs import Diff
from limpet.service.error_records import ErrorInfo
from limpet.service.family import Family
from limpet.service.findings import Finding
from limpet.service.inbox import Decided, GrantInfo
from limpet.service.moments import MomentJson
from limpet.service.notices import RunNotice
from limpet.service.pieces import ValuePiece
from limpet.service.precedents import Precedent
from limpet.service.prompts import PromptView
from limpet.service.prune import Pruned
from limpet.service.queries import CallInfo, DecisionInfo
from limpet.service.records import RecordInfo, RecordUpdate
from limpet.service.replay import ReplayCheck, ReplayJson
from limpet.service.report import Report
from limpet.service.request_records import RequestRecord
from limpet.service.scores import ScoreInfo
from limpet.service.step_details import StepDetail
from limpet.service.steps import StepInfo
from limpet.service.stream_items import RecordEvent, ReplyPiece, RequestChange, RunChange
from limpet.service.timeline import TimelineRow
from limpet.service.tokens import CallerInfo, NewToken, TokenInfo
from limpet.service.verify import Verified
from limpet.service.workers import AgentInfo, Stats, WorkerInfo
from limpet.state import TaskRecord

__all__ = ["VERSION", "VIEWS", "descriptions_of", "fields_of", "forms", "frozen", "name_of", "schemas"]

VERSION = 1
VIEWS: Mapping[str, type] = {
    "a run, in lists": RunInfo,
    "a report of a run": Report,
    "an input of a run": RunInput,
    "a run as a task record": TaskRecord,
    "a step": StepInfo,
    "a step with everything": StepDetail,
    "an event": EventView,
    "a request to a person": Request,
    "a request with its decision": RequestRecord,
    "a decision of a request": Decided,
    "a standing approval": GrantInfo,
    "a precedent of a request": Precedent,
    "a score": ScoreInfo,
    "a state of a run": MomentJson,
    "a diff": Diff,
    "a comparison": Comparison,
    "a replay": ReplayJson,
    "a replay check": ReplayCheck,
    "a row of a timeline": TimelineRow,
    "a family of runs": Family,
    "a decision": DecisionInfo,
    "an error": ErrorInfo,
    "a call of a tool": CallInfo,
    "a context slice": ContextSlice,
    "a prompt": PromptView,
    "a piece of an artifact": ArtifactPiece,
    "a piece of a value": ValuePiece,
    "a message": Message,
    "a shared record": SharedRecord,
    "a shared record, in lists": RecordInfo,
    "a patch of a shared record": RecordUpdate,
    "a change of a shared record, in a stream": RecordEvent,
    "a conversation": ConversationInfo,
    "a compaction": CompactionInfo,
    "a session": SessionInfo,
    "a delivery of a message": Delivery,
    "an agent": AgentInfo,
    "a worker": WorkerInfo,
    "counts": Stats,
    "how the newest runs went": Activity,
    "a finding of `limpet doctor`": Finding,
    "a result of `limpet bench`": Measurement,
    "a verification": Verified,
    "a deletion of runs": Pruned,
    "an event of the audit log": AuditInfo,
    "a caller": CallerInfo,
    "an access token": TokenInfo,
    "a new access token": NewToken,
    "a change of a run, in a stream": RunChange,
    "a change of a request, in a stream": RequestChange,
    "a piece of a model's reply, in a stream": ReplyPiece,
    "a notice of a run": RunNotice,
}
# Names for types that are only data or would have the same name as another.
_NAMES: Mapping[type, str] = {
    model.PromptMessage: "PromptMessage",
    model.ToolCall: "ModelCall",
    MomentJson: "Moment",
    ReplayJson: "Replay",
}
_WORDS: Mapping[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    datetime: "time",
    NoneType: "null",
    Any: "anything",
    Raw: "anything",
    object: "anything",
}


def forms() -> dict[str, type]:
    """Return all types by name, including nested ones."""
    found: dict[str, type] = {}
    for view in VIEWS.values():
        _gather(view, found)
    return found


def frozen() -> list[str]:
    """Return every field of every type as text, for the test that compares them with the stored list."""
    return [f"{name}.{field}: {kind}" for name, form in forms().items() for field, kind in fields_of(form).items()]


def fields_of(form: type) -> dict[str, str]:
    """Return the fields of a type, each with a description of its type."""
    return {name: _words(hint) for name, hint in _hints(form).items()}


def name_of(form: type) -> str:
    """Return the public name of a type."""
    return _NAMES.get(form) or form.__name__


def schemas(where: str) -> dict[str, Any]:
    """Return the JSON Schemas of all types by name, with descriptions. References start with `where`."""
    known = forms()
    refs, found = msgspec.json.schema_components(known.values(), ref_template="{name}")
    names = {ref["$ref"]: name for name, ref in zip(known, refs, strict=True)}
    return {
        names[each]: _described(_referring(schema, names, where), known[names[each]]) for each, schema in found.items()
    }


def descriptions_of(form: type) -> dict[str, str]:
    """Return the docstring of each field of a type, also of inherited ones, from the source."""
    return {name: text for base in reversed(form.__mro__) for name, text in _own_descriptions(base).items()}


def _own_descriptions(form: type) -> dict[str, str]:
    if form.__module__.split(".")[0] != "limpet":
        return {}
    [body] = ast.parse(textwrap.dedent(inspect.getsource(form))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: re.sub(r"\s+", " ", str(doc.value.value))
        for field, doc in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    }


def _described(schema: dict[str, Any], form: type) -> dict[str, Any]:
    """Return the schema of a type with the descriptions of its fields."""
    texts = descriptions_of(form)
    properties = {
        name: {**each, "description": texts[name]} if name in texts else each
        for name, each in schema.get("properties", {}).items()
    }
    return {**schema, "title": name_of(form), "description": inspect.getdoc(form) or "", "properties": properties}


def _referring(schema: Any, names: Mapping[str, str], where: str) -> Any:
    if isinstance(schema, list):
        return [_referring(each, names, where) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": f"{where}{names[schema['$ref']]}"}
    if schema.get("type") == "array":  # generators of clients need the type of the items
        schema = {"items": {}, **schema}
    return {key: _referring(each, names, where) for key, each in schema.items()}


def _hints(form: type) -> dict[str, Any]:
    hints = get_type_hints(form)
    names = getattr(form, "__struct_fields__", None) or getattr(form, "__dataclass_fields__", None) or hints
    return {name: hints[name] for name in names}


def _gather(form: type, found: dict[str, type]) -> None:
    known = found.get(name_of(form))
    if known is not None:
        if known is not form:
            raise TypeError(f"two types are called {name_of(form)}")
        return
    found[name_of(form)] = form
    for hint in _hints(form).values():
        for part in _parts(hint):
            _gather(part, found)


def _is_form(hint: Any) -> bool:
    return is_typeddict(hint) or (isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, Struct)))


def _parts(hint: Any) -> Iterator[type]:
    if _is_form(hint):
        yield hint
    for each in get_args(hint):
        yield from _parts(each)


def _words(hint: Any) -> str:
    """Return a description of a field's type."""
    if hint in _WORDS:
        return _WORDS[hint]
    if _is_form(hint):
        return name_of(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(f'"{each}"' for each in args)
    if origin in (Union, UnionType):
        return " or ".join(_words(each) for each in args if each is not UnsetType)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object of {_words(args[1])}"
    if origin is tuple and Ellipsis not in args:
        return f"[{', '.join(map(_words, args))}]"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {_words(args[0])}"
    raise TypeError(f"no description for {hint!r}")
