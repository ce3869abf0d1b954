"""Draw a picture of a real run of the demo: `python -m limpet.demo.picture docs/demo.svg`, or `make picture`.

The demo runs in its own folder, and its output is drawn. The file contains nothing about this machine, and loads
nothing when it is shown.
"""

import io
import os
import re
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from rich.console import Console

from limpet.demo.story import DemoOptions, play

__all__ = ["draw"]

COLUMNS = 80


def draw(path: Path) -> int:
    """Run the demo, write its picture, and return the demo's exit code."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False, force_terminal=False)
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ["PATH"] = here  # so that the output says `limpet` instead of a path
    for name in ("LIMPET_URL", "LIMPET_APP"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        code = play(DemoOptions(yes=True), console)
    if code == 0:
        path.write_text(_svg(console), encoding="utf-8")
    return code


def _svg(console: Console) -> str:
    """Remove remote fonts and the name of the drawing tool."""
    drawn = console.export_svg(title="limpet demo", unique_id="limpet")
    for foreign in (r"@font-face \{.*?\}", r"<!--.*?-->"):
        drawn = re.sub(foreign, "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code", "ui-monospace, Menlo, Consolas")
    return "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    sys.exit(draw(Path(sys.argv[1]).absolute()))
