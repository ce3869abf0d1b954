"""`python -m limpet.demo`, the same as `limpet demo`."""

import argparse
import sys
from pathlib import Path

from limpet.demo.folder import DEFAULT
from limpet.demo.story import DemoOptions, play
from limpet.errors import LimpetError

__all__: list[str] = []

if __name__ == "__main__":
    asked = argparse.ArgumentParser(prog="limpet demo", description="Watch an agent survive a kill at step 6 of 9.")
    asked.add_argument("folder", nargs="?", type=Path, default=DEFAULT, help="where its store is kept")
    asked.add_argument("--slow", action="store_true", help="for talks")
    asked.add_argument("--yes", action="store_true", help="approve automatically instead of prompting")
    asked.add_argument("--pause", help="how long each line is there before the next one comes, such as 50ms")
    try:
        sys.exit(play(DemoOptions(**vars(asked.parse_args()))))
    except LimpetError as error:
        sys.exit(f"error: {error}")
