"""Artifacts in a real browser: none executes, and only images are shown."""

from playwright.async_api import Error

from tests.browser.test_chromium import WAITING, chromium
from tests.interfaces.dashboard.test_artifact_pages import ARTIFACTS, SHOWN, kept


async def test_no_artifact_executes() -> None:
    """SVG, HTML and files that are an image and a script: downloads, or pictures without scripts."""
    async with kept(0, "raw") as (ann, paths), chromium() as browser:
        context = await browser.new_context(base_url=str(ann.client.base_url))
        context.set_default_timeout(WAITING)
        [(name, value)] = ann.client.cookies.items()
        await context.add_cookies([{"name": name, "value": value, "domain": "127.0.0.1", "path": "/"}])
        page = await context.new_page()
        said: list[str] = []
        context.on("dialog", lambda dialog: said.append(dialog.message))
        downloaded: list[str] = []
        page.on("download", lambda download: downloaded.append(download.suggested_filename))
        for each in ("svg", "html", "late", "pdf", *SHOWN):
            try:
                await page.goto(f"{paths[each]}?inline=1")
                is_shown = True
            except Error as error:
                assert "Download is starting" in error.message  # noqa: PT017 - a page that is downloaded raises
                is_shown = False
            assert is_shown == (each in SHOWN), each
        assert said == []
        assert len(downloaded) == len([each for each in ("svg", "html", "late", "pdf") if each in ARTIFACTS])
        assert {each.rpartition(".")[2] for each in downloaded} == {"txt", "bin"}
        await context.close()
