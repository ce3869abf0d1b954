"""`limpet dev` as a real process: it runs agents, shows runs, restarts on changes, and leaves no process behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event

import httpx
import pytest

from limpet import sync
from tests.interfaces.demo.demo_process import env_of, left_behind, on_terminal
from tests.servers import preloaded

LIMPET = str(Path(sys.executable).with_name("limpet"))
# Modification time of the app, in nanoseconds.
FIRST = 1_700_000_000 * 10**9
APP = """
import limpet

@limpet.tool(effect="none")
def say(text: str) -> str:
    return text + "{mark}"

@limpet.agent()
async def echo(run: limpet.Run, text: str) -> str:
    return await run.step(say, text)
"""


class Dev:
    """The process and its output."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder = process, folder
        self._times = count(FIRST + 1_000_000, 1_000_000)

    def until(self, words: str) -> str:
        """Return the next line that contains these words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return line
        raise AssertionError(f"the process ended without printing {words!r}")

    def write(self, mark: str) -> None:
        """Change the code as an editor does. All changes happen within one second."""
        new = self.folder / "app.new"
        new.write_text(APP.replace("{mark}", mark), encoding="utf-8")
        os.utime(new, ns=(FIRST, next(self._times)))
        new.rename(self.folder / "app.py")

    def run_echo(self, run: str) -> str:
        """Start a run and return its result."""
        with sync.open(f"sqlite:///{self.folder}/limpet.db", worker=False) as app:
            return str(app.start("echo", "hello", id=run).result(timeout="30s"))


@contextmanager
def dev(folder: Path, *words: str, dashboard: bool = False) -> Iterator[Dev]:
    """Run `limpet dev` on an app in a folder, and wait until it is ready."""
    (folder / "app.py").write_text(APP.replace("{mark}", "1"), encoding="utf-8")
    os.utime(folder / "app.py", ns=(FIRST, FIRST))
    with subprocess.Popen(
        [LIMPET, "dev", *(words or ("app.py",)), *(() if dashboard else ("--no-dashboard",))],
        cwd=folder,
        env=env_of(folder, PYTHONDONTWRITEBYTECODE=""),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        found = Dev(process, folder)
        try:
            found.until("serving echo")
            yield found
        finally:
            process.kill()


def until_gone(folder: Path) -> None:
    """Wait until no process is left; a worker ends when its parent is gone."""
    while left_behind(folder):
        Event().wait(0.01)


@pytest.mark.parametrize("target", ["app.py", "app:echo"])
def test_dev_restarts_with_changed_code(tmp_path: Path, target: str, full: bool) -> None:
    """The new code runs in a new process, and runs are listed. Ctrl-C exits with 0."""
    if target == "app.py" and not full:
        pytest.skip("runs with --full (make chaos); other tests change the code of a file")
    with dev(tmp_path, target) as it:
        assert it.run_echo("one") == "hello1"
        it.until("one  echo 1  completed")
        it.write("2")
        it.until("app.py changed")
        it.until("serving echo")
        assert it.run_echo("two") == "hello2"
        it.process.send_signal(signal.SIGINT)
        it.until("Stopping")
        assert it.process.wait() == 0
    assert left_behind(tmp_path) == []


def test_dev_serves_the_dashboard_while_the_code_changes(tmp_path: Path) -> None:
    """The link logs in; the server stays while the worker is restarted, and ends with it, even if it is killed."""
    with dev(tmp_path, "app.py", "--no-browser", dashboard=True) as it:
        link = it.until("Dashboard: ").split()[-1]
        address, _, code = link.partition("/ui/login?code=")
        it.write("2")
        it.until("serving echo")
        assert it.run_echo("two") == "hello2"
        with httpx.Client(base_url=address, headers={"sec-fetch-site": "same-origin"}, timeout=30) as person:
            assert person.post("/ui/login", data={"code": code}).status_code == 303
            assert "two" in person.get("/ui/runs").text
        assert len(left_behind(tmp_path)) == 3
        it.process.kill()
        until_gone(tmp_path)


def test_dev_shows_a_load_error_and_keeps_watching(tmp_path: Path) -> None:
    """A syntax error, then a module without agents, then valid code."""
    with dev(tmp_path) as it:
        it.write('" + (')
        assert "app.py" in it.until("File ")
        it.until("SyntaxError")
        it.until("The worker exited with 1; the next change restarts it.")
        (tmp_path / "app.py").write_text("nothing = 1\n", encoding="utf-8")
        it.until("app.py has no app with agents, and no agent")
        it.until("the next change restarts it")
        it.write("3")
        it.until("serving echo")
        assert it.run_echo("three") == "hello3"
        it.process.send_signal(signal.SIGTERM)
        it.until("Stopping")
        assert it.process.wait() == 0
    assert left_behind(tmp_path) == []


def test_no_process_outlives_dev(tmp_path: Path) -> None:
    with dev(tmp_path) as it:
        assert len(left_behind(tmp_path)) == 2
        it.process.kill()
        it.process.wait()
    until_gone(tmp_path)


def test_dev_shows_a_table_of_runs_on_a_terminal(tmp_path: Path) -> None:
    """With the log above it. Ctrl-C exits with 0 and restores the cursor."""
    (tmp_path / "app.py").write_text(APP.replace("{mark}", "1"), encoding="utf-8")
    with on_terminal(LIMPET, "dev", "app.py", cwd=tmp_path, env=env_of(tmp_path)) as terminal:
        terminal.until("no runs")
        with sync.open(f"sqlite:///{tmp_path}/limpet.db", worker=False) as app:
            app.start("echo", "hello", id="one").result(timeout="30s")
        terminal.until("completed")
        terminal.type("\x03")
        said = terminal.rest()
    assert terminal.process.returncode == 0, said
    assert terminal.said.rfind("\x1b[?25h") > terminal.said.rfind("\x1b[?25l")
    assert "Traceback" not in said
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nothing.py", "no file nothing.py"),
        ("app", "is neither a file, such as app.py, nor MODULE:ATTRIBUTE"),
        ("my-app.py", "cannot be imported"),
    ],
)
def test_an_invalid_target_of_dev_is_wrong_usage(tmp_path: Path, target: str, why: str) -> None:
    """The error gives the reason."""
    (tmp_path / "my-app.py").touch()
    done = preloaded.run([LIMPET, "dev", target], cwd=tmp_path)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
