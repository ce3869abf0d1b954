"""Generators make clients of the API's description, and the clients work: a start, a poll, an answer, a fork, an error.

They need environments of their own, which `make clients` creates.
"""

import os
import subprocess
from pathlib import Path
from shutil import copy

import httpx
import pytest

from tests.servers.preloaded import ROOT
from tests.servers.served_store import Served, served_store

HERE, TOOLS = Path(__file__).parent, ROOT / ".tools"
PYTHON, NODE = TOOLS / "clients" / "bin", TOOLS / "typescript" / "node_modules"
STRICT = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")


@pytest.fixture(autouse=True)
def tools(full: bool) -> None:
    """Skip the tests without the generators, and in `make test`."""
    if not full or not PYTHON.exists() or not NODE.exists():
        pytest.skip("run `make clients`, which installs the generators")


def run(*words: str | Path, cwd: Path, **env: str) -> str:
    """Run a program, which must succeed, and return its output."""
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def described(server: Served, folder: Path) -> Path:
    """Store the description of a served API."""
    answer = httpx.get(f"{server.url}/openapi.json", headers={"authorization": f"Bearer {server.valid}"})
    path = folder / "openapi.json"
    path.write_bytes(answer.content)
    return path


def test_the_generated_python_client_works(tmp_path: Path) -> None:
    """openapi-python-client leaves nothing out."""
    with served_store(tmp_path) as server:
        path, made = described(server, tmp_path), tmp_path / "client"
        words = ("generate", "--path", path, "--output-path", made, "--config", HERE / "python.yaml")
        told = run(PYTHON / "openapi-python-client", *words, cwd=tmp_path)
        assert "arning" not in told, told
        run(PYTHON / "python", HERE / "scenario.py", server.url, server.valid, cwd=tmp_path, PYTHONPATH=str(made))


def test_the_generated_typescript_client_works(tmp_path: Path) -> None:
    """The scenario type-checks against the types of openapi-typescript, and openapi-fetch runs it."""
    (tmp_path / "node_modules").symlink_to(NODE)
    for name in ("scenario.ts", "package.json"):
        copy(HERE / name, tmp_path)
    with served_store(tmp_path) as server:
        path = described(server, tmp_path)
        run(NODE / ".bin" / "openapi-typescript", path, "-o", "api.d.ts", cwd=tmp_path)
        run(NODE / ".bin" / "tsc", *STRICT, "scenario.ts", cwd=tmp_path)
        run("node", "scenario.js", server.url, server.valid, cwd=tmp_path)
