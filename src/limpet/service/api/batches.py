"""Send one command to many runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec

from limpet.arguments import checked
from limpet.engine.execution.handle import Handle
from limpet.engine.execution.views import RunInfo
from limpet.errors import InvalidArgument
from limpet.service.api.core import AppCore
from limpet.service.api.run_filters import (
    CreatedBefore,
    CreatedSince,
    WithLabels,
    WithSession,
    WithStatus,
    WithText,
    WithUser,
)
from limpet.service.batch_agent import STATUSES, BatchCommand, batch_agent
from limpet.service.operation import AgentName, By, InDoors, Param, command
from limpet.service.queries import labels_of, statuses_of, time_before
from limpet.stores import RunFilter

if TYPE_CHECKING:
    from limpet.service.app import App

__all__ = ["Batches"]

# Runs that a batch can name.
MOST_NAMED = 1_000


@checked
class Batches(AppCore):
    """Send one command to many runs."""

    topic = "Control runs"

    @command(
        "/batches",
        needs="control",
        result=RunInfo,
        is_destructive=True,
        example="resume --status failed --since 2d",
    )
    async def batch(  # noqa: PLR0913 - all by name, and few at a time
        self,
        command: Annotated[BatchCommand, Param(description="The command to send.", examples=["resume"])],
        /,
        *,
        runs: Annotated[
            Sequence[str],
            Param(description="Only these runs, at most 1,000.", examples=[["ticket-42"]], flag="run"),
            InDoors(list[str]),
        ] = (),
        status: WithStatus = (),
        agent: AgentName = None,
        session: WithSession = None,
        user: WithUser = None,
        labels: WithLabels = (),
        text: WithText = None,
        since: CreatedSince = None,
        until: CreatedBefore = None,
        reason: Annotated[str, Param(description="Reason, which is recorded; `cancel` needs one.")] = "",
        id: Annotated[str | None, Param(description="Run id of the batch. Repeating it starts no second one.")] = None,
        by: By = None,
    ) -> Handle[Any]:
        """Resume, pause or cancel all runs that match a filter, as a run of the built-in agent `limpet.batch`.

        The batch continues after a crash, and can be inspected, paused and resumed like any run. Its output counts the
        runs that matched, that got the command, and that refused it. At least one filter is needed. Without `status`,
        only runs are selected on which the command has an effect. One batch has at most 10,000 runs.
        """
        where = RunFilter(
            status=statuses_of(status),
            agent=agent,
            session=session,
            user=user,
            labels=labels_of(labels),
            created_from=None if since is None else await time_before(self.store, since, "since"),
            created_before=None if until is None else await time_before(self.store, until, "until"),
            text=text,
        )
        if len(runs) > MOST_NAMED:
            raise InvalidArgument(path="runs", reason=f"{len(runs)} runs are too many; name at most {MOST_NAMED:,}")
        if where == RunFilter() and not runs:
            raise InvalidArgument(path="batch", reason="no filter is given", fix="Pass status, agent, since or others.")
        if command == "cancel" and not reason:
            raise InvalidArgument(path="reason", reason="cancel needs one")
        if not where.status:
            where = msgspec.structs.replace(where, status=STATUSES[command])
        who = self._principal(by)
        order = {
            "command": command,
            "where": msgspec.to_builtins(where, enc_hook=str),
            "runs": [*dict.fromkeys(runs)],
            "reason": self.store.redaction.text(reason),
            "by": who.name,
            "via": who.door,
        }
        app = cast("App", self)
        return await app.start(batch_agent(app), order, id=id, by=who)
