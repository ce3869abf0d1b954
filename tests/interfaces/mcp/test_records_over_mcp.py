"""Shared records over MCP: resources, subscriptions, and many writers through all interfaces at the same time."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest
from mcp import Client, MCPError
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import ResourceTemplateReference

import limpet
from tests.interfaces.http_and_mcp.clients import TOKEN, over_http, serving
from tests.interfaces.mcp.harbour import connected, data_of, opened, person
from tests.interfaces.mcp.test_listening import until
from tests.servers.preloaded import ROOT

# Patches that are under way in one interface at the same time.
AT_ONCE = 20
# Writers of one shared fact; one of them is written.
RIVALS = 10


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, full: bool) -> str:
    """The URL of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/limpet.db"
    if not full:
        pytest.skip("runs with --full")
    found: str = request.getfixturevalue("postgres_schema")
    return found


class Doors:
    """The interfaces of one store: each patches the board, and returns whether that was refused."""

    def __init__(self, app: limpet.App, http: httpx.AsyncClient, mcp: Client) -> None:
        self._app, self._http, self._mcp = app, http, mcp
        self._places = [asyncio.Semaphore(AT_ONCE) for _ in range(3)]

    async def patch(self, number: int, read: int, facts: dict[str, int]) -> bool:
        """Patch the board through one of the interfaces."""
        door = (self._by_python, self._by_http, self._by_mcp)[number % 3]
        async with self._places[number % 3]:
            return await door(read, facts)

    async def _by_python(self, read: int, facts: dict[str, int]) -> bool:
        try:
            await self._app.patch_record("board", read=read, facts=facts)
        except limpet.RecordConflict as conflict:
            return bool(conflict.changes)
        return False

    async def _by_http(self, read: int, facts: dict[str, int]) -> bool:
        answer = await self._http.post("/v1/records/board/patch", json={"read": read, "facts": facts})
        if answer.status_code == 409:
            assert (answer.json()["code"], bool(answer.json()["facts"]["changes"])) == ("record_conflict", True)
            return True
        assert answer.status_code == 200, answer.text
        return False

    async def _by_mcp(self, read: int, facts: dict[str, int]) -> bool:
        found = await self._mcp.call_tool("patch_record", {"record": "board", "read": read, "facts": facts})
        if found.is_error:
            assert found.structured_content is not None
            assert found.structured_content["code"] == "record_conflict"
            return True
        return False


