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

from tests.servers.preloaded import ROOT
from tests.servers.served_store import NARROW, VALID, served_store

SCHEMATHESIS = ROOT / ".tools" / "fuzz" / "bin" / "schemathesis"
TOKENS = {
    "valid": VALID,
    "narrow": NARROW,
    "expired": "expired-token-of-a-person",
    "wrong": "wrong-token-of-nothing",
}
CONFIG = Path(__file__).with_name("schemathesis.toml")
# Requests in all, with --full; a fourth of them with each token.
MANY = 20_000
# A command with `Prefer: wait=60` waits that long.
LONGEST = "70"

pytestmark = pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="run `make fuzz`, which installs schemathesis")


def fuzz(folder: Path, token: str, *options: str) -> int:
    """Fuzz a new server with a token, and return the number of requests."""
    with served_store(folder) as url:
        described = folder / "openapi.json"
        described.write_bytes(httpx.get(f"{url}/openapi.json", headers={"authorization": f"Bearer {VALID}"}).content)
        words: list[str | Path] = [SCHEMATHESIS, "--config-file", CONFIG, "run", described, "--url", url, *options]
        words += ["--checks", "all"]
        words += ["--header", f"Authorization: Bearer {token}", "--request-timeout", LONGEST, "--no-color"]
        words += ["--max-response-time", LONGEST, "--generation-database", "none"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    found = re.search(r"(\d+) generated", done.stdout)
    assert found is not None, done.stdout[-5_000:]
    return int(found[1])


@pytest.mark.parametrize("token", TOKENS)
def test_no_request_breaks_the_api(tmp_path: Path, full: bool, token: str) -> None:
    """With a valid token, one of a viewer, an expired one, and one that never existed. A slice: only the first."""
    if full:
        assert fuzz(tmp_path, TOKENS[token], "--max-examples", "60", "--seed", "24") >= MANY / len(TOKENS)
    elif token == "valid":
        phases = ("--phases", "examples,fuzzing", "--max-examples", "2", "--seed", "24")
        assert fuzz(tmp_path, TOKENS[token], *phases) >= 200
    else:
        pytest.skip("only with --full: `make fuzz`")
