"""The blocking app: the same methods, which wait for their results."""

import inspect
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import limpet
from limpet import sync, testing


@limpet.tool(effect="none")
def sync_double(number: int) -> int:
    return 2 * number


@limpet.agent()
def doubles(run: sync.Run, number: int) -> int:
    return run.step(sync_double, number)


@limpet.agent()
async def fails(run: limpet.Run) -> None:
    raise ValueError("no luck")


@limpet.agent()
def asks(run: sync.Run) -> str:
    colour = run.ask("Which colour?", options=["red", "blue"])
    return f"{colour} {run.receive('size', int)}" if run.ask("Sure?") else "none"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[sync.App]:
    with sync.open(f"sqlite:///{tmp_path}/limpet.db", agents=[doubles, fails, asks]) as opened:
        yield opened


def until_asked(app: sync.App, question: str) -> limpet.Request:
    """Return the request once it is in the inbox."""
    while not (found := [each for each in app.inbox() if each.question == question]):
        threading.Event().wait(0.01)
    return found[0]


def test_a_run_is_started_and_found_by_its_id(app: sync.App) -> None:
    """The same id gives the same run and result, and nothing is done twice."""
    assert app.run(doubles, 21, id="d-1") == 42
    assert app.start(doubles, 21, id="d-1").result() == 42
    assert app.get("d-1", doubles).result(timeout="1s") == 42
    assert app.get("d-1").info().status == "completed"
    assert [each.kind for each in app.log("d-1")].count("step.completed") == 1
    assert [each.id for each in app.runs(agent="doubles")] == ["d-1"]


def verbs(app: type) -> dict[str, inspect.Signature]:
    """Return the public methods of an app with their signatures."""
    found = inspect.getmembers(app, inspect.isfunction)
    return {name: inspect.signature(method) for name, method in found if not name.startswith("_")}


def test_the_blocking_app_has_every_method_of_the_app() -> None:
    """Every public async method exists under the same name, with the same parameters."""
    there = verbs(sync.App)
    for name, wanted in verbs(limpet.App).items():
        method = getattr(limpet.App, name)
        if not inspect.iscoroutinefunction(method) and not inspect.isasyncgenfunction(method):
            continue
        assert name in there, f"limpet.sync.App has no {name}"
        assert [(each.name, each.kind, each.default) for each in there[name].parameters.values()][1:] == [
            (each.name, each.kind, each.default) for each in wanted.parameters.values()
        ][1:], name
        assert getattr(sync.App, name).__doc__, name


def test_queries_forks_and_bundles_work(app: sync.App, tmp_path: Path) -> None:
    app.run(doubles, 21, id="d-1")
    assert [each.kind for each in app.events("d-1")] == [each.kind for each in app.log("d-1")]
    assert next(app.events("d-1")).kind == "run.created"
    assert [each.seq for each in app.watch_run("d-1")] == [each.seq for each in app.log("d-1")]
    assert next(app.watch_runs(after="0")).run.id == "d-1"
    assert app.state("d-1", before=1).step == 0
    assert [each.step.number for each in app.tool_calls("sync_double")] == [1]
    assert app.stats().runs == {"completed": 1}
    assert [each.problem for each in app.replay_all(agent="doubles")] == [None]
    app.say("c-1", "hello")
    assert [each.text for each in app.messages("c-1")] == ["hello"]
    forked = app.fork("d-1", at=1, effects="live")
    assert (forked.id, forked.result(timeout="20s")) == ("d-1.1", 42)
    app.export("d-1", tmp_path / "run.zip")
    with sync.open(f"sqlite:///{tmp_path}/other.db") as other:
        assert other.load(tmp_path / "run.zip").info().status == "completed"


def test_once_calls_a_function_once(app: sync.App) -> None:
    """The function is blocking."""
    done: list[int] = []

    def act() -> str:
        done.append(1)
        return "receipt"

    assert [app.once("key-1", act) for _ in range(2)] == ["receipt", "receipt"]
    assert done == [1]


