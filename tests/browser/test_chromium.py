"""The dashboard in a real browser: log in, watch a run live, decide, and without scripts."""

import atexit
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from tempfile import mkdtemp
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

import limpet
from tests.interfaces.dashboard.test_dashboard import dashboard
from tests.servers import need

WAITING = 15_000
"""Milliseconds after which a test gives up."""


@cache
def _running() -> str:
    """Start Debian's Chromium, once in this process, and return the address at which it is driven."""
    folder = mkdtemp(prefix="limpet-chromium-")
    program = subprocess.Popen(
        [
            need("chromium"),
            "--headless=new",
            "--hide-scrollbars",
            "--no-sandbox",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(program.wait)
    atexit.register(program.kill)
    assert program.stderr is not None
    for line in program.stderr:
        if found := re.search(r"DevTools listening on (ws://\S+)", line):
            return found[1]
    raise AssertionError("Chromium does not start")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Connect to Chromium. Each test has contexts of its own in it."""
    address = _running()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(address)
        try:
            yield browser
        finally:
            for context in browser.contexts[1:]:
                await context.close()
            await browser.close()


@asynccontextmanager
async def logged_in(
    browser: Browser, app: limpet.App, address: str, *, roles: Any = ("operator", "approver"), **how: Any
) -> AsyncIterator[Page]:
    """Log ann in by a link; fail if a page has an error, or is refused a script or style."""
    made = await app.create_login("ann", roles=roles, groups=["finance"] if roles else ())
    context = await browser.new_context(**how)
    context.set_default_timeout(WAITING)
    page = await context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" and not _is_reply(said) else None)
    page.on("dialog", lambda dialog: faults.append(f"a dialog: {dialog.message}"))
    await page.goto(f"{address}/ui/login?code={made.code}")
    await page.get_by_role("button", name="Log in as ann").click()
    await page.wait_for_url(f"{address}/ui/runs")
    try:
        yield page
    finally:
        await context.close()
    assert faults == []


def _is_reply(said: ConsoleMessage) -> bool:
    """Return whether a browser only says that a page has the status of a refusal, or that the store is away."""
    is_page = "/static/" not in said.location["url"]
    return is_page and re.search(r"responded with a status of (404|409|422|503)", said.text) is not None


async def test_a_person_logs_in_watches_and_decides(full: bool) -> None:
    """The list changes by itself when a request is approved in another tab."""
    if not full:
        pytest.skip("runs with --full (make chaos); test_browser_flows logs in, watches two tabs and decides by keys")
    async with dashboard() as (app, address), chromium() as browser, logged_in(browser, app, address) as page:
        await page.locator(".live", has_text="Live").wait_for()
        other = await page.context.new_page()
        await other.goto(f"{address}/ui/inbox")
        card = other.locator("article", has=other.get_by_role("link", name="ticket-50"))
        await card.get_by_role("button", name="Approve").first.click()
        await other.locator(".banner.ok", has_text="Approved by ann").wait_for()
        await other.close()
        await page.locator("tr", has_text="ticket-50").get_by_text("Completed").wait_for()
        await page.get_by_role("link", name="ticket-50").click()
        await page.get_by_role("heading", name="Step 2, ui_refund").wait_for()
        await page.get_by_role("link", name="Step 1").first.click()
        await page.wait_for_url(re.compile("step=1"))
        await page.get_by_role("heading", name="Step 1, ui_look").wait_for()


async def test_a_run_that_is_open_shows_its_end(full: bool) -> None:
    """Without a reload."""
    if not full:
        pytest.skip("runs with --full (make chaos); test_browser_flows watches a run to its end")
    async with dashboard() as (app, address), chromium() as browser, logged_in(browser, app, address) as page:
        await page.goto(f"{address}/ui/runs/ask-1")
        await page.locator(".live", has_text="Live").wait_for()
        [request] = await app.inbox(run="ask-1")
        await app.answer(request.id, "blue", by="bob")
        await page.locator(".title", has_text="Completed").wait_for()


@pytest.mark.parametrize("width", [1440, 360])
async def test_everything_works_without_scripts(width: int, full: bool) -> None:
    """Also on a phone: nothing is wider than the screen. Without --full, only there."""
    if width > 360 and not full:
        pytest.skip("slow; --full")
    size: Any = {"width": width, "height": 800}
    async with (
        dashboard() as (app, address),
        chromium() as browser,
        logged_in(browser, app, address, java_script_enabled=False, viewport=size) as page,
    ):
        await page.goto(f"{address}/ui/inbox")
        card = page.locator("article", has=page.get_by_role("link", name="ticket-950"))
        await card.get_by_text("Reject…").click()
        await card.get_by_label("Why? The agent reads this.").fill("too much")
        await card.get_by_role("button", name="Reject", exact=True).click()
        await page.locator(".banner.ok", has_text="Rejected by ann").wait_for()
        card = page.locator("article", has=page.get_by_role("link", name="ask-1"))
        await card.get_by_label("blue").check()
        await card.get_by_role("button", name="Answer").click()
        await page.locator(".banner.ok", has_text="Answered by ann").wait_for()
        for path in ("/runs", "/runs/ticket-950", "/inbox"):
            await page.goto(f"{address}/ui{path}")
            box = await page.locator("body").bounding_box()
            assert box is not None
            assert box["width"] <= width
        assert await (await app.get("ask-1")).result() == "blue"
