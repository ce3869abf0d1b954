"""Who may use which operation: every operation for every role, in the caller's own store and in another tenant's.

The tables here are written by hand, so that a change of the roles or of an operation's permission needs a change here.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count, product
from typing import Any

import httpx
import pytest

import limpet
from limpet import testing
from limpet.engine.execution.principal import Right, Role
from limpet.mcp import over_http
from limpet.service.operation import Operation, operations_of
from limpet.service.tokens import _checksum
from limpet.web import asgi

OPERATIONS = {
    name: each for name, each in operations_of(limpet.App).items() if "http" in each.doors and not each.is_stream
}

LOOK = {
    *("runs", "timeline", "lineage", "grants", "conversations", "sessions", "agents", "workers", "stats", "verify"),
    *("activity", "whoami", "records"),
}
READ = {
    *("task", "tasks", "info", "show", "input", "steps", "step", "log", "state", "diff", "compare", "context"),
    *(
        "prompt",
        "artifact",
        "value",
        "inbox",
        "request",
        "precedents",
        "messages",
        "search",
        "decisions",
        "errors",
        "calls",
    ),
    "doctor",
    "scores",
}
RECORDS = {"record", "record_changes"}
SCORE = {"score", "unscore"}
CONTROL = {
    *("start", "resume", "extend", "pause", "cancel", "patch", "signal", "batch", "fork", "say", "compact"),
    *SCORE,
}
MAY: Mapping[Role, set[str]] = {
    "viewer": LOOK,
    "operator": LOOK | READ | CONTROL | RECORDS | {"patch_record"},
    "writer": LOOK | RECORDS | {"patch_record"},
    "approver": {"whoami", "inbox", "request", "precedents", "answer", "approve", "reject", *SCORE},
    "auditor": LOOK | READ | RECORDS | {"tokens", "audit"},
    "worker": set(),
    "admin": LOOK | {"doctor", "move", "grant", "revoke", "prune", "tokens", "create_token", "revoke_token"},
}
COUNT = count()
"""Callers of all roles patch a record at the same time, each another part of it."""
WORDS = {"main": "bollard", "acme": "capstan"}
"""A word that is only in the data of one tenant."""


@limpet.tool(effect="idempotent", name="matrix_copy")
def copy(word: str) -> str:
    """Return a text that is stored outside its event."""
    return f"{word} " * 5_000


@limpet.tool(effect="idempotent", name="matrix_pay", risk="external_action")
def pay(word: str) -> str:
    return word


@limpet.agent(name="matrix_work")
async def work(run: limpet.Run, word: str) -> str:
    """Leave the word in all kinds of data."""
    await run.patch(goal=f"find the {word}", plan=[word], facts={"place": word})
    await run.artifact(f"{word}\n" * 900, type="text/plain", summary=f"a picture of the {word}")
    await run.decide(f"which {word}?", choose=word, over=[word, "none"], because=word)
    await run.step(copy, word)
    return word


@limpet.agent(name="matrix_broken")
async def broken(run: limpet.Run, word: str) -> str:
    raise limpet.Permanent(word)


@limpet.agent(name="matrix_asking", budget=limpet.Budget(max_steps=50))
async def asking(run: limpet.Run, given: dict[str, str]) -> str:
    return await run.ask(f"Which colour for the {given['word']}?", options=["red", "blue"], to=given["to"])


@limpet.agent(name="matrix_paying", approvals=limpet.Approvals("external_action", to="finance"))
async def paying(run: limpet.Run, word: str) -> str:
    return await run.step(pay, word)


@limpet.agent(
    name="matrix_self_paying", approvals=limpet.Approvals("external_action", to="finance", self_approval=True)
)
async def self_paying(run: limpet.Run, word: str) -> str:
    return await run.step(pay, word)


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """One tenant of the server: ids in its store, and the tokens of its callers by role."""

    name: str
    app: limpet.App
    ids: Mapping[str, str]
    tokens: Mapping[Role, str]

    @property
    def word(self) -> str:
        """The word that only this tenant's data has."""
        return WORDS[self.name]

    def __getitem__(self, thing: str) -> str:
        return self.ids[thing]


