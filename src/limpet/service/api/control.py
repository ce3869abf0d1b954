"""Control runs: resume, extend, pause, cancel, move, signal, patch."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypedDict, Unpack

from msgspec.structs import asdict

from limpet.arguments import checked
from limpet.clock import Duration
from limpet.engine.definitions.agents import Budget, limits_of
from limpet.engine.execution.handle import Handle
from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import RunInfo
from limpet.engine.run.sent_patch import patch_to_send
from limpet.errors import InvalidArgument, StoreBusy
from limpet.events import Limits
from limpet.events import bodies as b
from limpet.service.api.core import AppCore
from limpet.service.extend import RunExtension, budget_request, plan_extension
from limpet.service.operation import ALL_DOORS, MAX_INTEGER, By, CommandId, InDoors, Param, RunId, command
from limpet.service.resolve import run_of
from limpet.state.fold import BUILT_IN
from limpet.stores import ReadyRun, RunRow

__all__ = ["Control"]

# How often a patch is checked again because its run went on meanwhile.
CHECKS = 50
Texts = Annotated[Sequence[str] | None, InDoors(list[str] | None)]
Named = Annotated[Mapping[str, Any] | None, InDoors(dict[str, Any] | None)]


class PatchParams(TypedDict, total=False):
    """Parts of a patch that may come from outside."""

    goal: Annotated[str | None, Param(description="New goal.")]
    facts: Annotated[Named, Param(description="Facts to add or replace, by key.", examples=[{"cents": 900}])]
    retract: Annotated[Texts, Param(description="Keys of facts to remove.")]
    source: Annotated[str | None, Param(description="Source of the facts. Default: the sender.")]
    derived_from: Annotated[Texts, Param(description="Keys of facts that these were derived from.")]
    plan: Annotated[Texts, Param(description="New plan. Items that stay keep their status.")]
    questions: Annotated[Texts, Param(description="Questions to add.")]
    answered: Annotated[
        Mapping[str, str] | None, Param(description="Answers to open questions."), InDoors(dict[str, str] | None)
    ]
    flags: Annotated[Texts, Param(description="Risk flags to add.")]
    lower: Annotated[Texts, Param(description="Risk flags to remove.")]


@checked
class Control(AppCore):
    """Control runs."""

    topic = "Control runs"

    @command("/runs/{run}/resume", needs="control", doors=ALL_DOORS, result=RunInfo, example="ticket-42")
    async def resume(self, run: RunId, /, *, by: By = None, command_id: CommandId = None) -> Handle[Any]:
        """Resume a paused run, or a failed one from its failed step. A completed run is left unchanged."""
        row = await run_of(self.store, run)
        if row.status != "completed":
            sender = self._principal(by).sender
            await self._send(run, b.ResumeRequested(command=self._command_id(command_id), **sender))
        return Handle(self._port, run, self._find_code(row.agent, row.agent_version))

    @command(
        "/runs/{run}/extend",
        needs="control",
        doors=ALL_DOORS,
        result=RunInfo,
        example="ticket-42 --budget max_steps=40 --deadline 2h",
    )
    async def extend(
        self,
        run: RunId,
        /,
        *,
        budget: Annotated[
            Budget | Mapping[str, Any] | None,
            Param(description="New limits: max_steps, max_cost, ….", examples=[{"max_steps": 40}]),
            InDoors(dict[str, int | float | str] | None),
        ] = None,
        deadline: Annotated[
            datetime | Duration | None,
            Param(description="New deadline: 2h from now, or a time.", examples=["2h"]),
            InDoors(str | None),
        ] = None,
        because: Annotated[str, Param(description="Reason, which is recorded.")] = "",
        by: By = None,
        command_id: CommandId = None,
    ) -> None:
        """Raise limits of a run's budget, or move its deadline to a later time.

        A run that failed on its budget or deadline continues when it is resumed afterwards. `budget` has the new
        limits, not what is added to them; the other limits stay. `deadline` is a time, or a duration from now; runs
        that this one called, and that have the same deadline, get the new one too. If the run asks for a larger budget,
        this answers its request.
        """
        await run_of(self.store, run)
        if budget is None and deadline is None:
            raise InvalidArgument(path="budget", reason="pass budget=, deadline= or both")
        who, id = self._principal(by), self._command_id(command_id)
        limits = None if budget is None else limits_of(budget)
        until = None if deadline is None else await self._time_of(deadline, "deadline")
        self._check_open()
        if limits is not None and await self._answer_with(run, limits, who, f"{id}:request"):
            limits = None
        if limits is not None or until is not None:
            wanted = RunExtension(limits, until, self.store.redaction.text(because), who, id)
            await self.store.append(*await plan_extension(self.store, run, wanted, self._actor))
        if self._worker_loop is not None:
            self._worker_loop.wake()

    async def _answer_with(self, run: str, limits: Limits, who: Principal, id: str) -> bool:
        """Answer the run's open request for a larger budget. Returns whether there is one, or this already did."""
        request = await budget_request(self.store, run)
        if request is None:
            return await self.store.has_command(run, id)
        given = {name: value for name, value in asdict(limits).items() if value is not None and name != "exhausted"}
        await self._inbox.answer(request, given, who, id)
        return True

    @command("/runs/{run}/pause", needs="control", doors=ALL_DOORS, result=RunInfo, example="ticket-42")
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
        needs="control",
        doors=ALL_DOORS,
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

    @command("/runs/{run}/move", needs="maintain", result=RunInfo, example="ticket-42 --engine temporal")
    async def move(
        self,
        run: RunId,
        /,
        *,
        engine: Annotated[
            str, Param(description="`temporal`, or `builtin` for the workers of Limpet.", examples=["temporal"])
        ],
        by: By = None,
        command_id: CommandId = None,
    ) -> None:
        """Let another engine have a run driven from now on: `temporal`, or `builtin` for the workers of Limpet.

        No worker may hold the run: it waits, is paused, has not started, or has failed. Runs that it called stay where
        they are. Raises InvalidArgument for an engine that no live worker serves.
        """
        row, own = await run_of(self.store, run), self._settings.engine
        known = {BUILT_IN, *(each for each in (await self._live_workers()).engines if each)}
        if own is not None:
            known.add(own.name)
        if engine not in known:
            reason = f"no live worker drives runs of {engine!r}; known: {', '.join(sorted(known))}"
            raise InvalidArgument(path="engine", reason=reason)
        name = "" if engine == BUILT_IN else engine
        id, sender = self._command_id(command_id), self._principal(by).sender
        if row.engine != name or await self.store.has_command(run, id):
            await self._send(run, b.RunMoved(command=id, engine=engine, **sender))
            await self._tell_of_move(row)

    async def _tell_of_move(self, before: RunRow) -> None:
        """Tell the engine of this app that a run has come to it, or has left it."""
        row = await self.store.get(before.id)
        own = self._settings.engine
        if self._wake_calls is not None and own is not None and own.name in (row.engine, before.engine):
            await self._wake_calls.call(ReadyRun(row.id, row.agent, row.agent_version, row.seq, own.name))

    @command(
        "/runs/{run}/patch",
        needs="control",
        doors=ALL_DOORS,
        result=RunInfo,
        is_idempotent=False,
        example="""ticket-42 --facts '{"cents": 900}'""",
    )
    async def patch(
        self,
        run: RunId,
        /,
        *,
        seq: Annotated[
            int | None,
            Param(
                ge=1,
                le=MAX_INTEGER,
                description="Event at which you read the state: `seq` of `state`. Refused if what it touches changed.",
            ),
        ] = None,
        by: By = None,
        command_id: CommandId = None,
        **change: Unpack[PatchParams],
    ) -> None:
        """Send a patch of the working state to a run, which applies it at its next turn.

        The agent must use `run.turns`, as LLM agents do; the patch waits until then. Statuses of plan items, the budget
        and constraints cannot be patched from outside; `extend` raises a budget.

        With `seq`, the patch is refused (PatchOutdated) if the run, or another patch that it has received, has changed
        since that event what this one touches: the goal, the plan, a fact, a question or a flag.
        """
        await run_of(self.store, run)
        who, id = self._principal(by), self._command_id(command_id)
        if command_id is not None and await self.store.has_command(run, id):
            return None  # The command is repeated.
        source = who.name or "outside"
        for _ in range(CHECKS):
            found = await patch_to_send(self.store, run, change, source=source, read_at=seq)
            body = b.PatchReceived(command=id, patch=found.patch, **who.sender)
            if seq is None:
                return await self._send(run, body)
            self._check_open()
            if await self.store.send_checked(run, body, actor=self._actor, seq=found.seq):
                if self._worker_loop is not None:
                    self._worker_loop.wake()
                return None
        raise StoreBusy(reason=f"the log of {run} grew {CHECKS} times while a patch of it was checked")

    @command(
        "/runs/{run}/signals/{name}",
        needs="control",
        doors=ALL_DOORS,
        result=RunInfo,
        is_idempotent=False,
        example="""ticket-42 paid '{"cents": 900}'""",
    )
    async def signal(
        self,
        run: RunId,
        name: Annotated[str, Param(description="Name of the signal.", examples=["paid"], is_free_text=True)],
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
