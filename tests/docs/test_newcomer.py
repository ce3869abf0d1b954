"""The commands of the README work as written, in an empty environment."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_repository import ROOT, blocks

BIN = Path(sys.executable).parent
REACH = ("PIP_", "UV_", "SSL_", "REQUESTS_", "CURL_", "http", "HTTP", "ALL_PROXY", "no_proxy", "NO_PROXY")
"""Environment variables that this machine needs to download packages."""


def typed(script: str, cwd: Path, **env: str) -> str:
    """Run a script in a shell with an empty environment, and return its output. The first failing line ends it."""
    bare = {"PATH": f"{BIN}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(cwd), "LANG": "C.UTF-8", **env}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=cwd, env=bare, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; a file with several hard links counts once."""
    found = [path.lstat() for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    return sum({(each.st_dev, each.st_ino): each.st_size for each in found}.values())


def test_the_readme_works_in_a_clone(tmp_path: Path, full: bool) -> None:
    """All commands of the README except `make test` run in a clone, on a machine with Python and make. With --full.

    They install the core alone, in less than 100 MB. `make test` would add the rest to the same environment.
    """
    if not full:
        pytest.skip("slow; --full")
    subprocess.run(["git", "clone", "--quiet", str(ROOT), tmp_path / "limpet"], check=True)
    clone = tmp_path / "limpet"
    (clone / "support.py").write_text(blocks(ROOT / "README.md", "python")[0], encoding="utf-8")
    lines = [line for block in blocks(ROOT / "README.md", "bash") for line in block.splitlines()]
    script = "\n".join(line for line in lines if not line.startswith("make test"))
    python = str(Path(shutil.which("python3") or sys.executable).parent)
    reached = {name: value for name, value in os.environ.items() if name.startswith(REACH) or name == "HOME"}
    reached["PATH"] = os.pathsep.join([python, "/usr/bin", "/bin"])
    output = typed(script, clone, **reached)
    assert "step 6 of 9" in output  # the demo
    assert "refund o-1: 4900 cents, key ticket-42:step_2:refund:" in output
    assert "R-7" in output
    assert "completed" in output
    assert "next: limpet dev app.py" in output.splitlines()
    megabytes = size_of(clone / ".venv") / 1e6
    print(f"the environment of `make demo` has {megabytes:.0f} MB")
    assert megabytes < 100
    assert "pip install" not in typed("make -n demo", clone, **reached)
    assert "--group dev" in typed("make -n test", clone, **reached)
