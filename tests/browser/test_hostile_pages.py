"""A hundred hostile texts, in everything that a run can show, on every page of a real browser: none is executed."""

import asyncio
from itertools import product
from typing import Any

import limpet
from limpet.testing import ScriptedModel
from tests.browser.test_chromium import chromium, logged_in
from tests.interfaces.dashboard.test_dashboard_pages import until
from tests.interfaces.remote.remote_servers import served_app

HIT = "globalThis.hit=1"
# Ways out of where a text may stand, and elements that run a script.
EXITS = ("", '">', "'>", "</pre>", "</textarea>", "</title>", "-->", "]]>", "{{", "</svg>")
SCRIPTS = (
    f"<script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f"<svg onload={HIT}>",
    f"<details open ontoggle={HIT}>x</details>",
    f"<a href=javascript:{HIT}>x</a>",
    "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    f"<style>*{{background:url(javascript:{HIT})}}</style>",
)
OTHERS = (
    f"javascript:{HIT}",
    f"data:text/html,<script>{HIT}</script>",
    "{{ 7 * 7 }}{% import 'os' %}",
    "${7*7}<%= 7*7 %>",
    "\u202e<txt.exe\u202c\u2066",
    "\ufeff\u200b\u2028<b>\u2029",
    "\x1b[2J\x1b[31m<b>",
    "&lt;script&gt;&#60;script&#62;",
    "%3Cscript%3E%22%3E",
    "' onfocus=globalThis.hit=1 autofocus='",
    '" onfocus=globalThis.hit=1 autofocus="',
    "` onmouseover=globalThis.hit=1 `",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<form action=//evil.example><button>x",
    "<input name=form_token value=0>",
    "<!--",
    "<![CDATA[",
    "x" * 20_000,
    "<b>" * 2_000,
    "\U0001f9a6" * 500,
    "../../../ui/logout?x=1#<b>",
    "<math><mi xlink:href='javascript:globalThis.hit=1'>x",
    "<object data='javascript:globalThis.hit=1'>",
    "<template><script>globalThis.hit=1</script></template>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "\\u003cscript\\u003e",
    "<noscript><p title='</noscript><img src=x onerror=globalThis.hit=1>'>",
    "<svg><animate onbegin=globalThis.hit=1 attributeName=x dur=1s>",
    "<x id=globalThis name=hit>",
)
WAYS_OUT = [way + script for way, script in product(EXITS, SCRIPTS)]
PAYLOADS = [*WAYS_OUT, *OTHERS]
SOME = [*WAYS_OUT[::5], *OTHERS]
"""Every way out and every script, but not every pair of them."""
SVG = f"<svg xmlns='http://www.w3.org/2000/svg' onload='{HIT}'><script>{HIT}</script></svg>"
# Elements that only a payload could have made.
FOREIGN = (
    "iframe, object, embed, base, template, img:not([src^='/ui/']), math, style, meta[http-equiv], [onerror], [onload]"
)


def deep(levels: int) -> Any:
    """Return a list in a list, and so on."""
    found: Any = PAYLOADS[0]
    for _ in range(levels):
        found = [found]
    return found


@limpet.tool(effect="idempotent", name="hostile_step", risk="external_action", retry=limpet.Retry(1))
async def step(texts: list[str], nested: Any) -> Any:
    """Return what came in, or fail with it."""
    if len(texts) == 1:
        raise limpet.Permanent(texts[0])
    return {"texts": texts, "nested": nested, **{text: text for text in texts[:20]}}


@limpet.agent(name="hostile_agent", approvals=limpet.Approvals("external_action", to="finance"))
async def agent(run: limpet.Run, texts: list[str]) -> Any:
    """Put the texts everywhere."""
    await run.patch(
        goal=texts[0],
        plan=texts[:30],
        facts={f"{place} {text[:60]}": text for place, text in enumerate(texts)},
        questions=texts[:30],
        flags={f"flag-{place}": text for place, text in enumerate(texts[:20])},
    )
    for text in texts:
        await run.decide(text, choose=text, over=[*texts[:3], text], because=text, confidence=0.5)
    await run.artifact(SVG, summary=texts[3], type="image/svg+xml")
    result = await run.step(step, texts, deep(50))
    await run.ask(texts[1], options=texts[:40], to="finance")
    await run.step(step, [texts[2]], None)
    return result


