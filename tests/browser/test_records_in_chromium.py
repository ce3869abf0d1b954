"""Shared records in a real browser: the pages follow patches, and work without scripts on a phone."""

from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.test_chromium import chromium, logged_in
from tests.interfaces.remote.remote_servers import served_app


async def test_a_list_and_a_record_show_a_patch_without_a_reload() -> None:
    """In two tabs with one stream; a page of runs is not fetched again."""
    async with served_app() as (app, address), chromium() as browser, logged_in(browser, app, address) as page:
        await app.patch_record("board", read=0, plan=["cup"], facts={"owner": "ann"})
        record, runs = await page.context.new_page(), await page.context.new_page()
        for tab, path in ((page, "/records"), (record, "/records/board"), (runs, "/runs")):
            await tab.goto(f"{address}/ui{path}")
            await expect(tab.locator(".live")).to_have_text("Live")
        fetched: list[str] = []
        runs.on("request", lambda sent: fetched.append(sent.url))
        await app.patch_record("board", read=2, revise={"cup": "done"}, facts={"owner": "<b>bob"}, by="eve")
        await expect(record.locator("main")).to_contain_text("Version 3, the newest")
        await expect(record.locator(".plan")).to_contain_text("done")
        await expect(record.locator("#history")).to_contain_text('fact owner: "<b>bob"')
        await expect(page.locator("tbody .num").first).to_have_text("3")
        assert fetched == []


async def test_records_work_without_scripts_on_a_phone(full: bool) -> None:
    """From the list to an older version and back; nothing is wider than the screen."""
    if not full:
        pytest.skip("slow; --full")
    size: Any = {"width": 360, "height": 800}
    async with (
        served_app() as (app, address),
        chromium() as browser,
        logged_in(browser, app, address, java_script_enabled=False, viewport=size) as page,
    ):
        await app.patch_record("b" * 150, read=0, plan=["p" * 300], facts={"f" * 300: "v" * 300}, by="w" * 150)
        await app.patch_record("b" * 150, read=2, data={"d" * 300: "v" * 900}, questions={"q" * 300: "?" * 300})
        await page.get_by_role("link", name="Records").click()
        await page.get_by_role("link", name="b" * 150).click()
        await page.get_by_role("link", name="Version 2").first.click()
        await expect(page.locator("main")).to_contain_text("Version 2 of 3")
        for link in ("Newest", "Version 2"):
            box = await page.locator("body").bounding_box()
            assert box is not None
            assert box["width"] <= 360
            await page.get_by_role("link", name=link).first.click()
