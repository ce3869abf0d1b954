"""A model does not approve: an approval over MCP is a form that a person fills in, or a right of the token."""

import json
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult, InputRequiredResult
from msgspec.structs import replace

import limpet
from limpet import Principal
from limpet.mcp import server_of
from limpet.mcp.offer import McpCall
from limpet.mcp.person_forms import FormReply, send_decision
from limpet.service.decision_links import LinkKeys
from limpet.service.operation import operations_of
from tests.interfaces.mcp.harbour import asker, connected, data_of, decides, opened, paid, payer, person, waiting


async def test_a_person_approves_in_a_form_that_shows_the_real_arguments() -> None:
    """The decision is recorded with their name and the door."""
    seen: list[ElicitRequestFormParams] = []

    def fill(params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        seen.append(params)
        return ElicitResult(action="accept", content={"decision": "approve"})

    async with opened() as app, connected(app, fills=fill) as client:
        request = await waiting(app, payer, 900, "r")
        assert paid == []
        decided = await data_of(client, "approve", request=request.id)
        assert decided == {"request": request.id, "run": "r", "decision": "approved", "by": "ann"}
        assert await (await app.get("r")).result() == 900
        [form] = seen
        assert 'Arguments: {"cents":900,"to":"ann"}' in form.message or 'Arguments: {"cents":900}' in form.message
        assert "Tool: harbour_pay" in form.message
        decision = (await app.request(request.id)).decision
        assert (decision.by, decision.via) == ("ann", "mcp")


@pytest.mark.parametrize("tool", ["approve", "reject"])
async def test_the_decision_is_that_of_the_person_and_not_of_the_tool(tool: str) -> None:
    more = {"because": "the model says so"} if tool == "reject" else {}
    async with opened() as app, connected(app, fills=decides("deny", "too much")) as client:
        request = await waiting(app, payer, 900, "r")
        decided = await data_of(client, tool, request=request.id, **more)
        assert decided["decision"] == "rejected"
        assert (await app.request(request.id)).decision.because == "too much"
        assert paid == []


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_form_without_a_decision_leaves_the_request_open(action: Any) -> None:
    async with opened() as app, connected(app, fills=lambda _: ElicitResult(action=action)) as client:
        request = await waiting(app, payer, 900, "r")
        refused = await client.call_tool("approve", {"request": request.id})
        assert refused.is_error
        assert (await app.request(request.id)).decision.status == "open"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_without_forms_the_error_says_where_the_person_decides(mode: Any) -> None:
    """A command line, or a link that needs a login, because a model can open links, too."""
    keys = LinkKeys.from_text("ab" * 32)
    async with opened() as app:
        request = await waiting(app, payer, 900, "r")
        async with connected(app, mode=mode) as client:
            for tool, more in (("approve", {}), ("reject", {"because": "x"})):
                refused = await client.call_tool(tool, {"request": request.id, **more})
                assert refused.is_error
                assert refused.structured_content is not None
                assert refused.structured_content["code"] == "needs_person"
                assert f"limpet approve {request.id}" in refused.structured_content["hint"]
        async with connected(app, mode=mode, public_url="https://runs.example.com", link_keys=keys) as client:
            found = (await data_of(client, "approve", request=request.id))["link"]
            link = keys.verify(found.removeprefix("https://runs.example.com/ui/decide/"))
            assert (link.request, link.person) == (request.id, "")
        assert (await app.request(request.id)).decision.status == "open"
        assert paid == []


async def test_an_older_client_over_pipes_shows_the_form_as_a_request_of_the_server() -> None:
    async with opened() as app, connected(app, fills=decides("approve"), mode="legacy") as client:
        request = await waiting(app, payer, 900, "r")
        assert (await data_of(client, "approve", request=request.id))["decision"] == "approved"


async def test_a_question_is_answered_by_an_argument() -> None:
    async with opened() as app, connected(app) as client:
        request = await waiting(app, asker, "the boat", "r")
        assert (await data_of(client, "answer", request=request.id, answer="green"))["code"] == "invalid_answer"
        assert (await data_of(client, "answer", request=request.id, answer="red"))["decision"] == "answered"
        assert await (await app.get("r")).result() == "red"


async def test_a_service_approves_with_the_right_only() -> None:
    """Without it, a form that someone fills in is not enough: the caller is no person."""
    robot = Principal(name="robot", kind="service", door="mcp", roles=("approver",), groups=("finance",))
    async with opened() as app:
        request = await waiting(app, payer, 900, "r")
        async with connected(app, robot, fills=decides("approve")) as client:
            assert (await data_of(client, "approve", request=request.id))["code"] == "not_allowed"
        async with connected(app, replace(robot, rights=("approve-by-agent",))) as client:
            assert (await data_of(client, "approve", request=request.id))["decision"] == "approved"
        [used] = [each for each in await app.audit(action="approve") if each.outcome == "done"]
        assert (used.who, used.kind, used.door) == ("robot", "service", "mcp")


async def test_others_and_the_starter_do_not_approve_with_a_form_either() -> None:
    async with opened() as app:
        handle = await app.start(payer, 900, id="r", by="ann")
        async for event in handle.events():
            if event.kind == "request.opened":
                break
        [request] = await app.inbox()
        for who in (person(), replace(person(name="bob"), groups=("sales",))):
            async with connected(app, who, fills=decides("approve")) as client:
                assert (await data_of(client, "approve", request=request.id))["code"] == "not_allowed"
        assert paid == []


async def test_an_extension_of_a_budget_that_a_person_was_asked_for_needs_the_form() -> None:
    """`extend` would answer the run's request."""

    @limpet.tool(effect="none", name="mcp_approvals_look")
    def look(place: int) -> int:
        return place

    @limpet.agent(name="mcp_approvals_costly", budget=limpet.Budget(max_steps=1, exhausted="ask"))
    async def costly(run: limpet.Run, cents: int) -> int:
        return await run.step(look, 1) + await run.step(look, 2)

    seen: list[str] = []

    def fill(params: ElicitRequestParams) -> ElicitResult:
        seen.append(params.message)
        return decides("approve" if len(seen) > 1 else "deny")(params)

    async with opened(costly) as app:
        request = await waiting(app, costly, 1, "r")
        who = replace(person(), groups=request.to)
        async with connected(app, who) as other:
            assert (await data_of(other, "extend", run="r", budget={"max_steps": 5}))["code"] == "needs_person"
        async with connected(app, who, fills=fill) as client:
            assert (await data_of(client, "extend", run="r", budget={"max_steps": 5}))["code"] == "needs_person"
            assert (await app.request(request.id)).decision.status == "open"
            assert (await data_of(client, "extend", run="r", budget={"max_steps": 5}))["id"] == "r"
        assert await (await app.get("r")).result() == 3
        assert 'The model proposes: {"run":"r","budget":{"max_steps":5}}' in seen[0]


async def ask(client: Client, tool: str, **given: Any) -> InputRequiredResult:
    """Call a tool, and return the form without filling it in."""
    found = await client.session.call_tool(tool, given, allow_input_required=True)
    assert isinstance(found, InputRequiredResult)
    return found


async def reply(client: Client, state: str | None, tool: str, decision: str = "approve", **given: Any) -> Any:
    """Call a tool with a filled-in form and a state."""
    answer: Any = {"decision": ElicitResult(action="accept", content={"decision": decision})}
    return await client.session.call_tool(
        tool, given, input_responses=answer, request_state=state, allow_input_required=True
    )


async def test_a_forged_or_moved_state_decides_nothing() -> None:
    """Not one that was changed, not for another request, other arguments or tool, nor for another person."""
    async with opened() as app:
        one, two = await waiting(app, payer, 900, "one"), await waiting(app, payer, 9, "two")
        server = server_of({"main": app}, local=person())
        other = server_of({"main": app}, local=person())
        forms: Any = {"elicitation_callback": decide_nothing}
        async with Client(server, **forms) as client, Client(other, **forms) as stranger:
            state = (await ask(client, "approve", request=one.id)).request_state
            assert state is not None
            assert one.id not in state
            changed = state[:-2] + ("AA" if not state.endswith("AA") else "BB")
            plain = json.dumps({"request": one.id})
            for bad in (changed, plain, f"{one.id}.0000000000000000", "v1.", ""):
                with pytest.raises(MCPError, match="requestState"):
                    await reply(client, bad, "approve", request=one.id)
            for given in ({"request": two.id}, {"request": one.id, "standing": True}):
                with pytest.raises(MCPError, match="requestState"):
                    await reply(client, state, "approve", **given)
            with pytest.raises(MCPError, match="requestState"):
                await reply(client, state, "reject", request=one.id, because="x")
            with pytest.raises(MCPError, match="requestState"):
                await reply(stranger, state, "approve", request=one.id)
            unasked = await reply(client, None, "approve", request=one.id)
            assert isinstance(unasked, InputRequiredResult)
            assert {each.id for each in await app.inbox()} == {one.id, two.id}
            done = await reply(client, state, "approve", request=one.id)
            assert done.structured_content["decision"] == "approved"
            again = await reply(client, state, "approve", "deny", request=one.id)
            assert again.is_error
        assert await (await app.get("one")).result() == 900
        assert paid == [900]


async def test_the_state_of_one_person_is_not_valid_for_another() -> None:
    keys = LinkKeys.from_text("ab" * 32)
    async with opened() as app:
        request = await waiting(app, payer, 900, "r")
        ann = server_of({"main": app}, local=person(), link_keys=keys)
        bob = server_of({"main": app}, local=person(name="bob"), link_keys=keys)
        again = server_of({"main": app}, local=person(), link_keys=keys)
        forms: Any = {"elicitation_callback": decide_nothing}
        async with Client(ann, **forms) as one, Client(bob, **forms) as two, Client(again, **forms) as three:
            state = (await ask(one, "approve", request=request.id)).request_state
            with pytest.raises(MCPError, match="requestState"):
                await reply(two, state, "approve", request=request.id)
            done = await reply(three, state, "approve", request=request.id)
            assert done.structured_content["decision"] == "approved"


async def test_a_form_of_a_request_that_is_gone_or_shows_something_else_decides_nothing() -> None:
    async with opened() as app:
        request = await waiting(app, payer, 900, "r")
        forms: Any = {"elicitation_callback": decide_nothing}
        async with Client(server_of({"main": app}, local=person()), **forms) as client:
            state = (await ask(client, "approve", request=request.id)).request_state
            call: Any = McpCall(
                context=None,  # type: ignore[arg-type]
                app=app,
                who=person(),
                operations=operations_of(limpet.App),
                publish=print,
            )
            with pytest.raises(limpet.FormOutdated):
                await send_decision(call, f"{request.id}.0123456789abcdef", FormReply("approve"))
            await app.cancel("r", reason="too late")
            with pytest.raises(limpet.RunCancelled):
                await (await app.get("r")).result()
            late = await reply(client, state, "approve", request=request.id)
            assert late.structured_content["code"] == "already_answered"
        assert paid == []


async def decide_nothing(context: Any, params: ElicitRequestParams) -> ElicitResult:
    raise AssertionError("no form was to be filled in here")