def test_requests_are_answered(app: sync.App) -> None:
    """Options, a signal and an approval are accepted; a rejection returns False to the agent."""
    handle = app.start(asks, id="a-1", user="ann")
    with pytest.raises(limpet.NotDone):
        handle.result(timeout="10ms")
    with pytest.raises(limpet.InvalidAnswer):
        app.answer(until_asked(app, "Which colour?"), "green", by="ann")
    app.answer(until_asked(app, "Which colour?"), "blue", by="ann")
    app.approve(until_asked(app, "Sure?"), by="ann")
    app.signal("a-1", "size", 7)
    assert handle.result(timeout="20s") == "blue 7"
    other = app.start("asks", id="a-2")
    app.answer(until_asked(app, "Which colour?"), "red", by="ann")
    app.reject(until_asked(app, "Sure?"), by="ann", because="too red")
    assert other.result(timeout="20s") == "none"


def test_a_run_is_paused_resumed_and_cancelled(app: sync.App) -> None:
    handle = app.start(asks, id="s-1")
    until_asked(app, "Which colour?")
    app.pause("s-1")
    while handle.info().waits_text != "operator:paused":
        threading.Event().wait(0.01)
    assert app.resume("s-1").id == "s-1"
    handle.cancel("enough")
    with pytest.raises(limpet.RunCancelled, match="enough"):
        handle.result(timeout="20s")
    app.start(asks, id="s-2")
    app.cancel("s-2", reason="enough too")
    with pytest.raises(limpet.RunCancelled, match="enough too"):
        app.get("s-2").result(timeout="20s")


def test_errors_are_raised_with_their_fields(app: sync.App) -> None:
    with pytest.raises(limpet.RunFailed) as error:
        app.run(fails)
    assert error.value.facts["error_type"] == "builtins.ValueError"
    with pytest.raises(limpet.NotFound):
        app.get("missing")


def test_an_interrupt_ends_the_wait_but_not_the_run(app: sync.App) -> None:
    """Ctrl-C is pressed while the caller waits for a result."""
    handle = app.start(asks, id="i-1")
    main = threading.get_ident()
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        handle.result()
    timer.join()
    assert handle.info().status in ("running", "waiting")


def test_the_app_creates_no_file_before_it_is_entered(tmp_path: Path) -> None:
    """After closing, the app raises; closing it again has no effect."""
    app = sync.open(f"sqlite:///{tmp_path}/limpet.db", agents=[doubles], worker=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(limpet.StoreUnavailable, match="not open"):
        app.runs()
    with app:
        assert app.runs() == []
    app.close()
    with pytest.raises(limpet.StoreUnavailable, match="not open"):
        app.runs()


def test_a_failed_opening_leaves_no_event_loop(tmp_path: Path) -> None:
    """The error is raised, and the thread of the event loop has ended."""
    with pytest.raises(limpet.StoreUnavailable), sync.open(f"sqlite:///{tmp_path}/no/limpet.db"):
        pass
    assert "limpet-sync" not in [each.name for each in threading.enumerate()]


def test_blocking_the_apps_own_event_loop_is_refused(app: sync.App) -> None:
    """The call would wait indefinitely."""

    async def inside(_: limpet.App) -> None:
        app.runs()

    with pytest.raises(limpet.WrongCall, match="event loop of its own app"):
        app.wait(inside)


def test_a_handle_follows_events_and_tokens(app: sync.App) -> None:
    """Events and the tokens of a model are iterated."""
    handle = app.start(doubles, 21)
    followed = [each.seq for each in handle.events()]
    assert followed == [each.seq for each in handle.events(follow=False)]
    assert [each.seq for each in handle.events(after=2)] == followed[2:]
    assert list(handle.tokens()) == []
    model = testing.ScriptedModel("It is open today.")
    talker = limpet.llm_agent("sync_talker", model=model, instructions="Talk.")
    with sync.open("memory:", agents=[talker]) as other:
        assert "".join(other.start(talker, "Is it open?").tokens()) == "It is open today."
