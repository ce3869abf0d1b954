"""Each attempt of a tool gets its own arguments: those in the log, whatever the code or another attempt changed."""

import json
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr, SecretStr

import limpet
from limpet import testing


@limpet.tool(effect="none", name="own_takes_json")
async def takes_json(given: Any, log: str) -> str:
    return change(given, log)


@limpet.tool(effect="none", name="own_takes_dict", timeout="1m")
def takes_dict(given: dict[str, Any], log: str) -> str:
    """Take the general path, because of the timeout."""
    return change(given, log)


@limpet.tool(effect="none", name="own_takes_undeclared")
async def takes_undeclared(given, log: str) -> str:  # type: ignore[no-untyped-def]
    return change(given, log)


def change(given: Any, log: str) -> str:
    """Note the arguments of an attempt in a file, change them, and fail at the first attempt."""
    with Path(log).open("a+") as file:
        file.write(json.dumps(given, default=str) + "\n")
        file.seek(0)
        attempt = len(file.readlines())
    given["items"].append("changed")
    given["more"] = 1
    if attempt == 1:
        raise TimeoutError("again")
    return "done"


@pytest.mark.parametrize("tool", [takes_json, takes_dict, takes_undeclared], ids=lambda tool: tool.name)
@pytest.mark.parametrize("named", [False, True], ids=["position", "name"])
@pytest.mark.parametrize("more", [{}, {"key": limpet.Secret("s3cr3t")}], ids=["plain", "secret"])
async def test_a_tool_that_changes_its_arguments_changes_neither_a_retry_nor_the_code(
    tool: Any, named: bool, more: dict[str, Any], tmp_path: Path
) -> None:
    """A replay returns the recorded result and changes nothing, so the first execution must not either."""
    log = tmp_path / "attempts"

    @limpet.agent(name="changes_arguments")
    async def agent(run: limpet.Run) -> bool:
        mine = {"items": ["one"], **more}
        await (run.step(tool, given=mine, log=str(log)) if named else run.step(tool, mine, str(log)))
        return mine == {"items": ["one"], **more}

    async with testing.app(agent) as app:
        assert await app.run(agent)
    first, second = map(json.loads, log.read_text().splitlines())
    assert first == second == {"items": ["one"], **dict.fromkeys(more, "[secret]")}


async def test_what_the_code_changes_while_a_step_waits_is_not_passed() -> None:
    """The tool gets what the person saw, also beside a secret."""
    got: list[Any] = []

    @limpet.tool(effect="once", risk="external_action")
    async def pay(*orders: Any) -> None:
        got.extend(order["cents"] for order in orders)

    @limpet.agent(approvals=limpet.Approvals("external_action", to=["finance"]))
    async def agent(run: limpet.Run) -> None:
        for order in ({"cents": 1}, {"cents": 2, "key": limpet.Secret("s3cr3t")}):
            step = run.step(pay, order)
            order["cents"] = 1_000_000
            await step

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for cents in (1, 2):
            await app.settle()
            [request] = await app.inbox()
            assert request.args is not None
            assert request.args["orders"][0]["cents"] == cents
            await app.approve(request, by="ann")
        await handle.result()
    assert got == [1, 2]


class Session(BaseModel):
    """A secret beside something that cannot be copied."""

    token: SecretStr
    _lock: Any = PrivateAttr(default_factory=Lock)


@pytest.mark.parametrize(
    ("takes", "wrap"),
    [(Any, lambda each: each), (Session, lambda each: each), (list[Session], lambda each: [each])],
    ids=["any", "object", "list"],
)
async def test_an_object_with_a_secret_is_passed_itself(takes: Any, wrap: Any) -> None:
    """It may contain what cannot be copied."""
    session = Session(token=SecretStr("s3cr3t"))
    got: list[Any] = []

    async def take(given: Any) -> None:
        got.append(given)

    take.__annotations__["given"] = takes
    use = limpet.tool(effect="none")(take)

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(use, wrap(session))

    async with testing.app(agent) as app:
        await app.run(agent)
    assert got == [wrap(session)]
    assert (got[0] if got[0] is session else got[0][0]) is session


@dataclass
class Order:
    """An argument that changes a member when it is created."""

    lines: Any

    def __post_init__(self) -> None:
        self.lines.sort()


async def test_an_argument_that_changes_itself_is_approved_once() -> None:
    """The log has it as the code passed it."""
    got: list[Any] = []

    @limpet.tool(effect="idempotent", risk="external_action")
    async def buy(order: Order) -> None:
        got.append(order.lines)

    @limpet.agent(approvals=limpet.Approvals("external_action", to=["finance"]))
    async def agent(run: limpet.Run) -> None:
        given: Any = {"lines": [3, 1, 2]}
        await run.step(buy, given)

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r1")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await handle.result()
        [started] = [event.body for event in await app.log("r1") if event.kind == "step.started"]
    assert request.args == started["args"]["json"] == {"order": {"lines": [3, 1, 2]}}
    assert got == [[1, 2, 3]]
