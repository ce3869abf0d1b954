"""Agents by name: an agent whose code runs elsewhere is known by the contract that the store keeps."""

from collections.abc import Sequence
from typing import Any

from msgspec import convert

from limpet.engine.definitions.agents import Agent, AgentOptions
from limpet.engine.definitions.schema_check import faults
from limpet.engine.definitions.types import TYPED, TypeCodec
from limpet.engine.definitions.upgrades import Versions
from limpet.errors import InvalidValue, NotFound
from limpet.events import Limits, canonical, digest
from limpet.events.values import parse
from limpet.stores import ContractRow, Store

__all__ = ["RemoteAgent", "find_agent", "save_contracts"]


class SchemaCodec(TypeCodec):
    """Codec of values that a JSON Schema describes."""

    def __init__(self, schema: dict[str, Any], versions: Versions) -> None:
        super().__init__(Any)
        self._schema, self.versions = schema, versions

    def load(self, plain: Any, versions: Versions | None = None) -> Any:  # noqa: ARG002 - no types, no upgrades
        """Return the value itself. Raises InvalidValue if it does not match the schema."""
        if found := faults(plain, self._schema):
            raise InvalidValue(path="$", reason="; ".join(found), fix=TYPED)
        return plain

    def faults(self, plain: Any, name: str = "value") -> tuple[str, ...]:
        """Return all mismatches of a value, each with its place."""
        return tuple(faults(plain, self._schema, name))

    def schema(self) -> dict[str, Any]:
        """Return the schema as it was given."""
        return self._schema


class RemoteAgent(Agent[Any, Any]):
    """An agent whose code runs in another process or deployment."""

    def __init__(self, contract: dict[str, Any], hash: str) -> None:
        rules = contract["rules"]
        options = AgentOptions(
            version=contract["version"],
            steps=rules["steps"],
            deadline=rules["deadline_us"],
            budget=None if rules["budget"] is None else convert(rules["budget"], Limits),
            exclusive=rules["exclusive"],
        )
        super().__init__(_elsewhere, contract["agent"], options)
        versions = contract.get("versions", {})
        self.input_codec = SchemaCodec(contract["input"], versions.get("input", {}))
        self.output_codec = SchemaCodec(contract["output"], versions.get("output", {}))
        self.contract_hash = hash
        self._contract = contract

    def contract(self) -> dict[str, Any]:
        """Return the contract as it was stored."""
        return self._contract


async def _elsewhere(run: Any, input: Any) -> Any:  # noqa: ARG001
    """Stand in for the function of a remote agent; it is never called."""
    raise AssertionError


async def save_contracts(store: Store, agents: Sequence[Agent[Any, Any]], *, served: bool) -> None:
    """Save the contracts of agents, unless the store has them as the newest of their names.

    With `served`, they become that. Without, only agents with a new name are saved.
    """
    if not agents:
        return
    newest = {row.agent: row for row in await store.contracts()}  # the newest of a name comes last
    rows, older = [], []
    for each in agents:
        known = newest.get(each.name)
        if known is not None and (not served or (known.version, known.hash) == (each.version, each.contract_hash)):
            continue
        contract = canonical(each.contract())
        rows.append(ContractRow(agent=each.name, version=each.version, hash=each.contract_hash, contract=contract))
        if known is not None and known.version != each.version:
            older.append((each.name, each.version))
    await store.save_contracts(rows, again=older)


async def find_agent(store: Store, name: str) -> Agent[Any, Any]:
    """Return the agent with this name, as its newest contract describes it. Raises NotFound."""
    rows = await store.contracts(name)
    if not rows:
        fix = "Correct the name, pass the right store, or start a worker that serves the agent: `limpet worker FILE`."
        raise NotFound(what="agent", id=name, fix=fix)
    contract = parse(rows[-1].contract)
    return RemoteAgent(contract, digest(contract))
