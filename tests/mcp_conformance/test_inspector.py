"""The official inspector lists, reads and calls over stdio and HTTP, in both protocol eras and for every role.

It is a program for Node, which `make mcp-conformance` installs.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

import limpet
from limpet.engine.execution.principal import Role
from tests.interfaces.http_and_mcp.clients import fill, serving
from tests.mcp_conformance.suite import TOOLS, node
from tests.servers.preloaded import LIMPET

INSPECTOR = TOOLS / "inspector/clients/launcher/build/index.js"
CONTEXT = "limpet://runs/refund-50/context"
ROLES = get_args(Role)


@pytest.fixture(autouse=True, scope="module")
def tools(request: pytest.FixtureRequest) -> None:
    """Skip the tests without the inspector, and in `make test`."""
    if not request.config.getoption("--full") or not INSPECTOR.exists():
        pytest.skip("run `make mcp-conformance`, which installs the inspector")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a filled store."""
    found = f"sqlite:///{tmp_path_factory.mktemp('inspector')}/limpet.db"
    asyncio.run(fill(found))
    return found


@pytest.fixture(scope="module")
def tokens(url: str) -> dict[str, str]:
    """A token for each role."""

    async def make() -> dict[str, str]:
        async with limpet.open(url, worker=False) as app:
            return {role: (await app.create_token(f"{role}-1", roles=[role])).token for role in ROLES}

    return asyncio.run(make())


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[httpx.Client]:
    """A server over the store."""
    with serving(url) as client:
        yield client


class Inspector:
    """Runs the inspector against a server, as one role."""

    def __init__(self, home: Path, *target: str, before: tuple[str, ...] = ()) -> None:
        self._home, self._target, self._before = home, target, before

    def ask(self, *words: str, era: str = "modern") -> Any:
        """Return what the inspector prints for a method. It must succeed."""
        how = ("--cli", "--format", "json", "--protocol-era", era, *self._before)
        command = [node(), str(INSPECTOR), *how, "--method", *words, "--", *self._target]
        env = {**os.environ, "HOME": str(self._home), "PATH": f"{Path(node()).parent}:{os.environ['PATH']}"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (words, era, done.returncode, done.stdout[-2000:], done.stderr[-4000:])
        return json.loads(done.stdout)["result"]


def over_stdio(home: Path, url: str, role: str) -> Inspector:
    return Inspector(home, LIMPET, "mcp", "--url", url, "--role", role)


def over_http(home: Path, server: httpx.Client, token: str) -> Inspector:
    header = ("--transport", "http", "--header", f"Authorization: Bearer {token}")
    return Inspector(home, f"{server.base_url}/mcp", before=header)


def test_the_tool_schemas_are_portable_for_every_role(
    url: str, server: httpx.Client, tokens: dict[str, str], tmp_path: Path
) -> None:
    """`tools/list --strict` finds nothing, and both transports list the same."""

    def check(role: str) -> None:
        piped = over_stdio(tmp_path, url, role).ask("tools/list", "--strict")
        served = over_http(tmp_path, server, tokens[role]).ask("tools/list", "--strict")
        assert piped["tools"] == served["tools"], role

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(check, ROLES))


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("how", ["stdio", "http"])
def test_the_inspector_lists_reads_and_calls(
    how: str, era: str, url: str, server: httpx.Client, tokens: dict[str, str], tmp_path: Path
) -> None:
    asked = over_stdio(tmp_path, url, "operator") if how == "stdio" else over_http(tmp_path, server, tokens["operator"])
    uris = [each["uri"] for each in asked.ask("resources/list", era=era)["resources"]]
    assert "state://agents/doors_support/tasks/refund-50" in uris
    templates = [each["uriTemplate"] for each in asked.ask("resources/templates/list", era=era)["resourceTemplates"]]
    assert "limpet://runs/{run}/context" in templates
    [content] = asked.ask("resources/read", "--uri", CONTEXT, era=era)["contents"]
    assert json.loads(content["text"])["goal"] == "settle 50"
    called = asked.ask("tools/call", "--tool-name", "show", "--tool-arg", "run=refund-50", era=era)
    assert "refund-50" in json.dumps(called["structuredContent"])
    prompts = [each["name"] for each in asked.ask("prompts/list", era=era)["prompts"]]
    assert prompts
