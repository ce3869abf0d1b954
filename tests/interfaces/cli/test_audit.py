"""`limpet audit`: list the audit log, export it, and check the export."""

import json
from pathlib import Path

import pytest

from tests.interfaces.cli.run_cli import limpet, limpet_json


@pytest.fixture
def token(url: str) -> str:
    """The id of a token that root created, in a store that has its audit event."""
    made = limpet_json("token", "create", "eve", "--role", "viewer", "--by", "root")
    return str(made["info"]["id"])


def test_changes_of_tokens_are_listed(token: str) -> None:
    """Newest first, and by filter."""
    limpet_json("token", "revoke", token, "--by", "ann")
    found = limpet_json("audit")
    assert [(each["who"], each["action"], each["subject"], each["door"]) for each in found] == [
        ("ann", "token.revoked", token, "cli"),
        ("root", "token.created", token, "cli"),
    ]
    assert limpet_json("audit", "--who", "root", "--since", "1h") == found[1:]
    assert limpet_json("audit", "--action", "login") == []
    assert limpet_json("audit", "--outcome", "done", "--limit", "2") == found
    shown = limpet("audit", "--limit", "1")
    assert ("token.revoked" in shown.stdout, "more: --cursor " in shown.stdout) == (True, True)


def test_an_export_is_checked_without_the_store(token: str, tmp_path: Path) -> None:
    """A changed file is found."""
    path = tmp_path / "audit.jsonl"
    assert limpet_json("audit", "--export", str(path))["events"] == 2
    assert limpet("verify", str(path), LIMPET_URL="sqlite:///none.db").stdout == "1 audit log with 2 events verified\n"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["audit.started", "audit.recorded"]
    path.write_text(path.read_text().replace("root", "boot"))
    done = limpet("verify", str(path))
    assert (done.exit_code, "[tampered]" in done.stderr) == (1, True)
    assert limpet("audit", "--export", str(path), "--who", "ann").exit_code == 2


def test_verify_counts_audit_logs(token: str) -> None:
    """They are logs like those of runs."""
    assert limpet_json("verify")["audits"] == 1
    assert " and 1 audit log with " in limpet("verify").stdout


def test_an_audit_log_is_not_a_run(token: str) -> None:
    [event] = limpet_json("audit")
    done = limpet("show", event["log"])
    assert (done.exit_code, "[not_found]" in done.stderr) == (1, True)


def test_a_store_without_audit_events_has_an_empty_list(url: str) -> None:
    assert limpet("audit").stdout == "No audit events.\n"
