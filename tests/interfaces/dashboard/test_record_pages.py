"""The pages of shared records: a list, a record at any version, its history, and who may see them."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import limpet
from limpet.web.ui import shared_record_pages
from tests.interfaces.dashboard.test_dashboard import HOSTILE, Browser, logged_in
from tests.interfaces.remote.remote_servers import served_app

ESCAPED = html.escape(HOSTILE).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


@limpet.agent(name="record_pages_planner")
async def planner(run: limpet.Run, items: list[str]) -> None:
    """Write a plan and a fact."""
    board = await run.record("board")
    await run.patch_record(board, plan=items, facts={"customer": "ann"}, source="the order")


@asynccontextmanager
async def boards(*roles: Any) -> AsyncIterator[tuple[limpet.App, Browser]]:
    """Yield an app with a record of five versions, and a browser of ann."""
    async with served_app(agents=[planner]) as (app, address), logged_in(app, address, *roles) as ann:
        await app.run(planner, ["cup", "plate"], id="plan-1")
        await app.patch_record("board", read=2, revise={"cup": "done"}, by="ben")
        await app.patch_record(
            "board", read=3, facts={"customer": "bob"}, questions={"gift": "Is it a gift?"}, by="eve"
        )
        await app.patch_record("board", read=4, answered={"gift": "No."}, data={"box": {"cm": 30}}, by="ben")
        yield app, ann


async def test_a_record_is_listed_and_shown_with_its_history() -> None:
    """All four parts, who wrote each fact, and each change, the newest first, with the command that shows the same."""
    async with boards() as (_, ann):
        listed = await ann.page("/records")
        assert '<a href="/ui/records/board" data-open>board</a></td><td class="num">5</td>' in listed
        assert '<a href="/ui/records" aria-current="page">Records</a>' in listed
        assert "limpet records" in listed
        page = await ann.page("/records/board")
        assert "Version 5, the newest" in page
        assert "cup<small>done</small>" in page
        assert "Is it a gift?" in page
        assert "asked by eve" in page
        assert "answered by ben" in page
        assert "<b>box</b>" in page
        assert "<code>&#34;bob&#34;</code>" in page
        assert "<code>limpet record board</code>" in page
        assert "<code>limpet record-changes board</code>" in page
        history = page.partition('id="history"')[2]
        assert [int(each) for each in re.findall(r">Version (\d)<", history)] == [5, 4, 3, 2]
        for line in (
            '<li class="del">plan: cup, pending</li><li class="add">plan: cup, done</li>',
            '<li class="del">fact customer: &#34;ann&#34;</li><li class="add">fact customer: &#34;bob&#34;</li>',
            '<li class="add">question gift: Is it a gift? Answer: No.</li>',
        ):
            assert line in history
        assert "plan: plate" not in history.partition(">Version 2<")[0], "an item that did not change"


async def test_a_record_is_shown_at_each_of_its_versions() -> None:
    """With links to the neighbours, and to the run and the step that wrote a fact; the step leads back."""
    async with boards() as (app, ann):
        page = await ann.page("/records/board?version=2")
        assert "Version 2 of 5" in page
        for version in (1, 3):
            assert f'href="/ui/records/board?version={version}"' in page
        assert '<a href="/ui/runs/plan-1?step=2">plan-1, step 2</a>' in page
        assert "the order" in page
        assert "<code>&#34;ann&#34;</code>" in page.partition('id="history"')[0]
        assert "gift" not in page.partition('id="history"')[0]
        assert "<code>limpet record board --version 2</code>" in page
        assert "Version 1 of 5" in await ann.page("/records/board?version=1")
        patched = await ann.page("/runs/plan-1?step=2")
        assert '<dt>Record</dt><dd><a href="/ui/records/board">board</a></dd>' in patched  # it did not exist
        for path, status in (("?version=6", 404), ("?version=0", 422), ("?version=x", 422), ("?cursor=x", 422)):
            await ann.page(f"/records/board{path}", status)
        await app.run(planner, ["cup", "plate", "bowl"], id="plan-2")
        linked = '<a href="/ui/records/board">board</a>, read at <a href="/ui/records/board?version=5">version 5</a>'
        for step in (1, 2):
            assert linked in await ann.page(f"/runs/plan-2?step={step}")


async def test_long_lists_and_long_histories_have_pages(monkeypatch: Any) -> None:
    """No version is left out between two pages of a history; a part with many items is cut until all are asked for."""
    monkeypatch.setattr(shared_record_pages, "ON_A_PAGE", 2)
    monkeypatch.setattr(shared_record_pages, "VERSIONS", 3)
    monkeypatch.setattr(shared_record_pages, "MOST", 4)
    async with served_app() as (app, address), logged_in(app, address) as ann:
        for name in ("a", "b", "c"):
            await app.patch_record(name, read=0, facts={"x": 1})
        listed = await ann.page("/records")
        [older] = re.findall(r'href="/ui(/records\?cursor=\d+)"', listed)
        assert re.findall(r"data-open>(\w)<", listed + await ann.page(older)) == ["c", "b", "a"]
        for read in range(2, 9):
            await app.patch_record("a", read=read, facts={f"k{read}": read})
        seen: list[int] = []
        path: str | None = "/records/a"
        while path is not None:
            page = await ann.page(path)
            seen += [int(each) for each in re.findall(r">Version (\d+)<", page.partition('id="history"')[2])]
            [path] = re.findall(r'href="/ui(/records/a\?cursor=\d+)#history">Older', page) or [None]
        assert seen == [9, 8, 7, 6, 5, 4, 3, 2]
        assert 'cursor=6#history"><svg class="i" aria-hidden="true"><use href="#i-prev"/></svg>Newer' in page
        assert "<strong>Version 3</strong>" in (await ann.page("/records/a?version=3")).partition('id="history"')[2]
        cut = await ann.page("/records/a")
        assert "4 shown" in cut
        assert cut.count('id="fact-') == 4
        whole = await ann.page("/records/a?whole=1")
        assert whole.count('id="fact-') == 8


async def test_large_patches_are_all_in_the_history(monkeypatch: Any) -> None:
    """Where the operation returns them in several pieces. A long value is cut where it begins to differ."""
    monkeypatch.setattr("limpet.service.page.MAX_PAGE_BYTES", 5_000)
    async with served_app() as (app, address), logged_in(app, address) as ann:
        for version in range(1, 9):
            text = f"{'x' * 800}{version}"
            await app.patch_record("large", read=version if version > 1 else 0, facts={"x": text})
        assert (await app.record_changes("large")).next is not None
        page = await ann.page("/records/large")
        history = page.partition('id="history"')[2]
        assert [int(each) for each in re.findall(r">Version (\d+)<", history)] == [9, 8, 7, 6, 5, 4, 3, 2]
        assert f'<li class="add">fact x: …{"x" * 60}8&#34;</li>' in history
        assert "x" * 400 not in history


async def test_roles_decide_who_sees_records() -> None:
    """A viewer gets the list without links; a person who only decides gets neither; a writer has no links to runs."""
    async with boards("writer") as (app, ann):
        page = await ann.page("/records/board?version=2")
        assert "plan-1, step 2" in page
        assert "/ui/runs/plan-1" not in page
        address = str(ann.client.base_url)
        async with logged_in(app, address, "viewer") as ben:
            listed = await ben.page("/records")
            assert ("board" in listed, "/records/board" in listed) == (True, False)
            await ben.page("/records/board", 403)
        async with logged_in(app, address, "auditor") as eve:
            assert "/ui/runs/plan-1?step=2" in await eve.page("/records/board?version=2")
            shown = await eve.page("/records/board")
            assert 'id="change"' not in shown
            refused = await eve.send("/records/board", shown, read="5", do="close", question="gift")
            assert refused.status_code == 403, "an auditor only reads"
        async with logged_in(app, address, "approver") as mia:
            for path in ("/records", "/records/board"):
                await mia.page(path, 403)
            assert ">Records</a>" not in await mia.page("/inbox")
        sent = await ann.send("/records/board", page, read="5", do="close", question="gift")
        assert sent.status_code == 303, "a writer patches"


async def test_forms_patch_each_part_of_a_record() -> None:
    """From the version that the page shows, in the name of the person, without scripts. What is no JSON is a text."""
    async with boards() as (app, ann):
        for version, fields in enumerate(
            (
                {"do": "set", "part": "fact", "key": "customer", "value": "mia", "source": "the phone"},
                {"do": "set", "part": "data", "key": "box", "value": '{"cm": 40}'},
                {"do": "revise", "item": "1", "status": "doing"},
                {"do": "replan", "plan": " cup\r\n\r\nbowl\r\nplate"},
                {"do": "ask", "question": "when", "text": "By when?"},
                {"do": "answer", "question": "when", "text": "Friday"},
                {"do": "close", "question": "gift"},
                {"do": "remove", "part": "data", "key": "box"},
            ),
            start=5,
        ):
            page = await ann.page("/records/board")
            assert f'name="read" value="{version}"' in page
            sent = await ann.send("/records/board", page, read=str(version), **fields)
            assert (sent.status_code, sent.headers.get("location")) == (303, "/ui/records/board"), sent.text
        board = await app.record("board")
        assert board.version == 13
        [fact] = board.known_facts
        assert (fact.key, fact.value, fact.source, fact.by) == ("customer", "mia", "the phone", "ann")
        assert (board.plan, board.plan_status) == (("cup", "bowl", "plate"), ("done", "pending", "doing"))
        assert [(each.id, each.answer, each.answered_by) for each in board.questions] == [("when", "Friday", "ann")]
        assert board.data == {}


async def test_a_conflict_shows_the_newest_version_and_what_was_typed() -> None:
    """Nothing is overwritten: the person sees what others changed, and decides again from there."""
    async with boards() as (app, ann):
        page = await ann.page("/records/board")
        await app.patch_record("board", read=5, facts={"customer": "eve"}, by="eve")
        fields = {"do": "set", "part": "fact", "key": "customer", "value": HOSTILE}
        sent = await ann.send("/records/board", page, read="5", **fields)
        assert sent.status_code == 409
        assert "Record 'board' has changed since version 5: fact customer in version 6 by eve." in html.unescape(
            sent.text
        )
        assert "Your change was not made" in sent.text
        assert ESCAPED in sent.text
        assert "<code>&#34;eve&#34;</code>" in sent.text
        assert 'name="read" value="6"' in sent.text
        again = await ann.send("/records/board", sent.text, read="6", **fields)
        assert again.status_code == 303
        assert [each.value for each in (await app.record("board")).known_facts] == [HOSTILE]


async def test_a_plan_is_edited_by_what_its_page_shows() -> None:
    """An item that is redacted, or not on one line, stays as it is, with its status."""
    secret = "use sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ now"
    items = ["cup", secret, " a  b", "two\nlines"]
    async with boards() as (app, ann):
        await app.patch_record("board", read=5, plan=items)
        await app.patch_record("board", read=6, revise={secret: "doing", "two\nlines": "done"})
        page = await ann.page("/records/board")
        assert secret not in page
        [shown] = re.findall(r'<textarea[^>]* name="plan"[^>]*>([^<]*)</textarea>', page)
        assert shown.splitlines()[2:] == ["a b", "two lines"]
        edited = f"saucer\r\n{html.unescape(shown)}"
        sent = await ann.send("/records/board", page, read="7", do="replan", plan=edited)
        assert sent.status_code == 303
        board = await app.record("board")
        assert board.plan == ("saucer", *items)
        assert board.plan_status == ("pending", "done", "doing", "pending", "done")
        for place in (2, 3):
            page = await ann.page("/records/board")
            sent = await ann.send(
                "/records/board", page, read=str(6 + place), do="revise", item=str(place), status="skipped"
            )
            assert sent.status_code == 303
        assert (await app.record("board")).plan_status == ("pending", "done", "skipped", "skipped", "done")


async def test_an_answer_is_never_attached_to_another_question(monkeypatch: Any) -> None:
    """If its question is gone, the answer is shown above the forms, and no form has it."""
    monkeypatch.setattr(shared_record_pages, "MOST", 1)
    async with boards() as (app, ann):
        await app.patch_record("board", read=5, questions={"q1": "By when?", "q2": "For whom?"})
        page = await ann.page("/records/board")
        await app.patch_record("board", read=6, close=["q1"], plan=["plate", "cup"], by="eve")
        fields = {"do": "answer", "question": "q1", "text": "my long answer"}
        sent = await ann.send("/records/board", page, read="6", **fields)
        assert sent.status_code == 409
        assert '<dt>text</dt><dd class="said wrap">my long answer</dd>' in sent.text
        assert "my long answer</textarea>" not in sent.text
        typed = {"do": "replan", "plan": "bowl"}
        sent = await ann.send("/records/board", page, read="6", **typed)
        assert (sent.status_code, "bowl</textarea>" in sent.text) == (409, True), (
            "all but one item is cut from the page"
        )
        sent = await ann.send("/records/board", page, read="6", do="revise", item="1", status="done")
        assert (sent.status_code, '<dd class="said wrap">plate</dd>' in sent.text) == (409, True)


async def test_a_repeated_form_patches_once_and_a_wrong_one_says_why() -> None:
    """The id of a form is that of its command. An older version has no forms."""
    async with boards() as (app, ann):
        page = await ann.page("/records/board")
        assert 'id="change"' not in await ann.page("/records/board?version=4")
        id = "form-1"
        for _ in range(2):
            sent = await ann.send(
                "/records/board", page, read="5", command_id=id, do="ask", question="when", text="By when?"
            )
            assert sent.status_code == 303
        assert (await app.record("board")).version == 6
        for fields, reason in (
            ({"do": "drop"}, "is none of set, remove"),
            ({"do": "set", "key": " "}, "Invalid key: is empty"),
            ({"do": "revise", "item": "1", "status": "lost"}, "lost"),
            ({"do": "revise", "item": "2", "status": "done"}, "Invalid item: '2' is no place in the plan"),
            ({"do": "replan", "plan": "saucer\nsaucer"}, "saucer\nsaucer</textarea>"),
            ({"do": "remove", "part": "fact", "key": "none"}, "none"),
            ({"do": "set", "key": "x", "value": "1", "read": "x"}, "read"),
        ):
            sent = await ann.send("/records/board", page, **{"read": "6", **fields})
            assert (sent.status_code, reason in html.unescape(sent.text)) == (422, True), (fields, sent.text)
        assert (await app.record("board")).version == 6


async def test_a_form_creates_a_record() -> None:
    """With its first fact; a name that exists is patched if the fact is new, and reported otherwise."""
    async with served_app() as (app, address), logged_in(app, address) as ann:
        page = await ann.page("/records")
        sent = await ann.send("/records", page, do="set", record="board", key="owner", value="ann")
        assert (sent.status_code, sent.headers["location"]) == (303, "/ui/records/board")
        sent = await ann.send("/records", page, do="set", record="board", key="owner", value="ben")
        assert (sent.status_code, "has changed since version 0" in sent.text) == (409, True)
        assert 'name="value" value="ben"' in sent.text
        assert (await ann.send("/records", page, do="set", record=" ", key="x")).status_code == 422
        assert [each.value for each in (await app.record("board")).known_facts] == ["ann"]


async def test_without_records_the_page_says_how_one_is_made() -> None:
    """An unknown record says it, too, and a name that cannot be one is refused."""
    async with served_app() as (app, address), logged_in(app, address) as ann:
        listed = await ann.page("/records")
        assert "No records yet" in listed
        assert "limpet patch-record board --read 0" in listed
        assert "limpet patch-record none --read 0" in await ann.page("/records/none", 404)
        for name in ("%3Cscript%3Ealert(1)%3C%2Fscript%3E", "-x", "a b"):
            page = await ann.client.get(f"/ui/records/{name}")
            assert page.status_code in (404, 422)
            assert "<script>" not in page.text
        assert await app.records() == []


async def test_texts_of_records_are_text() -> None:
    """In keys, values, sources, questions, answers, items and names of writers; a value that looks like a blob, too."""
    async with served_app() as (app, address), logged_in(app, address) as ann:
        await app.patch_record(
            "hostile",
            read=0,
            facts={
                HOSTILE: HOSTILE,
                "blob": {"blob": HOSTILE, "bytes": HOSTILE},
                "null": None,
                "items": {"items": [1]},
            },
            source=HOSTILE,
            plan=[HOSTILE, "items"],
            questions={HOSTILE: HOSTILE},
            data={HOSTILE: [HOSTILE] * 20, "items": 1},
            by=HOSTILE,
        )
        await app.patch_record("hostile", read=2, answered={HOSTILE: HOSTILE}, facts={"d": 1}, derived_from=[HOSTILE])
        for path in ("/records/hostile", "/records/hostile?version=2", "/records"):
            page = await ann.page(path)
            assert re.findall("<script[^>]*>", page) == ['<script type="module" src="/ui/static/main.js">']
            assert "<img" not in page
            assert "style=" not in page
            assert page.count(ESCAPED) > 6 or path == "/records"
            assert '<li class="same">fact null: null</li>' in page or path == "/records"


async def test_a_patch_is_told_to_open_pages() -> None:
    """By the one stream of the browser, which has changes of runs, too."""
    async with boards() as (app, ann), asyncio.timeout(30), ann.client.stream("GET", "/ui/stream") as stream:
        lines = stream.aiter_lines()
        assert (await anext(lines)).startswith("id: ")
        await app.patch_record("board", read=5, facts={"x": HOSTILE})
        told = await _next_with(lines, '"record":"board"')
        assert ('"version":6' in told, "script" in told) == (True, False)
        await app.start(planner, ["cup"], id="plan-3")
        assert '"status":' in await _next_with(lines, '"id":"plan-3"')


async def _next_with(lines: AsyncIterator[str], text: str) -> str:
    """Return the data of the next message that has a text."""
    async for line in lines:
        if line.startswith("data: ") and text in line:
            return line
    raise AssertionError("the stream has ended")
