"""An answer that is an object of plain values is a form with a field for each, and never a decision."""

from dataclasses import dataclass
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import INVALID_PARAMS, ElicitResult

import limpet
from tests.interfaces.mcp.harbour import connected, data_of, opened, paid, payer, waiting


@dataclass
class Parcel:
    """The fields of the form."""

    to: str
    grams: int
    fragile: bool


@dataclass
class Nested:
    """An answer that no form can show."""

    parcel: Parcel


@limpet.agent(name="fields_sender")
async def sender(run: limpet.Run) -> list[Any]:
    parcel = await run.ask("Which parcel?", answer=Parcel, to="finance")
    return [parcel.to, parcel.grams, parcel.fragile]


@limpet.agent(name="fields_nested")
async def nested(run: limpet.Run) -> str:
    return (await run.ask("Which parcel?", answer=Nested, to="finance")).parcel.to


async def test_a_person_fills_in_each_field() -> None:
    """Fields that the answer does not have are left out."""
    shown: list[Any] = []

    def fill(params: Any) -> ElicitResult:
        shown.append(params.requested_schema)
        content: dict[str, Any] = {"to": "Ann", "grams": 20, "fragile": True, "more": "x", "note": "hello"}
        return ElicitResult(action="accept", content=content)

    async with opened(sender) as app, connected(app, fills=fill) as client:
        await app.start(sender, id="r")
        assert (await data_of(client, "wait", run="r"))["output"] == ["Ann", 20, True]
        [schema] = shown
        assert {name: each["type"] for name, each in schema["properties"].items() if name != "note"} == {
            "to": "string",
            "grams": "integer",
            "fragile": "boolean",
        }
        assert set(schema["required"]) == {"to", "grams", "fragile"}


async def test_an_incomplete_or_deeper_answer_leaves_the_request_open() -> None:
    def fill(_: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"to": "Ann"})

    async with opened(sender, nested) as app, connected(app, fills=fill) as client:
        await waiting(app, sender, None, "r")
        assert (await data_of(client, "wait", run="r", seconds=5))["code"] == "needs_person"
        await waiting(app, nested, None, "n")
        assert (await data_of(client, "wait", run="n", seconds=0))["ended"] is None
        assert len(await app.inbox()) == 2


async def test_fields_do_not_approve() -> None:
    """A form for a decision needs the decision."""

    def fill(_: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"confirm": True, "approve": True})

    async with opened() as app, connected(app, fills=fill) as client:
        await waiting(app, payer, 5, "r")
        assert (await data_of(client, "wait", run="r", seconds=5))["code"] == "needs_person"
        assert (len(await app.inbox()), paid) == (1, [])


async def test_an_unknown_resource_is_named_in_the_error() -> None:
    async with opened() as app, connected(app) as client:
        with pytest.raises(MCPError) as refused:
            await client.read_resource("limpet://nothing/here")
        assert (refused.value.code, refused.value.data["uri"]) == (INVALID_PARAMS, "limpet://nothing/here")
