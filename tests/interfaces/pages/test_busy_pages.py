"""The pages of one busy run, held against stored ones, in every interface.

After a wanted change, write them again with `python -m tests.interfaces.pages.test_busy_pages`, and read them as a
person on call would.
"""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.interfaces.cli.run_cli import limpet
from tests.interfaces.http_and_mcp.clients import call_json, over_pipes, serving
from tests.interfaces.pages.busy_run import busy_store

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
CHILDREN = ("o-1.busy_billing-1", "o-1.busy_writer-2")
STEPS = range(1, 7)
# Each stored page, and the commands that print it.
PAGES: dict[str, list[list[str]]] = {
    "show": [["show", run] for run in ("o-1", *CHILDREN)],
    "state": [*(["state", "o-1", "--before", str(step)] for step in STEPS), ["state", "o-1"]],
    "diff": [["diff", "o-1", str(step)] for step in STEPS],
    "children": [[name, run] for run in CHILDREN for name in ("diff", "state")],
    "lists": [["runs"], ["steps", "o-1"], ["errors"], ["decisions"], ["calls", "busy_charge"], ["inbox"]],
    "compare": [["compare", *CHILDREN]],
}


def printed(url: str, page: str) -> str:
    """Return a page as the command line prints it, without what differs from day to day or machine to machine."""
    said = []
    for words in PAGES[page]:
        done = limpet(*words, "--url", url)
        assert done.exit_code == 0, done.stderr
        said.append(f"$ limpet {' '.join(words)}\n{done.stdout}")
    text = re.sub(r"\b\d{4}d\b", "1098d", "\n".join(said)).replace(str(ROOT), "ROOT")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return a store with the busy run."""
    with TemporaryDirectory() as folder:
        asyncio.run(busy_store(Path(folder) / "busy.db"))
        yield f"sqlite:///{folder}/busy.db"


@pytest.mark.parametrize("page", PAGES)
def test_the_command_line_prints_the_stored_page(url: str, page: str) -> None:
    assert printed(url, page) == (FOLDER / f"{page}.txt").read_text(encoding="utf-8")


async def test_http_and_mcp_return_the_text_of_the_command_line(url: str) -> None:
    """Words are made from the data once, for all interfaces."""
    with serving(url) as server:
        async with over_pipes(url) as mcp:
            for name, given in asked():
                words = [str(each) for each in given.values()]
                page = (await asyncio.to_thread(limpet, name, *words, "--url", url)).stdout
                answer = server.get(f"/v1{path(name, given)}").json()
                assert f"{answer['text']}\n" == page
                assert (await call_json(mcp, name, **given))["text"] == answer["text"]


def asked() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield queries whose result has a text."""
    for step in STEPS:
        yield "diff", {"run": "o-1", "step": step}
    for run in ("o-1", *CHILDREN):
        yield "state", {"run": run}
    yield "compare", {"one": CHILDREN[0], "other": CHILDREN[1]}


def path(name: str, given: dict[str, Any]) -> str:
    """Return the path of a query."""
    if name == "compare":
        return f"/runs/{given['one']}/compare/{given['other']}"
    return f"/runs/{given['run']}/{name}" + (f"?step={given['step']}" if "step" in given else "")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(busy_store(Path(folder) / "busy.db"))
        for page in PAGES:
            (FOLDER / f"{page}.txt").write_text(printed(f"sqlite:///{folder}/busy.db", page), encoding="utf-8")
    sys.exit()