Arguments = dict[str, Any]
ARGUMENTS: Mapping[str, Callable[[Tenant], Arguments]] = {
    "start": lambda _: {"agent": "matrix_work", "input": "x"},
    "resume": lambda t: {"run": t["failed"]},
    "extend": lambda t: {"run": t["waiting"], "budget": {"max_steps": 90}},
    "pause": lambda t: {"run": t["waiting"]},
    "cancel": lambda t: {"run": t["cancelled"], "reason": "late"},
    "move": lambda t: {"run": t["waiting"], "engine": "builtin"},
    "patch": lambda t: {"run": t["waiting"], "flags": ["seen"]},
    "signal": lambda t: {"run": t["waiting"], "name": "wake", "value": 1},
    "batch": lambda _: {"command": "pause", "labels": ["none=here"]},
    "runs": lambda t: {"text": t.word},
    "search": lambda t: {"text": t.word},
    "decisions": lambda t: {"text": t.word},
    "errors": lambda t: {"run": t["failed"]},
    "calls": lambda t: {"tool": "matrix_copy", "run": t["done"]},
    "step": lambda t: {"run": t["done"], "step": 1},
    "diff": lambda t: {"run": t["done"], "step": 1},
    "prompt": lambda t: {"run": t["talk"], "step": 1},
    "compare": lambda t: {"one": t["done"], "other": t["failed"]},
    "artifact": lambda t: {"run": t["done"], "artifact": t["artifact"]},
    "value": lambda t: {"run": t["done"], "blob": t["blob"]},
    "inbox": lambda t: {"run": t["waiting"]},
    "request": lambda t: {"request": t["question"]},
    "precedents": lambda t: {"request": t["payment"]},
    "answer": lambda t: {"request": t["question"], "answer": "red"},
    "approve": lambda t: {"request": t["payment"]},
    "reject": lambda t: {"request": t["other payment"], "because": "too much"},
    "grant": lambda t: {"run": t["waiting"], "tool": "matrix_pay"},
    "revoke": lambda t: {"run": t["granted"], "grant": t["grant"]},
    "score": lambda t: {"run": t["done"], "name": "quality", "value": 1},
    "unscore": lambda t: {"run": t["done"], "name": "quality"},
    "scores": lambda t: {"run": t["done"]},
    "record": lambda t: {"record": t["board"]},
    "record_changes": lambda t: {"record": t["board"]},
    "patch_record": lambda t: {"record": t["board"], "read": 2, "data": {f"seen {next(COUNT)}": True}},
    "fork": lambda t: {"run": t["done"], "at": 1},
    "say": lambda t: {"conversation": t["chat"], "text": "hello"},
    "messages": lambda t: {"conversation": t["chat"]},
    "compact": lambda t: {"conversation": t["chat"], "summary": "short", "keep": 1},
    "prune": lambda _: {"older_than": "9d", "dry_run": True},
    "create_token": lambda _: {"name": "new", "roles": ["viewer"]},
    "revoke_token": lambda t: {"token": t["token"]},
}


def arguments_of(operation: Operation, tenant: Tenant) -> Arguments:
    """Return arguments for which an operation succeeds in the store of a tenant."""
    if operation.name in ARGUMENTS:
        return ARGUMENTS[operation.name](tenant)
    return {"run": tenant["done"]} if operation.in_path else {}


@dataclass(frozen=True)
class Reply:
    """A reply of either interface: `done`, or the code of an error."""

    code: str
    text: str

    @property
    def data(self) -> Any:
        """The result, or the error, as data."""
        return json.loads(self.text)


class Door:
    """One client of the server, which sends operations with the tokens of different callers."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def http(self, token: str, operation: Operation, given: Arguments) -> Reply:
        """Send an operation over HTTP."""
        path = "/v1" + (operation.path or "").format(**given)
        rest = {name: value for name, value in given.items() if name not in operation.in_path}
        more: Arguments = {"json": rest} if operation.is_command else {"params": rest}
        answer = await self._client.request(operation.http_method, path, headers=_bearer(token), **more)
        if answer.is_success:
            assert answer.status_code == (201 if operation.name in ("start", "fork", "batch") else 200)
            return Reply("done", answer.text)
        found = answer.json()
        assert STATUS[found["code"]] == answer.status_code, found
        return Reply(found["code"], answer.text)

    async def mcp(self, token: str, operation: Operation, given: Arguments) -> Reply:
        """Call the tool of an operation over MCP."""
        found = await self.rpc(token, "tools/call", {"name": operation.name, "arguments": given})
        if "result" not in found:
            return Reply(found["code"], json.dumps(found))
        text = found["result"]["content"][0]["text"]
        return Reply(json.loads(text)["code"] if found["result"].get("isError") else "done", text)

    async def rpc(self, token: str, method: str, params: Arguments) -> Any:
        """Send an MCP request, and return its reply."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {**_bearer(token), "accept": "application/json, text/event-stream"}
        answer = await self._client.post("/mcp", json=message, headers=headers)
        assert (answer.status_code == 401) == ("code" in answer.json())
        return answer.json()


