"""`limpet init`: its project runs as its README describes, and no file is overwritten."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interfaces.demo.demo_process import env_of, left_behind
from tests.servers import preloaded
from tests.servers.preloaded import LIMPET


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    if words[0] == LIMPET:
        return preloaded.run(words, cwd=cwd, env=env_of(cwd))
    return subprocess.run(words, cwd=cwd, env=env_of(cwd), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project."""
    folder = tmp_path_factory.mktemp("new")
    done = run(LIMPET, "init", "My Agents", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout.splitlines()[0] == "Created app.py, test_app.py, pyproject.toml, README.md, .gitignore in My Agents"
    )
    return folder / "My Agents"


def test_a_new_project_runs_and_its_tests_pass(project: Path) -> None:
    """A second start finds the run completed. The commands of its README work."""
    assert 'name = "my-agents"' in (project / "pyproject.toml").read_text(encoding="utf-8")
    for _ in range(2):
        done = run("python", "app.py", cwd=project)
        assert (done.returncode, done.stdout) == (0, "You have your 49.00 back, and our apologies.\n"), done.stderr
    [paid] = (project / "refunds.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(paid)["key"].startswith("ticket-1:")
    tested = run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    assert "2 passed" in tested.stdout, tested.stdout
    assert [each["status"] for each in json.loads(run(LIMPET, "runs", "--json", cwd=project).stdout)["items"]] == [
        "completed"
    ]
    page = (project / "README.md").read_text(encoding="utf-8")
    typed = re.findall(r"^(limpet (?:runs|show).*?)  +#", page, re.MULTILINE)
    assert [run("sh", "-c", line, cwd=project).returncode for line in typed] == [0, 0]


def test_the_worker_of_a_new_project_runs_a_run_started_by_name(project: Path) -> None:
    """The app is found in pyproject.toml."""
    with subprocess.Popen(
        [LIMPET, "worker", "app:app"], cwd=project, env=env_of(project), stderr=subprocess.PIPE
    ) as worker:
        assert worker.stderr is not None
        assert any(b"serving support" in line for line in worker.stderr)
        started = run(
            LIMPET, "start", "support", "--input", "Order o-1 arrived broken.", "--id", "ticket-9", cwd=project
        )
        assert started.returncode == 0, started.stderr
        run(LIMPET, "log", "ticket-9", "--follow", cwd=project)
        worker.send_signal(signal.SIGINT)
        worker.stderr.read()
    assert worker.returncode == 0
    assert run(LIMPET, "replay", "ticket-9", cwd=project).returncode == 0
    assert left_behind(project) == []


def test_a_new_project_passes_linter_and_type_checker(project: Path) -> None:
    how = ["--isolated", "--line-length", "120", "."]
    for words in (["check", "--select", "E,F,I,B,UP,SIM,RUF"], ["format", "--check"]):
        done = run(sys.executable, "-m", "ruff", *words, *how, cwd=project)
        assert done.returncode == 0, done.stdout
    done = run(
        sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", "app.py", "test_app.py", cwd=project
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["app.py", ".gitignore"])
def test_init_refuses_to_overwrite_a_file(tmp_path: Path, name: str) -> None:
    """No file is written; the error names the existing one."""
    (tmp_path / name).write_text("mine", encoding="utf-8")
    done = run(LIMPET, "init", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: Cannot use {name}: the file exists. Nothing was written. Pass another")
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["mine"]
    done = run(LIMPET, "init", name, "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stderr)["code"]) == (1, "file_failed")
