"""Whether today's code still goes through what was recorded: a check before a deploy, over exported runs."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from limpet.engine.agents import Agent
from limpet.engine.call import Call
from limpet.engine.functions import Bound
from limpet.engine.tools import Tool
from limpet.errors import LimpetError
from limpet.events import Event
from limpet.events import bodies as b
from limpet.service.bundles import Bundle, read_bundle
from limpet.testing.app import TestApp, TestSettings
from limpet.testing.stubs import Stubs

__all__ = ["still_replays"]

ENDS = ("run.completed", "run.failed", "run.cancelled")
UNDOING = ("cancel.requested", "compensation.started", "compensation.skipped")


async def still_replays(*agents: Agent[Any, Any], bundles: str | Path) -> list[str]:
    """What is wrong, a line for each exported run in a folder that today's code would not go through; nothing is done.

    Every run is gone through as far as it is recorded: whatever would be new is not begun. A run that completed must
    return the same again.
    """
    found = [(path, await _replay(path, agents)) for path in _files(bundles)]
    return [f"{path.name}: {problem}" for path, problem in found if problem is not None]


def _files(bundles: str | Path) -> list[Path]:
    return sorted(Path(bundles).glob("*.zip"))


async def _replay(path: Path, agents: Sequence[Agent[Any, Any]]) -> str | None:
    try:
        bundle = await read_bundle(path)
        settings = TestSettings()
        settings.frozen.set(bundle.events[-1].time)
        settings.perform = reaching = _Reaching()
        async with TestApp(settings, agents) as app:
            return await _go_through(app, bundle, reaching)
    except LimpetError as error:
        return error.says


class _Reaching(Stubs):
    """Begins nothing: the code has come to the end of what is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.is_there = False

    def is_stubbed(self, tool: Tool[..., Any, Any]) -> bool:  # noqa: ARG002
        """Everything is: a transaction is not begun either."""
        return True

    async def __call__(self, tool: Tool[..., Any, Any], /, fn: Callable[..., Any], args: Bound, call: Call) -> Any:  # noqa: ARG002
        """Never return."""
        self.is_there = True
        await asyncio.get_running_loop().create_future()


async def _go_through(app: TestApp, bundle: Bundle, reaching: _Reaching) -> str | None:
    events = _without_end(bundle.events)
    for data in bundle.blobs.values():
        await app.store.put_blob(data)
    row = await app.store.load(events, actor="replay")
    served = {(each.name, version) for each in app.serves for version in (each.version, *each.rules.accepts)}
    if (row.agent, row.agent_version) not in served:
        return f"no agent {row.agent!r} of version {row.agent_version!r} was given"
    await app.resume(row.id)
    while not reaching.is_there and not await app.is_settled():  # noqa: ASYNC110 - turns, not time
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the event loop
    return None if reaching.is_there else await _compare(app, row.id, bundle.events[-1])


async def _compare(app: TestApp, run: str, end: Event) -> str | None:
    """The run waits again, or has ended as it did before."""
    row = await app.store.get(run)
    if "operator:diverged" in row.waits:
        flags = [event.body["detail"] for event in await app.log(run) if event.kind == "risk.flagged"]
        return str(flags[-1])
    recorded = app.store.decode(end)
    [last] = await app.store.read(run, limit=1, backwards=True)
    now = app.store.decode(last)
    match recorded, now:
        case b.RunCompleted(), b.RunCompleted():
            same = await app.store.unpack(recorded.output) == await app.store.unpack(now.output)
            return None if same else "it returns something else"
        case b.RunFailed(), b.RunFailed():
            return None if recorded.failure.type == now.failure.type else f"it fails with {now.failure.type}"
        case _, b.RunFailed():
            return f"it fails with {now.failure.type}: {now.failure.message}"
        case _:
            return None


def _without_end(events: Sequence[Event]) -> Sequence[Event]:
    """The log before it ended, was cancelled or was being undone."""
    undoing = next((place for place, event in enumerate(events) if event.kind in UNDOING), len(events))
    events = events[:undoing]
    return events[:-1] if events[-1].kind in ENDS else events