STATUS = {
    "not_authenticated": 401,
    "not_permitted": 403,
    "not_allowed": 403,
    "not_found": 404,
    "wrong_state": 409,
    "invalid_argument": 422,
}


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def waiting(*runs: limpet.Handle[Any]) -> None:
    """Return when all runs have asked a person."""
    await asyncio.gather(*map(_waiting, runs))


async def _waiting(run: limpet.Handle[Any]) -> None:
    async for event in run.events():
        if event.kind == "request.opened":
            return


async def fill(app: limpet.App, talk: limpet.Agent[str, str], tenant: str) -> dict[str, str]:
    """Fill the store of a tenant, and return the ids of what is in it."""
    word = WORDS[tenant]
    ids = {
        each: f"{each}-{tenant}"
        for each in ("done", "failed", "waiting", "cancelled", "granted", "talk", "chat", "board")
    }
    await app.run(work, word, id=ids["done"], session=f"session-{tenant}", labels={"of": tenant})
    await app.patch_record(ids["board"], read=0, facts={"place": word})
    with pytest.raises(limpet.RunFailed):
        await app.run(broken, word, id=ids["failed"])
    await app.run(talk, f"Where is the {word}?", id=ids["talk"], conversation=ids["chat"], user=f"user-{tenant}")
    question = {"word": word, "to": "finance"}
    started = [await app.start(asking, question, id=ids[each]) for each in ("waiting", "cancelled")]
    started += [await app.start(paying, word, id=f"{each}-{tenant}") for each in ("granted", "paid", "rejected")]
    await waiting(*started)
    requests = {each.run: each.id for each in await app.inbox()}
    [about] = (await app.context(ids["done"])).artifacts
    [call] = await app.tool_calls("matrix_copy")
    return {
        **ids,
        "question": requests[ids["waiting"]],
        "payment": requests[f"paid-{tenant}"],
        "other payment": requests[f"rejected-{tenant}"],
        "grant": (await app.grant(ids["granted"], risk="external_action", by="ann")).grant,
        "token": (await app.create_token(f"spare-{tenant}", roles=["viewer"])).info.id,
        "artifact": about.artifact_id,
        "blob": call.step.result["blob"],
    }


@asynccontextmanager
async def two_tenants() -> AsyncIterator[tuple[Tenant, Tenant, Door]]:
    """Yield two tenants with data and tokens for each role, and a client of the server that serves both."""
    async with AsyncExitStack() as stack:
        tenants: dict[str, Tenant] = {}
        for name, word in WORDS.items():
            model = testing.ScriptedModel(*[f"By the {word}."] * 9)
            talk = limpet.llm_agent(f"matrix_talk_{name}", model=model, instructions="Talk of harbours.")
            agents: list[limpet.Agent[Any, Any]] = [work, broken, asking, paying, self_paying, talk]
            app = await stack.enter_async_context(limpet.open("memory:", agents=agents))
            ids = await fill(app, talk, name)
            tokens = {
                role: (await app.create_token(f"{role}-{name}", roles=[role], groups=["finance"], tenant=name)).token
                for role in MAY
            }
            tenants[name] = Tenant(name=name, app=app, ids=ids, tokens=tokens)
        apps = {name: each.app for name, each in tenants.items()}
        mcp = over_http(apps)
        await stack.enter_async_context(mcp[1]())
        inside = asgi(apps["main"], tenants=apps, also={"/mcp": (mcp[0], AsyncExitStack)})
        client = httpx.AsyncClient(transport=httpx.ASGITransport(inside), base_url="http://localhost")
        yield tenants["main"], tenants["acme"], Door(await stack.enter_async_context(client))


def senders(door: Door, operation: Operation) -> Iterator[Callable[[str, Operation, Arguments], Any]]:
    """Yield how an operation is sent: over HTTP, and over MCP if that offers it."""
    yield door.http
    if "mcp" in operation.doors:
        yield door.mcp


