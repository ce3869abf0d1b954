"""`limpet token`: create, list and revoke access tokens."""

import json

from tests.interfaces.cli.run_cli import limpet, limpet_json

CREATE = ("token", "create", "ann", "--role", "operator", "--role", "approver", "--group", "finance")


def test_a_token_is_printed_once(url: str) -> None:
    """Alone on stdout, for scripts; the list does not have it."""
    done = limpet(*CREATE, "--expires", "90d", "--tenant", "acme")
    assert done.exit_code == 0, done.stderr
    text = done.stdout.strip()
    assert text.startswith("lp_acme_")
    assert "It is not shown again" in done.stderr
    [found] = limpet_json("token", "list")
    assert (found["name"], found["roles"], found["status"]) == ("ann", ["operator", "approver"], "valid")
    assert found["id"] == text.split("_")[2]
    assert text.split("_")[3] not in json.dumps(found)
    assert "ann" in limpet("token", "list").stdout


def test_json_has_the_whole_token(url: str) -> None:
    made = limpet_json(*CREATE, "--by", "root", "--right", "raw")
    assert made["token"].split("_")[2] == made["info"]["id"]
    assert (made["info"]["created_by"], made["info"]["rights"]) == ("root", ["raw"])


def test_a_token_is_revoked_by_its_id_or_its_text(url: str) -> None:
    """Repeating it changes nothing. An unknown one is an error."""
    first, second = (limpet_json(*CREATE) for _ in range(2))
    assert limpet_json("token", "revoke", first["info"]["id"], "--by", "eve")["revoked_by"] == "eve"
    assert limpet_json("token", "revoke", second["token"])["status"] == "revoked"
    assert limpet_json("token", "revoke", first["info"]["id"], "--by", "bob")["revoked_by"] == "eve"
    done = limpet("token", "revoke", "unknown")
    assert (done.exit_code, "[not_found]" in done.stderr) == (1, True)


def test_bad_input_creates_nothing(url: str) -> None:
    """A role is required, and must be known."""
    for words in (["--role", "root"], [], ["--role", "viewer", "--right", "approve-by-agent"]):
        done = limpet("token", "create", "ann", *words)
        assert done.exit_code == 2, done.stderr
    assert limpet("token", "create", "ann", "--role", "viewer", "--expires", "0s").exit_code == 2
    assert limpet_json("token", "list") == []


def test_the_list_has_pages(url: str) -> None:
    ids = [limpet_json(*CREATE)["info"]["id"] for _ in range(3)]
    done = limpet("token", "list", "--limit", "2")
    [cursor] = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("more: --cursor ")]
    [last] = limpet_json("token", "list", "--limit", "2", "--cursor", cursor)
    assert last["id"] in ids
    assert limpet("token", "list", "--cursor", "x").exit_code == 2
