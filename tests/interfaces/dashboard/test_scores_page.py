"""The scores of a run in the dashboard: they are shown as text, given, changed and withdrawn by a form."""

from typing import Any

import httpx

from tests.interfaces.dashboard.test_dashboard import HOSTILE, Browser, dashboard, logged_in


async def send(person: Browser, page: str, **fields: Any) -> httpx.Response:
    """Send the form of scores, with a name."""
    return await person.send("/runs/ticket-50/scores", page, **{"name": "quality", **fields})


async def test_a_person_scores_a_run_and_a_step_and_withdraws() -> None:
    """The page shows every score; a person can only withdraw their own. Hostile text is text."""
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        await app.score("ticket-50", "quality", 0.25, comment=HOSTILE, by="ben")
        page = await ann.page("/runs/ticket-50")
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert(1)" not in page
        assert page.count('value="unscore"') == 0
        sent = await ann.send(
            "/runs/ticket-50/scores", page, do="score", name="quality", value="true", comment="ok", step="1"
        )
        assert (sent.status_code, sent.headers["location"]) == (303, "/ui/runs/ticket-50?step=1#scores")
        page = await ann.page("/runs/ticket-50?step=1")
        assert page.count('value="unscore"') == 1
        [mine] = await app.scores(who="ann")
        assert (mine.value, mine.comment, mine.step, mine.via) == (True, "ok", 1, "ui")
        assert (await send(ann, page, do="unscore", step="1")).status_code == 303
        assert [each.by for each in await app.scores()] == ["ben"]


async def test_a_wrong_score_is_a_page_with_the_reason() -> None:
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        page = await ann.page("/runs/ticket-50")
        for wrong in ({"do": "score"}, {"do": "score", "value": "[1]"}, {"do": "delete"}, {"do": "score", "step": "x"}):
            assert (await send(ann, page, **wrong)).status_code == 422, wrong
        assert (await ann.send("/runs/none/scores", page, do="score", name="quality", value="1")).status_code == 404
        assert await app.scores() == []
        async with logged_in(app, address, "auditor") as eve:
            page = await eve.page("/runs/ticket-50")
            assert 'class="score-form"' not in page
            assert (await send(eve, page, do="score", value="1")).status_code == 403
