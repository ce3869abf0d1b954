"""`limpet demo --dashboard` as a real process: its store has runs in every state, and its link logs in."""

import json
import re
import signal
import subprocess
from pathlib import Path

import httpx

from limpet import sync
from tests.interfaces.cli.run_cli import LIMPET
from tests.interfaces.demo.demo_process import env_of, left_behind


def test_the_dashboard_has_runs_in_every_state(tmp_path: Path) -> None:
    """An approval goes on, Ctrl-C ends everything, and the store stays and is sound."""
    with subprocess.Popen(
        [LIMPET, "demo", "shop", "--dashboard", "--json"],
        cwd=tmp_path,
        env=env_of(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            link = json.loads(process.stdout.readline())["login"]
            address, _, code = link.partition("/ui/login?code=")
            with httpx.Client(base_url=address, headers={"sec-fetch-site": "same-origin"}, timeout=30) as person:
                assert person.post("/ui/login", data={"code": code}).status_code == 303
                listed = person.get("/ui/runs").text
                for word in ("Completed", "Failed", "Waiting", "Running", "Cancelled", "Quarantined"):
                    assert word in listed, word
                paths = ("/runs/prices-1", "/runs/chat-1", "/runs/refund-003.cheaper", "/runs/import-2019", "/inbox")
                for path in (*paths, "/operations", "/runs/refund-001/log", "/records/packing-board"):
                    assert person.get(f"/ui{path}").status_code == 200, path
                assert "ValueError" in person.get("/ui/runs/prices-1").text
                [request, *_] = re.findall(r'action="/ui/inbox/([0-9a-z]+)"', person.get("/ui/inbox").text)
                [token] = set(re.findall(r'name="form_token" value="([0-9a-f]{64})"', person.get("/ui/inbox").text))
                sent = person.post(f"/ui/inbox/{request}", data={"form_token": token, "decision": "approve"})
                assert sent.status_code == 303
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert left_behind(tmp_path) == []
    with sync.open(f"sqlite:///{tmp_path}/shop/limpet.db", worker=False) as app:
        assert len(app.runs(last=100)) > 35
        assert len(app.scores()) == 4
        assert app.verify("import-2019").events > 5
