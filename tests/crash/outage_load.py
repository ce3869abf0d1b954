"""A load of runs during outages, and the checks after them."""

import asyncio
from collections import Counter

import limpet

__all__ = ["Walkers"]


@limpet.tool(effect="once")
async def put_down(run: str, step: int) -> int:
    """Record an effect that must not happen twice."""
    Walkers.here.seen(run, step)
    return step


@limpet.agent()
async def walk(run: limpet.Run, steps: int) -> int:
    """Run some effects one after the other."""
    return sum([await run.step(put_down, run.id, step) for step in range(steps)])


class Walkers:
    """Runs of one app with several steps each."""

    here: "Walkers"
    agents = (walk,)

    def __init__(self, app: limpet.App, runs: int = 6, steps: int = 10) -> None:
        self._app, self._runs, self._steps = app, runs, steps
        self._done: Counter[tuple[str, int]] = Counter()
        self._moved = asyncio.Event()
        self._started = 0
        Walkers.here = self

    def seen(self, run: str, step: int) -> None:
        """Count an effect."""
        self._done[run, step] += 1
        self._moved.set()

    async def start(self) -> None:
        """Start another batch of runs."""
        runs = [f"w{self._started + 1}-{n}" for n in range(self._runs)]
        await asyncio.gather(*(self._app.start(walk, self._steps, id=run) for run in runs))
        self._started += 1

    async def more(self, effects: int) -> None:
        """Wait until this many more effects are done."""
        until = self._done.total() + effects
        while self._done.total() < until:
            self._moved.clear()
            await self._moved.wait()

    async def arrive(self) -> None:
        """Check that every run completes without help, with every effect once and an intact log."""
        runs = [f"w{batch}-{n}" for batch in range(1, self._started + 1) for n in range(self._runs)]
        for run in runs:
            handle = await self._app.get(run, walk)
            assert await handle.result(timeout="120s") == sum(range(self._steps))
            await self._app.verify(run)
        assert self._done == {(run, step): 1 for run in runs for step in range(self._steps)}
