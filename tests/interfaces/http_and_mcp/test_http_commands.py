"""Commands over HTTP: the caller is the sender, keys make repeats harmless, roles are checked, errors are problems."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import limpet
from limpet import errors
from limpet.engine.execution.principal import Role
from limpet.service.access import ROLES, roles_with
from limpet.service.operation import Operation, operations_of
from limpet.service.tokens import find_caller
from limpet.web import asgi
from limpet.web.openapi import document
from limpet.web.replies import status_of
from tests.servers.parking import parking

OPERATIONS = {
    name: each for name, each in operations_of(limpet.App).items() if "http" in each.doors and not each.is_stream
}
PEOPLE = {role: limpet.Principal(name=f"{role}-ann", roles=(role,), door="http") for role in ROLES}


@limpet.tool(effect="once", name="commands_pay", risk="pay")
async def pay(cents: int) -> str:
    """Pays."""
    return f"paid {cents}"


@limpet.agent(name="commands_payer", approvals=limpet.Approvals("pay"))
async def payer(run: limpet.Run, cents: int) -> str:
    """Pays after an approval."""
    return await run.step(pay, cents)


@limpet.agent(name="commands_asker")
async def asker(run: limpet.Run, name: str) -> str:
    """Asks, and waits for a signal."""
    colour: str = await run.ask(f"Which colour for {name}?", options=["red", "blue"])
    return f"{colour} {await run.receive('go', str)}"


@limpet.agent(name="commands_for_sales")
async def for_sales(run: limpet.Run) -> bool:
    return bool(await run.ask("Ship it?", to="sales"))


@asynccontextmanager
async def served(url: str) -> AsyncIterator[tuple[limpet.App, dict[Role, httpx.AsyncClient]]]:
    """Yield an app with a worker, and a client for each role."""
    async with parking(limpet.open(url, agents=[payer, asker, for_sales])) as app:
        transport = httpx.ASGITransport(asgi(app, auth=PEOPLE.get))  # type: ignore[arg-type] # a token is a role
        clients = {
            role: httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers={"authorization": f"Bearer {role}"}
            )
            for role in ROLES
        }
        yield app, clients


async def post(client: httpx.AsyncClient, path: str, status: int = 200, key: str = "", **body: Any) -> Any:
    """Send a command, and return the reply."""
    headers = {"idempotency-key": key} if key else {}
    answer = await client.post(f"/v1{path}", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
    return answer.json()


async def test_an_admin_manages_tokens(tmp_path: Path) -> None:
    """The text is returned once, also if the command is repeated; others are refused."""
    async with served(f"sqlite:///{tmp_path}/a.db") as (app, clients):
        admin = clients["admin"]
        made = await post(admin, "/tokens", key="k", name="eve", roles=["approver"], groups=["sales"], expires="90d")
        assert made["token"].startswith("lp_main_")
        again = await post(admin, "/tokens", 409, key="k", name="eve", roles=["approver"])
        assert (again["code"], again["facts"]["id"]) == ("id_conflict", made["info"]["id"])
        bad: list[dict[str, Any]] = [{"roles": ["root"]}, {"roles": []}, {"roles": ["viewer"], "tenant": "b"}, {}]
        for wrong in bad:
            await post(admin, "/tokens", 422, name="bob", **wrong)
        await post(clients["operator"], "/tokens", 403, name="bob", roles=["admin"])
        listed = await clients["auditor"].get("/v1/tokens")
        assert [each["id"] for each in listed.json()["items"]] == [made["info"]["id"]]
        assert made["token"].split("_")[3] not in listed.text
        revoked = await post(admin, f"/tokens/{made['info']['id']}/revoke")
        assert (revoked["status"], revoked["revoked_by"]) == ("revoked", "admin-ann")
        await post(admin, "/tokens/unknown/revoke", 404)
        assert (await clients["operator"].get("/v1/tokens")).status_code == 403
        assert await find_caller(app.store, made["token"]) is None


async def test_an_auditor_reads_the_audit_log(tmp_path: Path) -> None:
    """Others are refused, also where an operator may read the log of any run."""
    async with served(f"sqlite:///{tmp_path}/a.db") as (_, clients):
        made = await post(clients["admin"], "/tokens", name="eve", roles=["viewer"])
        found = (await clients["auditor"].get("/v1/audit", params={"action": "token.created", "since": "1h"})).json()
        [event] = found["items"]
        assert (event["action"], event["subject"], event["door"]) == ("token.created", made["info"]["id"], "http")
        for role in ("viewer", "operator", "approver", "admin", "worker"):
            assert (await clients[role].get("/v1/audit")).status_code == 403
        for part in ("", "/log", "/info", "/steps", "/state", "/context", "/input", "/task", "/diff"):
            answer = await clients["operator"].get(f"/v1/runs/{event['log']}{part}")
            assert answer.status_code in (404, 422), part
        assert (await clients["operator"].get("/v1/search", params={"text": "token"})).json()["items"] == []
        body = {"agent": "commands_asker", "input": "x", "id": "limpet.audit.2030-01"}
        wrong = await clients["operator"].post("/v1/runs", json=body)
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_append")


async def waits(app: limpet.App, run: str) -> None:
    """Return when a run waits."""
    async for event in (await app.get(run)).events():
        if event.kind == "run.waiting":
            return


async def test_a_run_is_started_answered_and_controlled(tmp_path: Path) -> None:
    """The caller of each command is recorded as its sender."""
    async with served(f"sqlite:///{tmp_path}/limpet.db") as (app, ann):
        operator, approver = ann["operator"], ann["approver"]
        answer = await operator.post("/v1/runs", json={"agent": "commands_asker", "input": "bob", "id": "r-1"})
        assert (answer.status_code, answer.headers["location"]) == (201, "/v1/runs/r-1")
        await waits(app, "r-1")
        [request] = (await approver.get("/v1/inbox")).json()["items"]
        wrong = await post(approver, f"/requests/{request['id']}/answer", 422, answer="green")
        assert wrong["code"] == "invalid_answer"
        decided = await post(approver, f"/requests/{request['id']}/answer", answer="red")
        assert (decided["decision"], decided["by"]) == ("answered", "approver-ann")
        again = await post(approver, f"/requests/{request['id']}/answer", 409, answer="blue")
        assert again["code"] == "already_answered"
        await post(operator, "/runs/r-1/signals/go", value="now")
        done = await operator.get("/v1/runs/r-1/info", headers={"prefer": "respond-async, wait=20"})
        assert (done.json()["status"], done.json()["output"]) == ("completed", "red now")
        assert (await post(operator, "/runs/r-1/cancel", 409, reason="late"))["code"] == "wrong_state"
        senders = {event.kind: event.body.get("by") async for event in (await app.get("r-1")).events()}
        assert (senders["run.created"], senders["request.answered"]) == ("operator-ann", "approver-ann")
        assert senders["signal.received"] == "operator-ann"


async def test_an_approval_is_given_or_refused(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path}/limpet.db") as (app, ann):
        for number, verdict in enumerate(("approve", "reject")):
            run = await post(ann["operator"], "/runs", 201, agent="commands_payer", input=number + 5)
            await waits(app, run["id"])
            [request] = (await ann["approver"].get("/v1/inbox")).json()["items"]
            more: dict[str, Any] = {"because": "no"} if verdict == "reject" else {}
            await post(ann["approver"], f"/requests/{request['id']}/{verdict}", **more)
            handle = await app.get(run["id"])
            if verdict == "approve":
                assert await handle.result() == "paid 5"
            else:
                with pytest.raises(limpet.RunFailed):
                    await handle.result()


async def test_a_caller_decides_only_requests_for_them(tmp_path: Path) -> None:
    """Also if the app has no `people=`: the caller has authenticated."""
    async with served(f"sqlite:///{tmp_path}/limpet.db") as (app, ann):
        await app.start(for_sales, id="s")
        await waits(app, "s")
        [request] = await app.inbox()
        refused = await post(ann["approver"], f"/requests/{request.id}/answer", 403, answer=True)
        assert (refused["code"], refused["facts"]["to"]) == ("not_allowed", ["sales"])


async def test_a_repeated_request_is_answered_like_the_first(tmp_path: Path) -> None:
    """Also at the same time. The same key with other content is refused; another caller's key is another command."""
    async with served(f"sqlite:///{tmp_path}/limpet.db") as (app, ann):
        operator = ann["operator"]
        first = await post(operator, "/runs", 201, key="k1", agent="commands_asker", input="bob")
        await waits(app, first["id"])
        again = await post(operator, "/runs", 201, key="k1", agent="commands_asker", input="bob")
        assert again["id"] == first["id"]
        assert (await post(operator, "/runs", 409, key="k1", agent="commands_asker", input="eve"))[
            "code"
        ] == "id_conflict"
        other = {"agent": "commands_asker", "input": "bob", "labels": {"team": "sales"}}
        assert "other options" in (await post(operator, "/runs", 409, key="k1", **other))["detail"]
        path = f"/runs/{first['id']}/signals/go"
        for _ in range(3):
            await post(operator, path, key="k2", value="now")
        assert (await post(operator, path, 409, key="k2", value="later"))["code"] == "id_conflict"
        await post(operator, path, key="k3", value="now")
        kinds = [event.kind async for event in (await app.get(first["id"])).events(follow=False)]
        assert kinds.count("signal.received") == 2
        for key in ("", "a" * 256, "tab\t"):
            answer = await operator.post(f"/v1{path}", json={"value": 1}, headers={"idempotency-key": key})
            assert (answer.status_code, answer.json()["facts"]["path"]) == (422, "Idempotency-Key")


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda each: each.name)
async def test_an_operation_is_for_its_roles_only(operation: Operation) -> None:
    """A refusal comes before arguments are looked at, and names the roles that may."""
    async with served("memory:") as (_, ann):
        for role, client in ann.items():
            path = f"/v1{operation.path}".replace("{", "").replace("}", "")
            answer = await client.request(operation.http_method, path)
            may = role in roles_with(operation.needs)
            assert (answer.status_code != 403) == may, (role, answer.text)
            if not may:
                found = answer.json()
                assert (found["code"], found["facts"]["operation"]) == ("not_permitted", operation.name)
                assert set(found["facts"]["roles"]) == set(roles_with(operation.needs))


