"""A run of 100,000 steps, and an output of 50 MB: pages open at once, wherever they are, and stay small."""

from pathlib import Path

import pytest
from playwright.async_api import expect

import limpet
from tests.behaviour.inspection.test_step_pages import rows_read, write_snapshots, write_steps
from tests.browser.test_chromium import chromium, logged_in
from tests.interfaces.remote.remote_servers import listening, served_app

# Rows that a page may read: two snapshots' worth of events, and some pages of steps; twice, because a page is fetched
# again if its stream connects late.
MOST_ROWS = 12_000
# Elements of a page that a browser shows smoothly.
MOST_ELEMENTS = 3_000


@limpet.tool(effect="none", name="long_write")
async def write(size: int) -> str:
    """Return a large value."""
    return "x" * size


@limpet.agent(name="long_writer")
async def writer(run: limpet.Run, size: int) -> int:
    """Write it."""
    return len(await run.step(write, size))


async def test_a_run_of_many_steps_opens_without_reading_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Without --full, it has 10,000 steps."""
    steps = 100_000 if full else 10_000
    rows = rows_read(monkeypatch)
    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", worker=False) as app:
        await write_steps(app.store, steps)
        await write_snapshots(app.store)
        async with listening({"main": app}) as address, chromium() as browser, logged_in(browser, app, address) as page:
            for path, expected in (
                ("?step=1", "Step 1, t"),
                (f"?step={steps // 2}", f"Step {steps // 2}, t"),
                ("", f"Step {steps}, t"),
                (f"?from={steps // 2 + 1}", f"Step {steps}, t"),
                ("/log", None),
                ("/log?cursor=1000", None),
                ("/compare", None),
                ("/conversation", None),
            ):
                rows.clear()
                await page.goto(f"{address}/ui/runs/r1{path}")
                if expected:
                    await expect(page.locator("#step-h")).to_have_text(expected)
                assert sum(rows) < MOST_ROWS, path
                assert await page.evaluate("document.querySelectorAll('*').length") < MOST_ELEMENTS, path
            await page.goto(f"{address}/ui/runs/r1?step=1")
            await expect(page.locator(".wf > li a")).to_have_count(50)
            await page.get_by_label(f"of {steps}, go to").fill(str(steps - 1))
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"**step={steps - 1}*")  # loaded: its scripts listen to keys
            await expect(page.locator("#step-h")).to_have_text(f"Step {steps - 1}, t")
            await page.keyboard.press("ArrowLeft")
            await page.wait_for_url(f"**step={steps - 2}*")
            await expect(page.locator("#step-h")).to_have_text(f"Step {steps - 2}, t")


async def test_an_output_of_50_mb_is_shown_in_pieces(full: bool) -> None:
    """The page of its step has only its size; a piece needs the right to see it unredacted. Without --full, 5 MB."""
    size = 50 if full else 5
    async with served_app(agents=[writer]) as (app, address), chromium() as browser:
        await app.run(writer, size * 1_000_000, id="r")
        await app.create_token("ann", roles=["operator", "approver"], rights=["raw"], groups=["finance"])
        async with logged_in(browser, app, address, roles=()) as page:
            await page.goto(f"{address}/ui/runs/r")
            assert len(await page.content()) < 100_000
            await page.get_by_role("link", name=f"{size}.0 MB, in pieces").click()
            await expect(page.locator("#v-h")).to_have_text(f"A value of {size}.0 MB")
            assert len(await page.content()) < 250_000
            await page.get_by_role("link", name="After").click()
            await expect(page.locator(".panel > header").first).to_contain_text("bytes 100000 to 200000")
