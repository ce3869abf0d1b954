"""The decision page behind one link in a real browser, on a phone without scripts: with and without a login."""

from typing import Any

import pytest

from tests.browser.test_chromium import WAITING, chromium
from tests.interfaces.dashboard.test_decide_pages import asking, decided

PHONE: Any = {"width": 360, "height": 740}


@pytest.mark.parametrize("alone", [False, True])
async def test_a_request_is_decided_on_a_phone(monkeypatch: pytest.MonkeyPatch, full: bool, *, alone: bool) -> None:
    """Nothing is wider than the screen, the buttons are large, and the page is shown after the login."""
    if alone and not full:
        pytest.skip("runs with --full (make chaos); test_decide_pages decides by a link alone without a browser")
    async with asking(monkeypatch, alone=alone) as (app, address, links), chromium() as browser:
        context = await browser.new_context(java_script_enabled=False, viewport=PHONE)
        context.set_default_timeout(WAITING)
        page = await context.new_page()
        made = await app.create_login("bob", roles=["approver"], groups=["finance"])
        link = f"{address}{links['ticket-50']}"
        await page.goto(link)
        if not alone:
            await page.get_by_role("heading", name="Log in to decide").wait_for()
            await page.goto(f"{address}/ui/login?code={made.code}")
            await page.get_by_role("button", name="Log in as bob").click()
            await page.wait_for_url(link)
        assert await decided(app, "ticket-50") == []
        size = await page.locator("html").evaluate("each => [each.scrollWidth, each.clientWidth]")
        assert size[0] <= size[1] == 360
        approve = await page.get_by_role("button", name="Approve ui_refund").bounding_box()
        assert approve is not None
        assert approve["height"] >= 44
        await page.get_by_text("Reject…").click()
        await page.get_by_label("Why? The agent reads this.").fill("too much")
        await page.get_by_role("button", name="Reject ui_refund").click()
        await page.get_by_text("Rejected by you").wait_for()
        await page.reload()
        await page.get_by_text("Rejected by you").wait_for()
        [found] = await decided(app, "ticket-50")
        assert (found["by"], found["via"], found["because"]) == ("bob", "link" if alone else "ui", "too much")
