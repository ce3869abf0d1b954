"""`limpet worker` as a real process: what it serves, and how it stops."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from limpet import sync
from tests.interfaces.cli.shop import order
from tests.servers import preloaded
from tests.servers.preloaded import LIMPET, PipedProgram

ROOT = Path(__file__).parents[3]
ORDER = "tests.interfaces.cli.shop:order"


@contextmanager
def worker(folder: Path, target: str = "tests.interfaces.cli.shop:app", *more: str) -> Iterator[PipedProgram]:
    """Run a worker on the store in a folder, and wait until it is ready."""
    env = {**os.environ, "LIMPET_URL": f"sqlite:///{folder}/limpet.db", "SHOP": str(folder), "LIMPET_WORKER": "0"}
    command = [LIMPET, "worker", target, *more]
    with PipedProgram(command, cwd=ROOT, env=env) as process:
        try:
            assert "serving letter, order" in until(process, "serving") or target.endswith("order")
            yield process
        finally:
            process.kill()


def until(process: PipedProgram, words: str) -> str:
    """Return the next line of its log that contains these words."""
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"the process ended without printing {words!r}")


def traces(folder: Path) -> list[str]:
    path = folder / "traces"
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def wait_for(app: sync.App, folder: Path, trace: str) -> None:
    """Wait until an effect was recorded."""
    while trace not in traces(folder):
        app.runs()


def test_sigterm_drains_a_worker_and_another_continues(tmp_path: Path) -> None:
    """A running effect finishes, the run is released, and no effect is repeated."""
    with sync.open(f"sqlite:///{tmp_path}/limpet.db", agents=[order], worker=False) as app:
        handle = app.start(order, "book", id="o-1")
        with worker(tmp_path) as first:
            wait_for(app, tmp_path, "charge begins")
            first.send_signal(signal.SIGTERM)
            until(first, "Stopping")
            (tmp_path / "go").touch()
            assert first.wait(timeout=20) == 0
        assert traces(tmp_path) == ["charge begins", "charge ends"]
        assert handle.info().status == "pending"
        assert [each.kind for each in app.log("o-1")][-1] == "run.released"
        with worker(tmp_path) as second:
            assert handle.result(timeout="20s") == "R-1"
            second.send_signal(signal.SIGINT)
            assert second.wait(timeout=20) == 0
        assert traces(tmp_path) == ["charge begins", "charge ends", "mail"]
        assert not [each for each in app.log("o-1") if each.body.get("died")]


def test_a_second_signal_stops_a_worker_immediately(tmp_path: Path) -> None:
    with sync.open(f"sqlite:///{tmp_path}/limpet.db", agents=[order], worker=False) as app:
        app.start(order, "book", id="o-1")
        with worker(
            tmp_path, "tests.interfaces.cli.shop:both", "--grace", "1h", "--concurrency", "3", "--lease", "5s"
        ) as process:
            wait_for(app, tmp_path, "charge begins")
            process.send_signal(signal.SIGTERM)
            until(process, "Stopping")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == -signal.SIGTERM


def test_a_worker_can_serve_a_single_agent_in_another_store(tmp_path: Path) -> None:
    """`--url` takes precedence over LIMPET_URL."""
    url = f"sqlite:///{tmp_path}/other.db"
    (tmp_path / "go").touch()
    with (
        sync.open(url, agents=[order], worker=False) as app,
        worker(tmp_path, "tests.interfaces.cli.shop:order", "--url", url),
    ):
        assert app.run(order, "book", id="o-1") == "R-1"


@pytest.mark.parametrize(("attribute", "served"), [("", "file_reader, file_writer"), (":file_writer", "file_writer")])
def test_a_worker_serves_a_file(tmp_path: Path, attribute: str, served: str) -> None:
    """All its agents, like `limpet dev`, or an attribute; also from another folder."""
    lines = ["import limpet"]
    for name in ("reader", "writer"):
        lines += ["@limpet.agent()", f"async def file_{name}(run: limpet.Run) -> str:", f"    return {name!r}"]
    (tmp_path / "two_agents.py").write_text("\n".join(lines), encoding="utf-8")
    url = f"sqlite:///{tmp_path}/limpet.db"
    target = f"{tmp_path}/two_agents.py{attribute}"
    with PipedProgram([LIMPET, "worker", target, "--url", url], cwd=ROOT) as process:
        assert f"serving {served};" in until(process, "serving")
        with sync.open(url, worker=False) as app:
            assert app.start("file_writer").result(timeout="20s") == "writer"
        process.terminate()
        process.stderr.read()


def test_a_worker_serves_a_file_that_imports_its_neighbours(tmp_path: Path) -> None:
    """From its package, and from the current folder."""
    package = tmp_path / "file_package"
    package.mkdir()
    for name, text in (
        ("file_package/__init__.py", ""),
        ("file_package/words.py", "from file_neighbour import HELLO as HELLO"),
        ("file_neighbour.py", "HELLO = 'hello'"),
        (
            "file_package/agents.py",
            "import limpet\nfrom .words import HELLO\n@limpet.agent()\nasync def file_greeter(run): return HELLO",
        ),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    url = f"sqlite:///{tmp_path}/limpet.db"
    with PipedProgram([LIMPET, "worker", "file_package/agents.py", "--url", url], cwd=tmp_path) as process:
        assert "serving file_greeter" in until(process, "serving")
        process.terminate()
        process.stderr.read()


@pytest.mark.parametrize("named", ["environment", "project", "nowhere"])
def test_worker_uses_the_app_of_the_environment_or_project(tmp_path: Path, named: str) -> None:
    """`limpet show` suggests it, too."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    env = {**os.environ, "LIMPET_URL": url, "PYTHONPATH": str(ROOT)}
    if named == "environment":
        env["LIMPET_APP"] = ORDER
    if named == "project":
        (tmp_path / "pyproject.toml").write_text(
            '[tool.limpet]\napp = "tests.interfaces.cli.shop:order"\n', encoding="utf-8"
        )
    with sync.open(url, agents=[order], worker=False) as app:
        app.start(order, "book", id="o-1")
    said = preloaded.run([LIMPET, "show", "o-1"], cwd=tmp_path, env=env)
    target = "MODULE:ATTRIBUTE" if named == "nowhere" else ORDER
    assert said.stdout.endswith(f"next: limpet worker {target}  (no live worker serves order 1)\n")
    with PipedProgram([LIMPET, "worker"], cwd=tmp_path, env=env) as process:
        if named == "nowhere":
            assert "pass MODULE:ATTRIBUTE or a file, or set LIMPET_APP" in until(process, "no app given")
        else:
            assert "serving order" in until(process, "serving")
            process.terminate()
            process.stderr.read()
    assert process.returncode == (2 if named == "nowhere" else 0)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("tests.interfaces.cli.shop", "is neither a file, such as app.py, nor MODULE:ATTRIBUTE"),
        ("tests.interfaces.cli.nowhere:app", "no module 'tests.interfaces.cli.nowhere'"),
        ("tests.interfaces.cli.shop:nothing", "has no 'nothing'"),
        ("tests.interfaces.cli.shop:FOLDER", "not an app, an agent or a list of agents"),
        ("{tmp_path}/queue.py", "another module has the name queue"),
        ("{tmp_path}/nothing.py", "no file"),
    ],
)
def test_an_invalid_target_of_worker_is_wrong_usage(target: str, why: str, tmp_path: Path) -> None:
    """The error gives the reason."""
    (tmp_path / "queue.py").touch()
    done = preloaded.run([LIMPET, "worker", target.format(tmp_path=tmp_path)], cwd=ROOT)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
