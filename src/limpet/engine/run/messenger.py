"""Signals and patches that a run sends to other runs. Each is a step: recorded, sent once, and subject to approvals."""

from collections.abc import Callable, Coroutine
from typing import Any

from limpet.arguments import brief
from limpet.engine.definitions.call_context import idempotency_key
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.handle import Handle
from limpet.engine.execution.principal import sent_by_run
from limpet.engine.run.sent_patch import patch_to_send
from limpet.engine.steps.steps import Steps
from limpet.errors import InvalidArgument, LimpetError
from limpet.events import bodies as b
from limpet.ids import check_id

__all__ = ["Messenger", "id_of"]

# The command's id is the step's idempotency key, so that a repeated attempt sends nothing new.
_TRAITS = Traits(effect="idempotent", not_applied=(LimpetError,))


def id_of(run: object) -> str:
    """Return the id of another run, given by its id or handle."""
    if isinstance(run, Handle):
        return run.id
    if not isinstance(run, str):
        raise InvalidArgument(path="run", reason=f"must be the id or the handle of a run, not {brief(run)}")
    return check_id(run)


class Messenger:
    """Sends signals and patches of one execution to other runs."""

    def __init__(self, execution: Execution, steps: Steps) -> None:
        self._x, self._steps = execution, steps

    def signal(self, run: str, name: str, value: Any) -> Coroutine[Any, Any, None]:
        """Send a signal, as a step."""

        async def signal(run: str, name: str, value: Any) -> None:
            store = self._x.kit.store
            packed, blobs = store.pack(value)
            body = b.SignalReceived(command=idempotency_key(), signal=name, value=packed, **sent_by_run(self._x.run))
            await self._send(run, body, blobs=blobs)

        return self._step(signal, f"signal:{name}", run, name, value)

    def patch(self, run: str, change: dict[str, Any]) -> Coroutine[Any, Any, None]:
        """Send a patch of the working state, as a step."""

        async def patch(run: str, change: dict[str, Any]) -> None:
            x, id = self._x, idempotency_key()
            if await x.recorder.retry_store(lambda: x.kit.store.has_command(run, id)):
                return  # An earlier attempt sent it, and it may be applied by now.
            found = await x.recorder.retry_store(lambda: patch_to_send(x.kit.store, run, change, source=f"run {x.run}"))
            await self._send(run, b.PatchReceived(command=id, patch=found.patch, **sent_by_run(x.run)))

        return self._step(patch, "send_patch", run, change)

    def _step(self, fn: Callable[..., Any], step_name: str, *args: Any) -> Coroutine[Any, Any, None]:
        tool: Tool[..., None, Any] = Tool(fn, f"limpet.{fn.__name__}", _TRAITS)
        tool.step_name, tool.is_for_store = step_name, True
        step, record = self._steps.find(tool, args, {})
        return self._steps.run(step, record)

    async def _send(self, run: str, body: b.SignalReceived | b.PatchReceived, **more: Any) -> None:
        x = self._x
        await x.recorder.retry_store(lambda: x.kit.store.send_commands(run, body, actor=x.kit.worker, **more))
