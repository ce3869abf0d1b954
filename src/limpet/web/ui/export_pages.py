"""A run as a file, for people who may see everything of it: an export has its values as they are stored."""

from pathlib import Path
from tempfile import mkdtemp

from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from limpet.service.access import check_permission, check_right
from limpet.web.ui.artifact_pages import POLICY, file_name
from limpet.web.ui.page_context import PageContext

__all__ = ["export_page"]


async def export_page(page: PageContext) -> Response:
    """Send a run as a file that `limpet load` imports. The audit log records it before it is sent."""
    [run] = page.ids
    who = page.session.who
    check_permission(who, "export", ["payloads"])
    check_right(who, "export", "values as they are", "raw")
    folder = Path(mkdtemp(prefix="limpet-"))
    path = folder / file_name(run, "zip")
    try:
        await page.app.export(run, path, by=who)
    except BaseException:
        _drop(folder)
        raise
    headers = {"content-security-policy": POLICY}
    return FileResponse(path, filename=path.name, headers=headers, background=BackgroundTask(_drop, folder))


def _drop(folder: Path) -> None:
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
