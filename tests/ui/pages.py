"""The pages of the dashboard that `make ui` checks and `make screenshots` takes, in the store of the demo."""

import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

from tests.interfaces.cli.run_cli import LIMPET
from tests.servers import need
from tests.servers.preloaded import ROOT

__all__ = ["MAIN", "NODE", "PAGES", "SCHEMES", "WIDTHS", "Demo", "chromium", "demo", "logged_in", "show"]

NODE = ROOT / ".tools" / "node"
"""The folder in which `make ui` installs axe and Lighthouse."""
PAGES = {
    "login": "/ui/login",
    "runs": "/ui/runs",
    "runs-filtered": "/ui/runs?status=failed&text=prices",
    "runs-empty": "/ui/runs?text=nothing+has+this+name",
    "run-completed": "/ui/runs/refund-005",
    "run-waiting": "/ui/runs/refund-022",
    "run-failed": "/ui/runs/prices-1",
    "run-quarantined": "/ui/runs/import-2019",
    "run-live": "/ui/runs/report-q3",
    "run-conversation": "/ui/runs/chat-1",
    "run-talk": "/ui/runs/chat-2/conversation",
    "compare": "/ui/runs/refund-003/compare?with=refund-003.cheaper",
    "log": "/ui/runs/refund-001/log",
    "start": "/ui/start?agent=refunds",
    "batch": "/ui/batches?do=resume&status=failed",
    "inbox": "/ui/inbox",
    "request": "/ui/inbox/{request}",
    "agents": "/ui/agents",
    "agent": "/ui/agents/refunds",
    "conversations": "/ui/conversations",
    "conversation": "/ui/conversations/chat-ann",
    "records": "/ui/records",
    "record": "/ui/records/packing-board",
    "record-version": "/ui/records/packing-board?version=5",
    "run-record-step": "/ui/runs/packing-1?step=2",
    "operations": "/ui/operations?check",
    "missing": "/ui/runs/none",
}
"""Every kind of page, by name; {request} is an open request. A new page gets a line here."""
MAIN = ("login", "runs", "run-completed", "inbox", "agents", "record", "operations")
"""The pages that Lighthouse checks."""
SCHEMES = ("light", "dark")
WIDTHS = (1440, 360)


@dataclass(frozen=True)
class Demo:
    """A dashboard that is served, and the link that logs in."""

    address: str
    login: str


@contextmanager
def demo(folder: Path) -> Iterator[Demo]:
    """Run `limpet demo --dashboard` in a folder."""
    around = {**os.environ, "LOGNAME": "maria"}  # the person whom the pages show
    command = [LIMPET, "demo", str(folder / "shop"), "--dashboard", "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, env=around, text=True) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            yield Demo(said["url"], said["login"])
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Debian's Chromium."""
    program = need("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def logged_in(served: Demo) -> AsyncIterator[Page]:
    """Log in by the link, and yield the page."""
    async with chromium() as browser:
        page = await browser.new_page()
        await page.goto(served.login)
        await page.get_by_role("button", name=re.compile("Log in as")).click()
        await page.wait_for_url(f"{served.address}/ui/runs")
        yield page


async def show(page: Page, served: Demo, path: str) -> None:
    """Open a page of the dashboard; the login page is shown to a person who has no session."""
    context = page.context
    cookies = await context.cookies()
    if path == PAGES["login"]:
        await context.clear_cookies()
    if "{request}" in path:
        await page.goto(f"{served.address}{PAGES['inbox']}")
        card = await page.locator("form[action*='/ui/inbox/']").first.get_attribute("action")
        path = str(card)
    found = await page.goto(f"{served.address}{path}")
    assert found is not None
    assert found.status == (404 if path == PAGES["missing"] else 200), path
    if path == PAGES["login"]:
        await context.add_cookies(
            [{"name": each["name"], "value": each["value"], "url": served.address} for each in cookies]
        )
