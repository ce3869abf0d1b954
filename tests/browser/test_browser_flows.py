"""People at a real browser: start, watch, travel, decide, fork, compare, filter, and send batches."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.async_api import Page, Request, expect

import limpet
from tests.browser.test_chromium import chromium, logged_in
from tests.interfaces.dashboard.test_dashboard import dashboard
from tests.interfaces.dashboard.test_dashboard_pages import until
from tests.interfaces.remote.remote_servers import served_app


class Shop:
    """Whether a shop is open."""

    is_open = True


@limpet.tool(effect="none", name="flows_read")
async def read(place: int) -> int:
    """Read something."""
    return place


@limpet.tool(effect="idempotent", name="flows_sell", retry=limpet.Retry(1))
async def sell(name: str) -> str:
    """Sell, if the shop is open."""
    if not Shop.is_open:
        raise limpet.Permanent("the shop is closed")
    return f"sold {name}"


@dataclass(kw_only=True)
class Sale:
    """A sale."""

    name: str
    steps: int = 3


@limpet.agent(name="flows_seller")
async def seller(run: limpet.Run, sale: Sale) -> str:
    """Read, wait for a signal, and sell."""
    await run.patch(goal=f"sell {sale.name}", facts={"name": sale.name, "discount": 0})
    for place in range(sale.steps):
        await run.step(read, place)
    await run.patch(facts={"read": sale.steps})
    if sale.name == "kettle":
        await run.receive("go", str)
    return await run.step(sell, f"{sale.name} at {run.state.facts['discount']}")


@asynccontextmanager
async def shop(**how: Any) -> AsyncIterator[tuple[limpet.App, str, Page]]:
    """Yield an app, its address, and a page of ann."""
    Shop.is_open = True
    async with (
        served_app(agents=[seller]) as (app, address),
        chromium() as browser,
        logged_in(browser, app, address, **how) as page,
    ):
        yield app, address, page


async def test_a_run_is_started_watched_and_travelled_through() -> None:
    """Started by its form, live to its end, then back and forth by slider and arrow keys."""
    async with shop() as (app, address, page):
        await page.get_by_role("link", name="Start a run").first.click()
        await page.get_by_label("Agent").select_option("flows_seller")
        await page.get_by_role("button", name="Choose").click()
        await page.get_by_label("name").fill("kettle")
        await page.get_by_label("steps").fill("4")
        await page.get_by_text("Id, session, user").click()
        await page.get_by_label("Run id, your own").fill("sale-1")
        await page.get_by_role("button", name="Start", exact=True).click()
        await page.wait_for_url(f"{address}/ui/runs/sale-1")
        await expect(page.locator(".title")).to_contain_text("Waiting")
        await app.signal("sale-1", "go", "yes")
        await expect(page.locator(".title")).to_contain_text("Completed")
        await expect(page.locator(".live")).to_have_text("Live")
        await expect(page.locator("#state")).to_contain_text("at step 5 of 5")
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator("#state")).to_contain_text("at step 4 of 5")
        await page.wait_for_url(re.compile("step=4"))
        await expect(page.locator("#step-h")).to_have_text("Step 4, flows_read")
        slider = page.get_by_label("Step", exact=True)
        await slider.focus()
        await page.keyboard.press("Home")
        await page.wait_for_url(re.compile("step=1"))
        await expect(page.locator("#step-h")).to_have_text("Step 1, flows_read")
        await expect(slider).to_be_focused()
        await page.keyboard.press("End")
        await expect(page.locator("#step-h")).to_have_text("Step 5, flows_sell")


async def test_a_fact_is_edited_in_a_fork_that_is_compared_extended_and_cancelled(full: bool) -> None:
    if not full:
        pytest.skip("runs with --full (make chaos); tests/interfaces/dashboard sends these forms without a browser")
    async with shop() as (app, address, page):
        await app.run(seller, Sale(name="pan"), id="sale-1")
        await page.goto(f"{address}/ui/runs/sale-1?step=4")
        await page.get_by_label(re.compile("^discount")).fill("5")
        await page.get_by_label("Effects").select_option("live")
        await page.get_by_role("button", name="Fork", exact=True).click()
        await page.wait_for_url(f"{address}/ui/runs/sale-1.1")
        await expect(page.locator(".title")).to_contain_text("Completed")
        await page.get_by_role("link", name="Compare").first.click()
        await expect(page.locator("#first")).to_contain_text("First difference")
        await expect(page.locator(".cmp")).to_contain_text("sold pan at 5")
        await app.start(seller, Sale(name="kettle"), id="sale-2", deadline="1h")
        await page.goto(f"{address}/ui/runs/sale-2")
        await page.get_by_label("Deadline, from now").fill("3h")
        await page.get_by_label("Why optional").fill("they are slow")
        await page.get_by_role("button", name="Extend").click()
        await page.get_by_text("Cancel…").click()
        await page.get_by_label("Why? It is recorded").fill("closing")
        await page.get_by_role("button", name="Cancel this run").click()
        await expect(page.locator(".title")).to_contain_text("Cancelled")


async def test_failed_runs_are_filtered_selected_and_resumed(full: bool) -> None:
    """By filter, search and checkbox; then all that match."""
    if not full:
        pytest.skip("runs with --full (make chaos); tests/interfaces/dashboard sends these forms without a browser")
    async with shop() as (app, address, page):
        Shop.is_open = False
        for place in range(4):
            await app.start(seller, Sale(name=f"pan-{place}"), id=f"sale-{place}")
        await until(lambda: _are(app, "failed", 4))
        await page.goto(f"{address}/ui/runs")
        await page.get_by_role("navigation", name="By status").get_by_role("link", name="Failed").click()
        await page.wait_for_url(re.compile("status=failed"))
        await page.get_by_label("Search runs").fill("sale-3")
        await page.keyboard.press("Enter")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("link", name=re.compile("^All")).first.click()
        Shop.is_open = True
        await page.goto(f"{address}/ui/runs?status=failed")
        for id in ("sale-0", "sale-1"):
            await page.get_by_label(f"Select {id}").check()
        await expect(page.locator(".batch")).to_contain_text("2 selected")
        await page.locator(".batch").get_by_role("button", name="Resume…").click()
        await expect(page.get_by_role("heading", name="Resume 2 runs?")).to_be_visible()
        await app.run(seller, Sale(name="pan-9"), id="other")  # the reply to a form stays when something changes
        await page.evaluate("new Promise(done => setTimeout(done, 700))")
        await page.get_by_role("button", name="Resume 2 runs").click()
        await expect(page.locator(".title")).to_contain_text("Completed")
        await until(lambda: _are(app, "completed", 3))
        await page.goto(f"{address}/ui/runs?status=failed")
        await page.get_by_role("link", name="Resume all…").click()
        await page.get_by_role("button", name="Resume them all").click()
        await until(lambda: _are(app, "completed", 5))


async def _are(app: limpet.App, status: str, count: int) -> bool:
    return len(await app.runs(status=status, agent="flows_seller")) == count


async def test_a_decision_is_lost_to_another_tab_and_arguments_are_edited(full: bool) -> None:
    if not full:
        pytest.skip("runs with --full (make chaos); tests/interfaces/dashboard sends these forms without a browser")
    async with dashboard() as (app, address), chromium() as browser, logged_in(browser, app, address) as page:
        await page.goto(f"{address}/ui/inbox")
        card = page.locator("article", has=page.get_by_role("link", name="ticket-50"))
        [request] = await app.inbox(run="ticket-50")
        await card.get_by_text("Reject…").click()
        await card.get_by_label("Why? The agent reads this.").fill("no")
        await app.approve(request, by="bob")
        await card.get_by_role("button", name="Reject", exact=True).click()
        await expect(page.locator(".banner.wait")).to_contain_text("bob decided this before you")
        await expect(page.locator("article", has=page.get_by_role("link", name="ticket-50"))).to_have_count(0)
        card = page.locator("article", has=page.get_by_role("link", name="ticket-950"))
        await card.get_by_text("Edit arguments").click()
        await card.get_by_label(re.compile("^cents")).fill("1,5")
        await card.get_by_role("button", name="Approve with these arguments").click()
        card = page.locator("article", has=page.get_by_role("link", name="ticket-950"))
        await expect(card.locator(".err")).to_contain_text("is not a whole number")
        await card.get_by_label(re.compile("^cents")).fill("15")
        await card.get_by_role("button", name="Approve with these arguments").click()
        await expect(page.locator(".banner.ok")).to_contain_text("Approved by ann")
        await page.goto(f"{address}/ui/runs/ticket-950?step=2")
        await expect(page.locator("#step")).to_contain_text("ann (ui), approved")
        await expect(page.locator("#step .code").first).to_contain_text("15")


async def test_keys_move_open_search_and_never_decide_alone() -> None:
    """`a` moves the focus, and Enter decides. Keys do nothing while a person types."""
    async with dashboard() as (app, address), chromium() as browser, logged_in(browser, app, address) as page:
        keyboard = page.keyboard
        await keyboard.press("/")
        await keyboard.type("ticket-9")
        await keyboard.press("Enter")
        await page.wait_for_url("**ticket-9*")  # loaded: its scripts listen to keys
        await expect(page.locator("tbody tr")).to_have_count(1)
        await keyboard.press("j")
        await keyboard.press("x")
        await expect(page.get_by_label("Select ticket-950")).to_be_checked()
        await keyboard.press("Escape")
        await expect(page.get_by_label("Select ticket-950")).not_to_be_checked()
        await keyboard.press("j")
        await keyboard.press("Enter")
        await page.wait_for_url(f"{address}/ui/runs/ticket-950")
        await keyboard.press("p")
        await expect(page.get_by_role("button", name="Pause")).to_be_focused()
        await keyboard.press("?")
        await expect(page.locator("dialog")).to_contain_text("approve (Enter confirms)")
        await keyboard.press("Escape")
        [asked] = await app.inbox(run="ticket-50")
        await page.goto(f"{address}/ui/inbox/{asked.id}")
        await keyboard.press("a")
        assert len(await app.inbox()) == 3
        await expect(page.get_by_role("button", name="Approve").first).to_be_focused()
        await keyboard.press("Enter")
        await expect(page.locator(".banner.ok")).to_contain_text("Approved by ann")
        assert len(await app.inbox()) == 2
        question = page.locator("article", has=page.get_by_role("link", name="ask-1"))
        await question.get_by_role("link", name="ask-1").focus()
        await keyboard.press("r")
        await expect(page.locator("details[open]")).to_have_count(0)  # a question cannot be rejected
        await page.locator("article", has=page.get_by_role("link", name="ticket-950")).get_by_role("link").first.focus()
        await keyboard.press("r")
        await keyboard.type("jake says a, r and e")
        assert len(await app.inbox()) == 2


async def test_a_page_says_that_the_store_is_away_and_is_live_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page keeps its content and sends nothing meanwhile; the state of now follows without a reload."""
    async with shop() as (app, address, page):
        await app.start(seller, Sale(name="kettle"), id="sale-1")
        await page.goto(f"{address}/ui/runs/sale-1")
        await expect(page.locator(".title")).to_contain_text("Waiting")
        await expect(page.locator(".live")).to_have_text("Live")
        with monkeypatch.context() as fault:
            fault.setattr(app.store, "_ask", _fails)
            await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            await expect(page.locator(".banner.bad")).to_contain_text("does not answer since")
            await expect(page.locator(".title")).to_contain_text("Waiting")
            await expect(page.get_by_role("button", name="Extend")).to_be_disabled()
        await app.signal("sale-1", "go", "yes")
        await expect(page.locator(".title")).to_contain_text("Completed")
        await expect(page.locator(".banner.ok")).to_contain_text("Live again.")
        await expect(page.locator(".live")).to_have_text("Live")


async def _fails(*_: Any) -> Any:
    raise limpet.StoreUnavailable(reason="the disk is gone")


async def test_one_stream_serves_all_tabs() -> None:
    """A change is shown in both tabs; the other tab follows on when the first is closed."""
    async with shop() as (app, address, page):
        going: set[Request] = set()
        page.context.on("request", lambda sent: going.add(sent) if sent.url.endswith("/ui/stream") else None)
        page.context.on("requestfailed", lambda sent: going.discard(sent))  # noqa: PLW0108 - it must be a function

        async def one_goes() -> bool:
            await page.context.cookies()  # lets events arrive
            return len(going) == 1

        await app.start(seller, Sale(name="kettle"), id="sale-1")
        await page.goto(f"{address}/ui/runs/sale-1")
        await expect(page.locator(".live")).to_have_text("Live")
        other = await page.context.new_page()
        await other.goto(f"{address}/ui/runs")
        await expect(other.locator("tbody")).to_contain_text("Waiting")
        await until(one_goes)
        await page.goto("about:blank")
        await until(one_goes)
        await app.signal("sale-1", "go", "yes")
        await expect(other.locator("tbody")).to_contain_text("Completed")
        assert await one_goes()
