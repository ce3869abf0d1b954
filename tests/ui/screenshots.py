"""Takes pictures of the dashboard's pages: `python -m tests.ui.screenshots FOLDER`, or `make screenshots`.

Those that the README and the docs show are taken again for docs/images/dashboard, without scrolling; the folder of the
others is ignored.
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.preloaded import ROOT
from tests.ui.pages import PAGES, SCHEMES, WIDTHS, Demo, demo, logged_in, show

__all__: list[str] = []

SHOWN = {"runs-light-1440": "runs.png", "run-completed-dark-1440": "run-dark.png"}
"""Pictures that pages of the repository show."""
DOCS = ROOT / "docs" / "images" / "dashboard"
HEIGHT = {1440: 720, 360: 780}


async def take(served: Demo, folder: Path) -> None:
    """Take a picture of every page, in every scheme and width."""
    async with logged_in(served) as page:
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            for width in WIDTHS:
                await page.set_viewport_size({"width": width, "height": HEIGHT[width]})
                for name, path in PAGES.items():
                    await show(page, served, path)
                    shown = f"{name}-{scheme}-{width}"
                    target = folder / f"{shown}.png"
                    await page.screenshot(path=target, full_page=True)
                    if shown in SHOWN:
                        await page.screenshot(path=DOCS / SHOWN[shown])


def main(folder: Path) -> None:
    """Take all pictures."""
    for each in (folder, DOCS):
        each.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as store, demo(Path(store)) as served:
        asyncio.run(take(served, folder))
    print(f"{len(PAGES) * len(SCHEMES) * len(WIDTHS)} pictures in {folder}, {len(SHOWN)} of them in {DOCS}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
