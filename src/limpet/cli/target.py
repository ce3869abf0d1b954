"""The user's code as a command names it: a file, or an attribute of a module or file."""

from pathlib import Path

import typer
from msgspec import Struct

__all__ = ["Target", "parse_target"]


class Target(Struct, frozen=True, kw_only=True):
    """The code to load."""

    given: str
    module: str
    attribute: str = ""
    """The app, agent or list of agents; "" for all of a file."""
    folder: Path
    """Where the module is searched first."""
    file: Path | None = None
    """The file, if one was given."""


def parse_target(given: str) -> Target:
    """Parse FILE, FILE:ATTRIBUTE, or MODULE:ATTRIBUTE in the current folder, as with `python -m`."""
    code, _, attribute = (given, "", "") if given.endswith(".py") else given.rpartition(":")
    if code.endswith(".py"):
        path = Path(code).absolute()
        if not path.is_file():
            raise typer.BadParameter(f"no file {code}")
        if not path.stem.isidentifier():
            raise typer.BadParameter(f"{path.name} cannot be imported: {path.stem!r} is not a valid module name")
        folder, module = path.parent, path.stem
        while (folder / "__init__.py").is_file():  # a module of a package, which may import its neighbours
            folder, module = folder.parent, f"{folder.name}.{module}"
        return Target(given=given, module=module, attribute=attribute, folder=folder, file=path)
    if not code or not attribute:
        reason = "is neither a file, such as app.py, nor MODULE:ATTRIBUTE, such as support:app"
        raise typer.BadParameter(f"{given!r} {reason}")
    return Target(given=given, module=code, attribute=attribute, folder=Path.cwd())
