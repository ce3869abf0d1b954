"""The dashboard of `limpet dev`: a server of its own process, which stays while workers are restarted."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec

import msgspec

import limpet
from limpet.cli.browser import open_page
from limpet.cli.lifeline import LIFELINE
from limpet.cli.options import own_name
from limpet.compose import is_server
from limpet.engine.execution.principal import Role
from limpet.errors import LimpetError
from limpet.service.app import App

__all__ = ["DevDashboard"]

PARTS = ("uvicorn", "jinja2", "mcp")
INSTALL = "No dashboard: it needs `pip install 'limpet[server,mcp]'`."


class DevDashboard:
    """Serves the store that the worker reported, and prints a link to it."""

    def __init__(self, *, port: int, opens: bool, told: Callable[[str], None], lifeline: int) -> None:
        self._port, self._opens, self._told, self._lifeline = port, opens, told, lifeline
        self._url = ""
        self._server: asyncio.subprocess.Process | None = None

    async def show(self, url: str) -> None:
        """Serve a store and print a link that logs in, unless this store is served already."""
        if url == self._url:
            return
        await self.stop()
        self._url = url
        if url.startswith("memory:") or is_server(url):
            self._told("No dashboard: the store is in the memory of the worker, or on another server.")
        elif any(find_spec(name) is None for name in PARTS):
            self._told(INSTALL)
        else:
            await self._serve(url)

    async def stop(self) -> None:
        """End the server, if there is one."""
        server, self._server = self._server, None
        if server is not None and server.returncode is None:
            with suppress(ProcessLookupError):
                server.terminate()
            await server.wait()

    async def _serve(self, url: str) -> None:
        self._server = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "limpet.main",
            "serve",
            "--json",
            "--port",
            str(self._port),
            env={**os.environ, "LIMPET_URL": url, LIFELINE: str(self._lifeline)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(self._lifeline,),
            process_group=0,
        )
        assert self._server.stdout is not None
        line = await self._server.stdout.readline()
        if not line:
            self._told("No dashboard: its server ended. `limpet serve` says why.")
            return
        address = msgspec.json.decode(line)["url"]
        link = f"{address}/ui"
        with suppress(LimpetError):  # a store that can only be read has no logins
            link = f"{address}/ui/login?code={await _login(limpet.open(url, worker=False))}"
        self._told(f"Dashboard: {link}")
        if self._opens:
            open_page(link)


async def _login(app: App) -> str:
    """Return the code of a link that logs in the person at this terminal, who can read the store anyway."""
    async with app:
        name = own_name()
        roles: list[Role] = ["operator", "approver", "auditor", "admin"]
        return (await app.create_login(name or "operator", roles=roles, expires="1d", by=name)).code
