"""The error of a failed run: its cause in this process, the recorded traceback elsewhere, and the right hint."""

import gc
import traceback
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import sync, testing
from limpet.engine.execution.failures import failure_of, hint_of
from limpet.engine.execution.local_runs import LocalRuns
from limpet.events import Failure
from limpet.events import bodies as b

RAISED: list[BaseException] = []


@limpet.agent(name="failed_agent")
async def agent(run: limpet.Run) -> None:
    RAISED.append(KeyError("order"))
    raise RAISED[-1]


@limpet.tool(effect="none", name="failed_tool")
async def tool() -> None:
    raise ConnectionError("refused by the bank")


@limpet.agent(name="failed_caller")
async def caller(run: limpet.Run) -> None:
    await run.step(tool)


@pytest.fixture(autouse=True)
def _none_raised() -> None:
    RAISED.clear()


async def failed(waiting: Any) -> limpet.RunFailed:
    """Return the error that a call raises."""
    with pytest.raises(limpet.RunFailed) as raised:
        await waiting
    return raised.value


async def test_the_cause_is_the_exception_that_the_code_raised() -> None:
    """So a traceback shows the user's line."""
    async with limpet.open("memory:", agents=[agent]) as app:
        error = await failed(app.run(agent))
        assert error.__cause__ is RAISED[0]
        shown = "".join(traceback.format_exception(error))
        assert "raise RAISED[-1]" in shown
        assert "run_driver" not in shown
        assert not hasattr(error, "__notes__")


async def test_a_handle_that_waits_later_gets_the_cause_too() -> None:
    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        assert (await failed(handle.result())).__cause__ is RAISED[0]
        assert (await failed(handle.result())).__cause__ is RAISED[0]


async def test_the_error_of_a_step_has_the_traceback_of_the_tool() -> None:
    """Live and on replay alike, as a note: its `__cause__` could not be restored."""
    async with testing.app(caller) as app:
        error = await failed(app.run(caller))
        assert isinstance(error.__cause__, limpet.StepFailed)
        assert error.__cause__.__cause__ is None
        [note] = error.__cause__.__notes__
        assert 'raise ConnectionError("refused by the bank")' in note
        assert error.traceback.index("await run.step(tool)") < error.traceback.index("raise ConnectionError")


def test_blocking_code_gets_the_cause() -> None:
    with sync.open("memory:", agents=[agent]) as app:
        with pytest.raises(limpet.RunFailed) as raised:
            app.run(agent)
        assert raised.value.__cause__ is RAISED[0]


async def test_another_process_gets_the_recorded_traceback(tmp_path: Path) -> None:
    """As a field, and as a note that Python prints."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open(url, agents=[caller]) as app:
        await failed(app.run(caller, id="r"))
    async with limpet.open(url, worker=False) as app:
        error = await failed((await app.get("r")).result())
        assert error.__cause__ is None
        assert 'raise ConnectionError("refused by the bank")' in error.traceback
        assert "await run.step(tool)" in "".join(traceback.format_exception(error))
        assert (error.step, error.error_type) == (1, "limpet.StepFailed")


async def test_a_resumed_run_that_fails_again_has_the_new_cause() -> None:
    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        first = await failed(handle.result())
        again = await failed((await app.resume("r")).result())
        assert (first.__cause__, again.__cause__) == (RAISED[0], RAISED[1])


def test_an_exception_belongs_to_the_event_that_records_it() -> None:
    """A later failure in another process has another event; without a handle, the exception is not kept."""
    runs = LocalRuns()
    local = runs.of("r")
    ended = b.RunFailed(failure=Failure(type="KeyError"))
    local.end(ended, KeyError("order"), 7)
    assert (local.end_at(7), local.end_at(9)) == (ended, None)
    assert isinstance(runs.of("r").error_at(7), KeyError)
    assert local.error_at(9) is None
    del local
    gc.collect()
    assert runs.find("r") is None


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (limpet.ModelRefused(agent="a", text="no"), "`limpet prompt r-1 STEP`"),
        (limpet.NoProgress(agent="a", reason="it repeats itself", fix="Raise max_turns."), "Raise max_turns."),
        (limpet.BudgetExceeded(limit="max_steps", allowed=1, wanted=2), "limpet extend r-1 --budget max_steps=N"),
        (limpet.InvalidArgument(path="to", reason="is empty"), "Correct to and retry"),
        (limpet.DeadlineExceeded(deadline=0), "limpet extend r-1 --deadline 2h"),
        (
            limpet.Rejected(tool="t", number=1, attempts=0, error_type="limpet.Rejected"),
            "`limpet resume r-1` asks again",
        ),
        (limpet.StepFailed(tool="t", number=1, attempts=1, error_type="builtins.KeyError"), ""),
        (KeyError("x"), ""),
    ],
)
def test_the_hint_of_the_inner_error_names_the_run(error: Exception, hint: str) -> None:
    """A failed step, or an error of the user, has none: `limpet resume` is all that is left."""
    found = hint_of(failure_of(error), "r-1")
    assert hint in found
    assert bool(hint) == bool(found)


async def test_a_failed_run_shows_the_hint_of_the_inner_error() -> None:
    @limpet.agent(name="failed_poor", budget=limpet.Budget(max_steps=0))
    async def poor(run: limpet.Run) -> None:
        await run.step(tool)

    async with testing.app(poor, agent) as app:
        assert "set a larger max_steps in Budget(...)" in str(await failed(app.run(poor)))
        assert "`limpet resume r`" in str(await failed(app.run(agent, id="r")))
