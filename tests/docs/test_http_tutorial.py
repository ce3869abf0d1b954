"""The commands of the HTTP tutorial work as written."""

import socket
from pathlib import Path

from tests.docs.test_newcomer import typed
from tests.docs.test_repository import ROOT, blocks
from tests.servers import need

PAGE = ROOT / "docs" / "http-tutorial.md"
# The end of the script ends the processes that it started.
AT_EXIT = "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT\n"


def free_port() -> int:
    """Return a port that no server has."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def test_the_tutorial_starts_polls_and_approves(tmp_path: Path) -> None:
    """A service starts a run, a person approves it, and the service gets the result."""
    for program in ("curl", "jq"):
        need(program)
    [agent] = blocks(PAGE, "python")
    (tmp_path / "refunds.py").write_text(agent, encoding="utf-8")
    script = AT_EXIT + "".join(blocks(PAGE, "bash"))
    output = typed(script.replace("8700", str(free_port())), tmp_path)
    assert "not_permitted\nreceipt of o-42: 4900 cents\n" in output
    assert '"decision":"approved","by":"ann"' in output