def test_the_table_has_every_operation() -> None:
    assert set.union(*MAY.values()) == OPERATIONS.keys()


async def test_each_role_uses_exactly_its_operations_and_its_own_store() -> None:
    """Another role gets not_permitted, and no reply has anything of the other tenant, whose ids are not found."""
    async with two_tenants() as (main, acme, door):
        for operation in OPERATIONS.values():
            for own, other in ((main, acme), (acme, main)):
                for send, check in product(senders(door, operation), (check_other_tenant, check_own_tenant)):
                    await asyncio.gather(*(check(send, operation, role, own, other) for role in MAY))


async def check_own_tenant(
    send: Callable[..., Any], operation: Operation, role: Role, own: Tenant, other: Tenant
) -> None:
    reply = await send(own.tokens[role], operation, arguments_of(operation, own))
    wanted = "done" if operation.name in MAY[role] else "not_permitted"
    if operation.is_command and send.__name__ == "mcp":  # over HTTP, it has been done already
        assert (reply.code == "not_permitted") == (wanted == "not_permitted"), (operation.name, role, reply.text)
    else:
        assert reply.code == wanted, (operation.name, role, reply.text)
    assert other.word not in reply.text, (operation.name, role)
    if operation.name == "audit" and reply.code == "done":  # its subjects are the ids that callers sent
        assert {each["tenant"] for each in reply.data["items"]} <= {own.name, ""}
    else:
        assert f"-{other.name}" not in reply.text, (operation.name, role)  # its ids end so


async def check_other_tenant(
    send: Callable[..., Any], operation: Operation, role: Role, own: Tenant, other: Tenant
) -> None:
    given = arguments_of(operation, other)
    if given == arguments_of(operation, own) or operation.name == "say":  # the first message begins a conversation
        return
    reply = await send(own.tokens[role], operation, given)
    assert other.word not in reply.text, (operation.name, role)
    if operation.name not in MAY[role]:
        assert reply.code == "not_permitted", (operation.name, role)
    elif operation.in_path:
        assert reply.code == "not_found", (operation.name, role, reply.text)
        assert reply.data["facts"]["id"] in given.values()
    else:
        assert reply.code == "not_found" or reply.data["items"] == [], (operation.name, role, reply.text)


async def test_a_token_is_valid_only_in_the_store_that_has_it() -> None:
    """Not with the name of an unknown tenant, or of another tenant, on any path."""
    async with two_tenants() as (main, acme, door):
        lost = (await acme.app.create_token("ann", roles=["operator", "admin"], tenant="lost")).token
        swapped = (await acme.app.create_token("ann", roles=["operator", "admin"], tenant="main")).token
        start = main.tokens["operator"].replace("lp_main_", "lp_acme_").rpartition("_")[0]
        forged = f"{start}_{_checksum(start)}"
        for token in (lost, swapped, forged):
            for operation in OPERATIONS.values():
                for send in senders(door, operation):
                    reply = await send(token, operation, arguments_of(operation, main))
                    assert reply.code == "not_authenticated", operation.name


async def test_resources_need_the_roles_of_their_queries() -> None:
    """The list shows what `runs` shows; the state of a run is for those who may read payloads."""
    async with two_tenants() as (main, acme, door):
        for own, other in ((main, acme), (acme, main)):
            for role, may in MAY.items():
                listed = await door.rpc(own.tokens[role], "resources/list", {})
                assert ("result" in listed) == bool(may & {"runs", "inbox"}), role
                assert other.name not in json.dumps(listed)
                for tenant in (own, other):
                    for uri in (
                        f"state://agents/matrix_work/tasks/{tenant['done']}",
                        f"limpet://runs/{tenant['done']}/context",
                    ):
                        read = await door.rpc(own.tokens[role], "resources/read", {"uri": uri})
                        assert ("result" in read) == (tenant is own and "context" in may), (role, uri)
                        assert other.word not in json.dumps(read)