async def test_of_many_patches_at_once_none_is_lost(url: str, full: bool) -> None:
    """Half of them note a fact of their own; the others are rivals, of whom one is written."""
    count = 1_000 if full else 60
    async with limpet.open(url, worker=False) as app:
        groups = range(count // 2 // RIVALS)
        first = await app.patch_record("board", read=0, facts={f"shared-{each}": -1 for each in groups})
        with serving(url) as server:
            headers = {"authorization": f"Bearer {TOKEN}"}
            async with (
                over_http(server) as mcp,
                httpx.AsyncClient(base_url=server.base_url, headers=headers, timeout=60) as http,
            ):
                doors = Doors(app, http, mcp)
                names = [f"own-{each}" if each % 2 else f"shared-{each // 2 % len(groups)}" for each in range(count)]
                patches = [doors.patch(each, first.version, {name: each}) for each, name in enumerate(names)]
                refused = await asyncio.gather(*patches)
        board = await app.record("board")
        written = {name: each for each, name in enumerate(names) if not refused[each]}
        assert dict(board.facts) == written
        assert sum(refused) == count // 2 - len(groups)
        assert board.version == first.version + count - sum(refused)
        assert {each.by for each in board.known_facts} >= {"env"}
        assert (await app.verify()).records == 1


SHARER = '''
import asyncio, json, sys
from mcp import Client, StdioServerParameters, stdio_client


async def main(limpet: str, url: str, me: str) -> None:
    """Do the items of the plan that no agent has done, one after the other."""
    server = StdioServerParameters(command=limpet, args=["mcp", "--role", "writer", "--url", url])
    async with Client(stdio_client(server)) as client:
        while True:
            [content] = (await client.read_resource("state://records/board")).contents
            board = json.loads(content.text)
            left = [each for each, status in zip(board["plan"], board["plan_status"]) if status == "pending"]
            if not left:
                return
            change = {"revise": {left[0]: "done"}, "facts": {left[0]: me}}
            done = await client.call_tool("patch_record", {"record": "board", "read": board["version"], **change})
            print(left[0], "lost" if done.is_error else "done", flush=True)


asyncio.run(main(*sys.argv[1:]))
'''


async def test_a_second_agent_continues_where_the_first_was_killed(tmp_path: Path) -> None:
    """Two processes work on one plan over MCP; each item is done once."""
    url, items = f"sqlite:///{tmp_path}/limpet.db", [f"item-{each}" for each in range(12)]
    script = tmp_path / "sharer.py"
    script.write_text(SHARER, encoding="utf-8")
    async with limpet.open(url, worker=False) as app:
        await app.patch_record("board", read=0, plan=items)

        async def start(name: str) -> asyncio.subprocess.Process:
            program = str(Path(sys.executable).with_name("limpet"))
            words = (str(script), program, url, name)
            return await asyncio.create_subprocess_exec(
                sys.executable, *words, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env=dict(os.environ)
            )

        first = await start("first")
        assert first.stdout is not None
        for _ in range(4):
            assert await first.stdout.readline()
        first.send_signal(signal.SIGKILL)
        await first.wait()
        second = await start("second")
        printed, _ = await second.communicate()
        assert second.returncode == 0
        board = await app.record("board")
        assert set(board.plan_status) == {"done"}
        changes = [each for update in await app.record_changes("board", since=2) for each in update.changes]
        facts = [(each.key, each.before) for each in changes if each.part == "fact"]
        assert sorted(facts) == sorted((item, None) for item in items)
        by = [board.facts[item] for item in items]
        assert by == sorted(by), "the second goes on where the first was"
        assert 4 <= by.count("first") < len(items)
        assert printed.decode().count("done") == by.count("second")
        await app.verify()


BOARD = "state://records/board"


async def test_a_record_is_a_resource() -> None:
    """It is read at its newest version and at any other, is listed and completed, and its changes are announced."""
    async with opened() as app, connected(app, person("writer")) as client:
        uris = [BOARD, "limpet://records"]
        async with client.listen(resource_subscriptions=[*uris, f"{BOARD}/versions/2"]) as stream:
            assert stream.honored.resource_subscriptions == uris
            await data_of(client, "patch_record", record="board", read=0, facts={"owner": "ann"})
            await until(stream, {*map(ResourceUpdated, uris)})
            await app.patch_record("board", read=2, facts={"owner": "ben"})
            await until(stream, {ResourceUpdated(BOARD)})
        found = [await client.read_resource(uri) for uri in (BOARD, f"{BOARD}/versions/2", "limpet://records")]
        newest, second, listed = (json.loads(each.contents[0].model_dump()["text"]) for each in found)
        assert [newest["version"], second["version"]] == [3, 2]
        assert [each["known_facts"][0]["value"] for each in (newest, second)] == ["ben", "ann"]
        assert [each.ttl_ms > 0 for each in found] == [False, True, False]
        assert [each["name"] for each in listed["items"]] == ["board"]
        template = ResourceTemplateReference(uri="state://records/{record}")
        completed = await client.complete(template, {"name": "record", "value": "bo"})
        assert completed.completion.values == ["board"]


async def test_only_writers_patch_records() -> None:
    """Others do not see the tool, and a viewer does not see what is in a record."""
    async with opened() as app:
        await app.patch_record("board", read=0, facts={"owner": "ann"})
        for role, may_patch, may_read in (("viewer", False, False), ("auditor", False, True), ("writer", True, True)):
            async with connected(app, person(role)) as client:
                tools = {each.name for each in (await client.list_tools()).tools}
                assert (("patch_record" in tools), ("record" in tools)) == (may_patch, may_read)
                done = await client.call_tool("patch_record", {"record": "board", "read": 2, "data": {role: 1}})
                assert bool(done.is_error) != may_patch
        assert dict((await app.record("board")).data) == {"writer": 1}


@pytest.mark.parametrize("name", ["..", "a/b", "%2e%2e%2fx", "a%2Fb", "x" * 300, "a%00b", "limpet.audit.2026-11%0a"])
async def test_tricks_in_the_name_of_a_record_are_refused(name: str) -> None:
    async with opened() as app, connected(app) as client:
        with pytest.raises(MCPError):
            await client.read_resource(f"state://records/{name}")
