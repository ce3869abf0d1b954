"""Results of operations in code of FastAPI and pydantic."""

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from pydantic import BaseModel, ValidationError

import limpet


@limpet.agent(name="viewed")
async def viewed(run: limpet.Run) -> int:
    return 7


class Shown(BaseModel):
    """A model with a view."""

    run: limpet.RunInfo


async def test_routes_return_views_with_and_without_a_declared_type() -> None:
    service = FastAPI()
    async with limpet.open("memory:", agents=[viewed]) as app:
        await app.run(viewed, id="r-1")

        @service.get("/none")
        async def none():  # type: ignore[no-untyped-def]
            return await app.info("r-1")

        @service.get("/any")
        async def any_type() -> object:
            return await app.info("r-1")

        @service.get("/declared")
        async def declared() -> limpet.RunInfo:
            return await app.info("r-1")

        @service.get("/model")
        async def model() -> Shown:
            return Shown(run=await app.info("r-1"))

        async with AsyncClient(transport=ASGITransport(service), base_url="http://test") as client:
            found = [(await client.get(path)).json() for path in ("/none", "/any", "/declared", "/model")]
            schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    assert found[0] == found[1] == found[2] == found[3]["run"]
    assert (found[0]["id"], found[0]["position"]["text"], found[0]["output"]) == ("r-1", "step 0", 7)
    assert schemas["Shown"]["properties"]["run"] == {"type": "object", "title": "RunInfo"}


async def test_a_model_takes_a_view_or_its_json_and_refuses_others() -> None:
    async with limpet.open("memory:", agents=[viewed]) as app:
        await app.run(viewed, id="r-1")
        run = await app.info("r-1")
    assert Shown.model_validate({"run": vars(run)}).run == run
    with pytest.raises(ValidationError, match="missing required field"):
        Shown.model_validate({"run": {"id": "r-1"}})
