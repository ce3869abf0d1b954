"""The program `limpet`: the only thing above the doors."""

import sys
from io import TextIOWrapper
from typing import Any

from limpet.cli import command
from limpet.cli.starting import starters

__all__ = ["main"]


def main() -> None:
    """Run the command line; what a terminal cannot show is shown as a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    starters["demo"] = _demo
    command(prog_name="limpet")


def _demo(**wishes: Any) -> int:
    from limpet.demo.story import Wishes, play  # noqa: PLC0415 - only those who watch it need it

    return play(Wishes(**wishes))


if __name__ == "__main__":
    main()
