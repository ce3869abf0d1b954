"""A picture of the demo as it really went: `python -m limpet.demo.picture docs/demo.svg`, or `make picture`.

The demo is played in a folder of its own, and what it says is drawn. The file names nothing of this machine, and
fetches nothing when it is shown.
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
    """Play the demo, and write its picture; the demo's exit code."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False, force_terminal=False)
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ["PATH"] = here  # so that it says `limpet`, and not where that is here
    for name in ("LIMPET_URL", "LIMPET_APP"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        code = play(DemoOptions(yes=True), console)
    if code == 0:
        path.write_text(_svg(console), encoding="utf-8")
    return code


def _svg(console: Console) -> str:
    """Without fonts from elsewhere, and without a word about who drew it."""
    drawn = console.export_svg(title="limpet demo", unique_id="limpet")
    for foreign in (r"@font-face \{.*?\}", r"<!--.*?-->"):
        drawn = re.sub(foreign, "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code", "ui-monospace, Menlo, Consolas")
    return "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    sys.exit(draw(Path(sys.argv[1]).absolute()))
