"""Control runs: resume, pause, cancel, signal."""

from typing import Annotated, Any

from limpet.arguments import checked
from limpet.engine.execution.handle import Handle
from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import RunInfo
from limpet.events import bodies as b
from limpet.service.api.core import AppCore
from limpet.service.operation import CommandId, InDoors, Param, RunId, command
from limpet.service.resolve import run_of

__all__ = ["By", "Control"]

By = Annotated[
    str | Principal | None, Param(description="Who sends it, which is recorded.", examples=["ann"]), InDoors(str | None)
]


@checked
class Control(AppCore):
    """Control runs."""

    topic = "Control runs"

    @command("/runs/{run}/resume", result=RunInfo, example="ticket-42")
    async def resume(self, run: RunId, /, *, by: By = None, command_id: CommandId = None) -> Handle[Any]:
        """Resume a paused run, or a failed one from its failed step. A completed run is left unchanged."""
        row = await run_of(self.store, run)
        if row.status != "completed":
            sender = self._principal(by).sender
            await self._send(run, b.ResumeRequested(command=self._command_id(command_id), **sender))
        return Handle(self._port, run, self._find_code(row.agent, row.agent_version))

    @command("/runs/{run}/pause", result=RunInfo, example="ticket-42")
    async def pause(
        self,
        run: RunId,
        /,
        *,
        reason: Annotated[str, Param(description="Reason, which is recorded.")] = "",
        by: By = None,
        command_id: CommandId = None,
    ) -> None:
        """Pause a run until it is resumed. Running effects finish first."""
        await run_of(self.store, run)
        reason, sender = self.store.redaction.text(reason), self._principal(by).sender
        await self._send(run, b.PauseRequested(command=self._command_id(command_id), reason=reason, **sender))

    @command(
        "/runs/{run}/cancel",
        result=RunInfo,
        is_destructive=True,
        example='ticket-42 --reason "the customer withdrew it"',
    )
    async def cancel(
        self,
        run: RunId,
        /,
        *,
        reason: Annotated[str, Param(description="Reason, which is recorded.")],
        by: By = None,
        command_id: CommandId = None,
    ) -> None:
        """Cancel a run and the runs it called. Running effects finish; completed ones are undone where possible."""
        await run_of(self.store, run)
        reason, sender = self.store.redaction.text(reason), self._principal(by).sender
        await self._send(run, b.CancelRequested(command=self._command_id(command_id), reason=reason, **sender))

    @command(
        "/runs/{run}/signals/{name}",
        result=RunInfo,
        is_idempotent=False,
        example="""ticket-42 paid '{"cents": 900}'""",
    )
    async def signal(
        self,
        run: RunId,
        name: Annotated[str, Param(description="Name of the signal.", examples=["paid"])],
        value: Annotated[object, Param(description="Value, as JSON; text if it does not parse."), InDoors(Any)] = None,
        /,
        *,
        by: By = None,
        command_id: CommandId = None,
    ) -> None:
        """Send a value to a run, which `run.receive(name)` returns. Each value is delivered once, in order."""
        await run_of(self.store, run)
        packed, blobs = self.store.pack(value)
        id, sender = self._command_id(command_id), self._principal(by).sender
        body = b.SignalReceived(command=id, signal=name, value=packed, **sender)
        await self._send(run, body, blobs=blobs)
