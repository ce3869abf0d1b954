"""Stubbed results of effects: the result from the forked run if it has one, else a sample of the declared type."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from limpet.engine.definitions.schema_check import faults, resolved
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.step import Step
from limpet.errors import InvalidValue, NotStubbed
from limpet.events import Payload
from limpet.events import bodies as b

__all__ = ["StubResults", "sample"]

Schema = Mapping[str, Any]
# Depth of samples of recursive types. Beyond DEEPEST the shortest alternative is used; at ENDLESS the sample ends.
DEEPEST, ENDLESS = 8, 64
_FORMATS: Mapping[str, str] = {
    "date-time": "1970-01-01T00:00:00Z",
    "date": "1970-01-01",
    "time": "00:00:00",
    "duration": "PT0S",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "uri": "about:blank",
    "email": "someone@example.invalid",
}


class _Recorded(NamedTuple):
    """Results recorded in the forked run."""

    steps: Mapping[str, Payload]
    """By the name of the step in the log; only steps after the fork point."""
    calls: Mapping[tuple[str, str], Payload]
    """By tool and digest of the arguments, for all steps. Stubbed results are not included."""


class StubResults:
    """Results of one execution that must not touch external systems."""

    def __init__(self, execution: Execution) -> None:
        self._x = execution
        self._recorded: _Recorded | None = None

    async def result(self, step: Step) -> tuple[Any, bool]:
        """Return the result of a step, and whether it is a sample.

        The result comes from the forked run, if the same step had an effect there, or the same tool had the same
        arguments. Otherwise it is a sample of the declared type.
        """
        known = await self._known(step)
        value = sample(step.tool.result_schema) if known is None else await self._x.recorder.unpack(known)
        try:
            loaded = step.tool.load_result(value, None if known is None else known.versions)
            value = step.tool.plain_result(loaded)
        except InvalidValue as error:
            raise NotStubbed(tool=step.tool.name, number=step.number, reason=error.at("result")) from error
        return value, known is None

    async def _known(self, step: Step) -> Payload | None:
        if self._recorded is None:
            self._recorded = await self._read()
        same = self._recorded.calls.get((step.tool.name, step.args_digest))
        return same if step.tool.traits.effect == "none" else self._recorded.steps.get(step.name, same)

    async def _read(self) -> _Recorded:
        """Read the log of the forked run, which exists as long as its forks do."""
        fork = self._x.journal.state.fork
        steps, calls = dict[str, Payload](), dict[tuple[str, str], Payload]()
        if fork is None:
            return _Recorded(steps, calls)
        store, asked = self._x.kit.store, dict[int, tuple[str, str]]()
        async for event in store.log(fork.run):
            body = store.decode(event)
            if isinstance(body, b.StepStarted) and not body.made_up:
                asked[body.number] = (body.tool, body.asked)
            elif isinstance(body, b.StepStarted):
                asked.pop(body.number, None)
            elif (
                isinstance(body, b.StepCompleted | b.StepResolved) and body.number in asked and body.output is not None
            ):
                calls[asked[body.number]] = body.output
                if event.seq > fork.at:
                    steps[body.name] = body.output
        return _Recorded(steps, calls)


def sample(schema: Schema) -> Any:
    """Return the simplest value that fits a JSON Schema. The caller checks it, because there may be none."""
    return _sample(schema, schema, 0)


def _sample(schema: Schema, root: Schema, depth: int) -> Any:
    given = [schema[name] for name in ("const", "default") if name in schema] + list(schema.get("enum", ()))[:1]
    if given or depth > ENDLESS:
        return given[0] if given else None
    other = _substitute(schema, root, depth)
    return _of_type(schema, root, depth) if other is None else _sample(other, root, depth + 1)


def _substitute(schema: Schema, root: Schema, depth: int) -> Schema | None:
    """Return the schema that this one refers to, or a part or combination of it; None if it describes a type itself."""
    if "$ref" in schema:
        return resolved(schema, root) or {}
    for name in ("anyOf", "oneOf"):
        if schema.get(name):
            return _choose(schema[name], depth)
    if schema.get("allOf"):
        return {key: value for part in schema["allOf"] for key, value in part.items()}
    return None


def _of_type(schema: Schema, root: Schema, depth: int) -> Any:
    kind = schema.get("type", "null")
    kind = kind if isinstance(kind, str) else kind[0]
    match kind:
        case "object":
            wanted = schema.get("required", ())
            return {name: _sample(schema.get("properties", {}).get(name, {}), root, depth + 1) for name in wanted}
        case "array":
            return _items(schema, root, depth)
        case "integer" | "number":
            return _number(schema, 1 if kind == "integer" else 0.5)
        case "string":
            text = _FORMATS.get(schema.get("format", ""), "")
            return text + "x" * (schema.get("minLength", 0) - len(text))
        case "boolean":
            return False
        case _:
            return None


def _choose(alternatives: list[Schema], depth: int) -> Schema:
    """Return the first alternative that is not null; null, if it is allowed, at a greater depth."""
    empty = [each for each in alternatives if each.get("type") == "null"]
    if empty and depth > DEEPEST:
        return empty[0]
    return next((each for each in alternatives if each.get("type") != "null"), alternatives[0])


def _items(schema: Schema, root: Schema, depth: int) -> list[Any]:
    fixed = [_sample(each, root, depth + 1) for each in schema.get("prefixItems", ())]
    missing = max(schema.get("minItems", 0) - len(fixed), 0)
    items = schema.get("items", {})
    return fixed + [_sample(items if isinstance(items, Mapping) else {}, root, depth + 1) for _ in range(missing)]


def _number(schema: Schema, step: float) -> Any:
    """Return a number within the bounds, 0 if possible."""
    found = 0
    for value in (0, schema.get("minimum"), schema.get("maximum")):
        if value is not None and not faults(value, {**schema, "type": "number"}):
            return value
    for bound, sign in (("exclusiveMinimum", 1), ("exclusiveMaximum", -1)):
        if bound in schema:
            found = schema[bound] + sign * step
    return found
