"""Load the steps of a run as views, a page at a time, without reading the log before them."""

from limpet.errors import NotFound
from limpet.state import StepView
from limpet.state.log_view import LogView, RequestView
from limpet.stores import Store
from limpet.stores.fork_reads import LAST, StepRange

__all__ = ["load_log_view", "load_step", "load_step_view", "load_steps", "no_step"]


async def load_steps(store: Store, run: str, steps: StepRange) -> list[StepView]:
    """Return steps by number: the first of a range, or the last of it, the newest first."""
    view = LogView()
    for event in await store.read_steps(run, steps):
        view.add(event, store.decode(event))
    return [view.steps[number] for number in sorted(view.steps, reverse=steps.backwards)]


async def load_step(store: Store, run: str, number: int, *, upto: int = LAST) -> StepView:
    """Return one step. Raises NotFound."""
    found = await load_steps(store, run, StepRange(after=number - 1, before=number + 1, upto=upto))
    if not found:
        raise no_step(run, number, (await store.get(run)).step)
    return found[0]


async def load_step_view(store: Store, run: str, number: int) -> tuple[StepView, list[RequestView]]:
    """Return one step, and the requests about it without their decisions. Raises NotFound."""
    view = LogView()
    for event in await store.read_steps(run, StepRange(after=number - 1, before=number + 1)):
        view.add(event, store.decode(event))
    if number not in view.steps:
        raise no_step(run, number, (await store.get(run)).step)
    return view.steps[number], [each for each in view.requests.values() if each.step == number]


async def load_log_view(store: Store, run: str, *, upto: int | None = None) -> LogView:
    """Return all steps, requests and waits of a run. Reads the whole log."""
    view = LogView()
    async for event in store.log(run, upto=upto):
        view.add(event, store.decode(event))
    return view


def no_step(run: str, number: int, last: int) -> NotFound:
    """Return the error for a missing step. Its hint names the existing ones."""
    fix = f"Pass a step from 1 to {last}." if last else "Wait for the first step: the run has none yet."
    return NotFound(what="step", id=f"{run}/{number}", fix=fix)
