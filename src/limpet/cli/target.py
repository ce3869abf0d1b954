"""The user's code as a command names it: a file, or MODULE:ATTRIBUTE."""

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


def parse_target(given: str) -> Target:
    """Parse a file name, or MODULE:ATTRIBUTE in the current folder, as with `python -m`."""
    if not given.endswith(".py"):
        module, _, attribute = given.partition(":")
        if not module or not attribute:
            reason = "is neither a file, such as app.py, nor MODULE:ATTRIBUTE, such as support:app"
            raise typer.BadParameter(f"{given!r} {reason}")
        return Target(given=given, module=module, attribute=attribute, folder=Path.cwd())
    path = Path(given).absolute()
    if not path.is_file():
        raise typer.BadParameter(f"no file {given}")
    if not path.stem.isidentifier():
        raise typer.BadParameter(f"{path.name} cannot be imported: {path.stem!r} is not a valid module name")
    return Target(given=given, module=path.stem, folder=path.parent)