def test_every_role_and_operation_is_used() -> None:
    """Each operation has a role that may use it, and payloads are for operators and auditors only."""
    assert all(roles_with(each.needs) for each in OPERATIONS.values())
    for name in ("show", "state", "log", "steps", "input", "search", "compare", "context", "prompt", "errors", "calls"):
        assert set(roles_with(OPERATIONS[name].needs)) == {"operator", "auditor"}, name


BODIES: list[tuple[bytes, str, int]] = [
    (b"{", "application/json", 400),
    (b'{"a": 1, "a": 2}', "application/json", 400),
    (b"\xff", "application/json", 400),
    (b"[" * 100_000, "application/json", 400),
    (b"[]", "application/json", 422),
    (b"null", "application/json", 422),
    (b"{}", "text/plain", 415),
    (b"{}", "", 415),
    (b" " * (4 * 1024 * 1024 + 1), "application/json", 413),
    (b'{"agent": 1}', "application/json", 422),
    (b'{"agent": "commands_payer", "by": "bob"}', "application/json", 422),
    (b'{"agent": "commands_payer", "command_id": "x"}', "application/json", 422),
    (b'{"agent": "commands_payer", "input": "x"}', "application/json", 422),
    (b'{"agent": "commands_unknown"}', "application/json", 404),
]


