"""Schemathesis sends requests made from the API's own description: none gives a 5xx, breaks its schema, or gets a reply
that is not documented.

It needs an environment of its own, which `make fuzz` and `make test` create. With --full, it sends 20,000 requests.
"""

import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.servers import lack
from tests.servers.preloaded import ROOT
from tests.servers.served_store import OTHER, served_store

SCHEMATHESIS = ROOT / ".tools" / "fuzz" / "bin" / "schemathesis"
TOKENS = ("valid", "narrow", "expired", "wrong")
CONFIG = Path(__file__).with_name("schemathesis.toml")
# Requests in all, with --full; a fourth of them with each token.
MANY = 20_000
# A command with `Prefer: wait=60` waits that long.
LONGEST = "70"

# The module with a check of our own.
AROUND = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "SCHEMATHESIS_HOOKS": "hooks", "OTHER_TENANT": OTHER}


def fuzz(folder: Path, token: str, *options: str) -> int:
    """Fuzz a new server with a token, and return the number of requests."""
    with served_store(folder) as server:
        described, known = folder / "openapi.json", {"authorization": f"Bearer {server.valid}"}
        described.write_bytes(httpx.get(f"{server.url}/openapi.json", headers=known).content)
        words: list[str | Path] = [SCHEMATHESIS, "--config-file", CONFIG, "run", described, "--url", server.url]
        words += options
        words += ["--checks", "all", "--exclude-path-regex", "^/v1/streams/"]  # a stream does not end
        words += [
            "--header",
            f"Authorization: Bearer {server.tokens[token]}",
            "--request-timeout",
            LONGEST,
            "--no-color",
        ]
        words += ["--max-response-time", LONGEST, "--generation-database", "none"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=AROUND, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    found = re.search(r"(\d+) generated", done.stdout)
    assert found is not None, done.stdout[-5_000:]
    return int(found[1])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose all tokens with --full, otherwise the valid one."""
    if "token" in metafunc.fixturenames:
        metafunc.parametrize("token", TOKENS if metafunc.config.getoption("--full") else TOKENS[:1])


def test_no_request_breaks_the_api(tmp_path: Path, full: bool, token: str) -> None:
    """With a valid token, one of a viewer, an expired one and a wrong one. Nothing of another tenant is shown."""
    if not SCHEMATHESIS.exists():
        lack("schemathesis is not installed: make fuzz")
    if full:
        assert fuzz(tmp_path, token, "--max-examples", "60", "--seed", "24") >= MANY / len(TOKENS)
    else:
        some = ("--include-path-regex", r"^/v1/(runs|inbox|tokens|requests/\{request\}/answer)$")
        assert fuzz(tmp_path, token, "--phases", "fuzzing", "--max-examples", "2", "--seed", "24", *some) >= 10