talker = limpet.llm_agent(
    "hostile_talker",
    model=ScriptedModel("\n".join(PAYLOADS)),
    instructions="\n".join(PAYLOADS),
    tools=[],
)
PAGES = (
    "/runs",
    "/runs?text=%3Cscript%3EglobalThis.hit%3D1%3C%2Fscript%3E&session=%22%3E%3Cimg+src%3Dx+onerror%3DglobalThis.hit%3D1%3E",
    "/runs/h",
    "/runs/h?step=1",
    "/runs/h/log",
    "/runs/h/compare?with=t",
    "/runs/t/conversation",
    "/runs/t/conversation?saw=1",
    "/runs/t/conversation?whole=1",
    "/conversations",
    "/conversations/t.chat",
    "/records",
    "/records/h",
    "/inbox",
    "/operations",
    "/operations?check=1",
    "/agents",
    "/agents/hostile_agent",
    "/start?from=h",
    "/start?agent=%3Cscript%3EglobalThis.hit%3D1%3C%2Fscript%3E",
    "/batches?do=cancel&text=%22%3E%3Cscript%3EglobalThis.hit%3D1%3C%2Fscript%3E",
    "/runs/%3Cscript%3EglobalThis.hit%3D1%3C%2Fscript%3E",
    "/%3Cimg%20src%3Dx%20onerror%3DglobalThis.hit%3D1%3E",
)


async def test_no_text_of_a_run_is_executed_on_any_page(full: bool) -> None:
    """Nor does one make an element, leave its form, or load something; the browser would report what it refuses.

    Without --full, the run has half of the texts, and is not driven on to its second request and its failure.
    """
    assert len(PAYLOADS) == 100
    texts = PAYLOADS if full else SOME
    async with (
        served_app(agents=[agent, talker]) as (app, address),
        chromium() as browser,
        logged_in(browser, app, address) as page,
    ):
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        await app.start(
            agent, texts, id="h", session=PAYLOADS[1][:100], user=PAYLOADS[2][:100], labels={"x": PAYLOADS[3][:60]}
        )
        await until(app.inbox)
        await app.start(talker, "\n".join(PAYLOADS), id="t")
        await _hostile_record(app)
        for path in (*PAGES, *[f"/inbox/{each.id}" for each in await app.inbox()]):
            await page.goto(f"{address}/ui{path}")
            await _is_calm(page, path)
        if full:
            [asked] = await app.inbox()
            await app.approve(asked, by="ann")
            await until(lambda: _asks(app))
            for path in ("/inbox", "/runs/h?step=1", "/runs/h"):
                await page.goto(f"{address}/ui{path}")
                await _is_calm(page, path)
            [asked] = await app.inbox()
            await app.answer(asked, PAYLOADS[0], by="ann")
            await until(app.inbox)
            await app.approve((await app.inbox())[0], by="ann")
            await until(lambda: _failed(app))
            for path in ("/runs/h", "/runs/h?step=2", "/runs/h/log", "/operations", "/agents/hostile_agent"):
                await page.goto(f"{address}/ui{path}")
                await _is_calm(page, path)
        assert [url for url in requested if not url.startswith(address)] == []


async def _hostile_record(app: limpet.App) -> None:
    """Put the texts into all parts of a shared record."""
    facts = {f"{place} {text[:60]}": text for place, text in enumerate(PAYLOADS)}
    await app.patch_record("h", read=0, facts=facts, source=PAYLOADS[4], by=PAYLOADS[5])
    await app.patch_record("h", read=2, plan=PAYLOADS[:80], questions={text: text for text in PAYLOADS[:80]})
    data = {text[:60]: {text[:60]: [text]} for text in PAYLOADS}
    answered = {text: text for text in PAYLOADS[:20]}
    await app.patch_record("h", read=3, data=data, derived_from=PAYLOADS[:9], facts={"x": None}, answered=answered)


async def _asks(app: limpet.App) -> bool:
    return any(each.kind == "ask" for each in await app.inbox())


async def _failed(app: limpet.App) -> bool:
    return (await app.info("h")).status == "failed"


async def _is_calm(page: Any, path: str) -> None:
    """Open all that is folded, move the pointer and the focus over the page, and look for what a text has done."""
    await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    await page.evaluate(
        """for (const each of document.querySelectorAll('main *')) {
             each.dispatchEvent(new Event('mouseover'));
             if (each.matches('a, input, textarea, button, pre')) each.focus({ preventScroll: true });
           }"""
    )
    assert await page.evaluate("globalThis.hit") is None, path
    assert await page.evaluate(f"document.querySelectorAll(`{FOREIGN}`).length") == 0, path
    assert await page.evaluate("document.querySelectorAll('script').length") <= 1, path
    links = await page.evaluate("[...document.querySelectorAll('a[href]')].map(each => each.href)")
    assert [each for each in links if not each.startswith("http://127.0.0.1:")] == [], path
    await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