@pytest.mark.parametrize(("body", "kind", "status"), BODIES, ids=range(len(BODIES)))
async def test_a_bad_body_is_a_problem_and_starts_nothing(body: bytes, kind: str, status: int) -> None:
    async with served("memory:") as (app, ann):
        headers = {"content-type": kind} if kind else {}
        answer = await ann["operator"].post("/v1/runs", content=body, headers=headers)
        assert answer.status_code == status, answer.text
        problem = answer.json()
        assert problem.keys() == {"type", "title", "status", "detail", "code", "facts", "hint"}
        assert problem["hint"]
        assert await app.runs() == []


async def test_arguments_of_a_command_are_not_taken_from_the_query() -> None:
    async with served("memory:") as (app, ann):
        answer = await ann["operator"].post("/v1/runs?agent=commands_payer", json={"input": 5})
        assert (answer.status_code, answer.json()["facts"]["path"]) == (422, "agent")
        assert await app.runs() == []


def test_every_error_has_a_status() -> None:
    """Only an unexpected error is the server's fault."""
    found = {name: status_of(getattr(errors, name).__new__(getattr(errors, name))) for name in errors.__all__}
    assert [name for name, status in found.items() if status == 500] == ["Unexpected"]
    assert set(found.values()) <= {401, 403, 404, 409, 410, 421, 422, 429, 500, 503}
    wanted = {"NotAllowed": 403, "WrongState": 409, "AlreadyAnswered": 409, "IdConflict": 409, "Expired": 410}
    more = {"InvalidAnswer": 422, "ContractError": 422, "StoreUnavailable": 503, "StoreReplaced": 503}
    assert (wanted | more).items() <= found.items()


def test_commands_are_described() -> None:
    """Each has a body without the sender, and the header for its key."""
    paths = json.loads(json.dumps(document(OPERATIONS.values())))["paths"]
    for operation in OPERATIONS.values():
        described = paths[f"/v1{operation.path}"][operation.http_method.lower()]
        names = [each["name"] for each in described["parameters"]]
        assert ("requestBody" in described) == operation.is_command == ("Idempotency-Key" in names)
        if operation.is_command:
            body = described["requestBody"]["content"]["application/json"]["schema"]["properties"]
            assert not {"by", "command_id", *operation.in_path} & body.keys()
            assert all(each["description"] for each in body.values())
