"""A small project that runs, for `limpet init`: the files in `project` are what it writes."""

import re
from importlib import resources
from pathlib import Path

from limpet.errors import InTheWay

__all__ = ["begin"]

FILES = {
    "app.py": "app.py.txt",
    "test_app.py": "test_app.py.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}
"""What is written, and what it is called here, where no tool should take it for code of ours."""


def begin(folder: Path) -> list[Path]:
    """Write the project; what it has written. If anything is in the way, nothing is."""
    if folder.exists() and not folder.is_dir():
        raise InTheWay(path=str(folder), reason="it is no folder")
    for name in FILES:
        if (folder / name).exists():
            raise InTheWay(path=str(folder / name), reason="it is there already")
    folder.mkdir(parents=True, exist_ok=True)
    kept = resources.files("limpet.cli") / "project"
    for name, source in FILES.items():
        text = (kept / source).read_text(encoding="utf-8")
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text.replace("{name}", _name(folder)))
    return [folder / name for name in FILES]


def _name(folder: Path) -> str:
    """The folder's, as packages are named."""
    return re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "agents"