async def test_data_that_is_not_redacted_needs_a_right_besides_the_role() -> None:
    async with two_tenants() as (main, _, door):
        cases: list[tuple[list[Role], list[Right], str]] = [
            (["operator"], [], "not_permitted"),
            (["auditor"], [], "not_permitted"),
            (["operator"], ["raw"], "done"),
            (["auditor"], ["raw"], "done"),
            (["viewer"], ["raw"], "not_permitted"),
            (["approver", "admin"], ["raw"], "not_permitted"),
        ]
        for roles, rights, wanted in cases:
            token = (await main.app.create_token("ann", roles=roles, rights=rights)).token
            for operation in (OPERATIONS["value"], OPERATIONS["artifact"]):
                given = arguments_of(operation, main)
                for send in senders(door, operation):
                    assert (await send(token, operation, {**given, "raw": True})).code == wanted, (roles, rights)
                    plain = "done" if "operator" in roles or "auditor" in roles else "not_permitted"
                    assert (await send(token, operation, given)).code == plain


CALLERS: Mapping[str, Arguments] = {
    "ann": {"roles": ["approver"], "groups": ["finance"]},
    "bob": {"roles": ["approver"]},
    "eve": {"roles": ["approver"], "groups": ["sales"]},
    "olga": {"roles": ["operator", "approver"], "groups": ["finance"]},
    "robot": {"roles": ["approver"], "groups": ["finance"], "kind": "service"},
    "trusted": {"roles": ["approver"], "groups": ["finance"], "kind": "service", "rights": ["approve-by-agent"]},
}
ASKED: Mapping[str, tuple[str, Any, str]] = {
    "an approval": ("matrix_paying", "x", "approve"),
    "an approval for the starter, too": ("matrix_self_paying", "x", "approve"),
    "a question to finance": ("matrix_asking", {"word": "x", "to": "finance"}, "answer"),
    "a question to bob": ("matrix_asking", {"word": "x", "to": "bob"}, "answer"),
    "a question to anyone": ("matrix_asking", {"word": "x", "to": "anyone"}, "answer"),
}
MAY_DECIDE: Mapping[str, set[str]] = {
    "an approval": {"ann", "trusted"},
    "an approval for the starter, too": {"ann", "olga", "trusted"},
    "a question to finance": {"ann", "olga", "robot", "trusted"},
    "a question to bob": {"bob"},
    "a question to anyone": {"ann", "bob", "eve", "olga", "robot", "trusted"},
}
"""Who decides which request of a run that olga started: its addressees; approvals only people, and not olga."""
SEES: Mapping[str, set[str]] = {
    "ann": {each for each in ASKED if each != "a question to bob"},
    "bob": {"a question to bob", "a question to anyone"},
    "eve": {"a question to anyone"},
    "olga": set(ASKED),
    "robot": {each for each in ASKED if each != "a question to bob"},
    "trusted": {each for each in ASKED if each != "a question to bob"},
}
"""Who sees which request: its addressees, and olga, who may read what runs are about."""


async def open_requests(door: Door, token: str, app: limpet.App) -> dict[str, str]:
    """Start a run for each kind of request over HTTP, and return the ids of the requests."""
    runs: dict[str, str] = {}
    for kind, (agent, given, _) in ASKED.items():
        started = await door.http(token, OPERATIONS["start"], {"agent": agent, "input": given})
        runs[started.data["id"]] = kind
    await waiting(*[await app.get(run) for run in runs])
    return {runs[each.run]: each.id for each in await app.inbox() if each.run in runs}


async def test_addressees_decide_and_services_and_starters_do_not_approve() -> None:
    """A caller who may only decide sees exactly the requests that they are asked."""
    async with two_tenants() as (main, _, door):
        tokens = {
            name: (await main.app.create_token(name, **{"groups": [], **more})).token for name, more in CALLERS.items()
        }
        for name, token in tokens.items():
            requests = await open_requests(door, tokens["olga"], main.app)
            kinds = {id: kind for kind, id in requests.items()}
            listed = await door.http(token, OPERATIONS["inbox"], {})
            assert {kinds[each["id"]] for each in listed.data["items"] if each["id"] in kinds} == SEES[name]
            for kind, request in requests.items():
                for send in (door.http, door.mcp):
                    shown = await send(token, OPERATIONS["request"], {"request": request})
                    assert shown.code == ("done" if kind in SEES[name] else "not_allowed"), (name, kind)
                operation = OPERATIONS[ASKED[kind][2]]
                given = {"request": request, **({"answer": "red"} if operation.name == "answer" else {})}
                decided = await door.http(token, operation, given)
                assert decided.code == ("done" if name in MAY_DECIDE[kind] else "not_allowed"), (name, kind)
