"""Score runs and steps, and list the scores."""

from typing import Annotated, Any

from limpet.arguments import checked
from limpet.engine.execution.views import RunInfo
from limpet.errors import InvalidArgument, NotFound
from limpet.events import bodies as b
from limpet.service.api.core import AppCore
from limpet.service.operation import (
    MAX_INTEGER,
    AgentName,
    By,
    CommandId,
    Cursor,
    InDoors,
    Last,
    Param,
    Resource,
    RunId,
    Since,
    command,
    query,
)
from limpet.service.page import Page
from limpet.service.queries import check_last, time_before
from limpet.service.resolve import run_of
from limpet.service.scores import ScoreInfo, check_value, read_score, score_page
from limpet.stores import ScoreFilter

__all__ = ["Scoring"]

ScoreName = Annotated[str, Param(description="Name of the score.", examples=["quality"])]
ScoredStep = Annotated[
    int | None,
    Param(ge=1, le=MAX_INTEGER, description="The step that it is about. Default: the run.", examples=[6]),
]


@checked
class Scoring(AppCore):
    """Score runs."""

    topic = "Score runs"

    @command(
        "/runs/{run}/scores",
        needs=("control", "decide"),
        example='ticket-42 quality 0.2 --comment "refunded the wrong order"',
    )
    async def score(  # noqa: PLR0913 - most by name, and few at a time
        self,
        run: RunId,
        name: ScoreName,
        value: Annotated[
            object,
            Param(description="A number, true, false or a category; text if it is no JSON.", examples=[0.2]),
            InDoors(Any),
        ] = None,
        /,
        *,
        comment: Annotated[str, Param(description="Comment. Value, comment or both are needed.")] = "",
        step: ScoredStep = None,
        by: By = None,
        command_id: CommandId = None,
    ) -> ScoreInfo:
        """Say how good a run was, or one of its steps, in any status.

        A later score of the same name, person and step replaces the earlier one; the log keeps both. The agent does not
        see scores, and a score neither wakes nor changes a run.
        """
        row, given = await run_of(self.store, run), check_value(value)
        if not name.strip():
            raise InvalidArgument(path="name", reason="is empty; pass a name such as quality")
        if given is None and not comment:
            raise InvalidArgument(path="value", reason="is missing, and so is the comment; pass one of them, or both")
        redaction, sender = self.store.redaction, self._principal(by).sender
        body = b.ScoreGiven(
            command=self._command_id(command_id),
            score=name,
            number=step,
            value=redaction.text(given) if isinstance(given, str) else given,
            comment=redaction.text(comment),
            **sender,
        )
        self._check_open()
        head = await self.store.send_commands(run, body, actor=self._actor)
        return await read_score(self.store, row, head.seq)

    @command("/runs/{run}/scores/withdraw", needs=("control", "decide"), result=RunInfo, example="ticket-42 quality")
    async def unscore(
        self,
        run: RunId,
        name: ScoreName,
        /,
        *,
        step: ScoredStep = None,
        by: By = None,
        command_id: CommandId = None,
    ) -> None:
        """Withdraw your own score of a run or step. The log keeps it; lists and filters do not."""
        await run_of(self.store, run)
        id, sender = self._command_id(command_id), self._principal(by).sender
        where = ScoreFilter(run=run, name=name, by=sender["by"], step=step or 0)
        if not await self.store.scores(where, limit=1) and not await self.store.has_command(run, id):
            fix = "Only your own scores can be withdrawn. `limpet scores --run` lists those of a run."
            raise NotFound(what="score", id=name, fix=fix)
        self._check_open()
        body = b.ScoreWithdrawn(command=id, score=name, number=step, **sender)
        await self.store.send_commands(run, body, actor=self._actor)

    @query("/scores", needs="payloads", is_large=True, example="--name quality --since 7d")
    async def scores(  # noqa: PLR0913 - all by name, and few at a time
        self,
        *,
        run: Annotated[str | None, Param(description="Only this run.", examples=["ticket-42"]), Resource("run")] = None,
        name: Annotated[str | None, Param(description="Only scores of this name.", examples=["quality"])] = None,
        who: Annotated[str | None, Param(description="Only by this person or service.", examples=["ann"])] = None,
        agent: AgentName = None,
        since: Since = None,
        dataset: Annotated[
            bool, Param(description="Include the input and output of each run or step, as an evaluation needs them.")
        ] = False,
        last: Last = 50,
        cursor: Cursor = None,
    ) -> Page[ScoreInfo]:
        """List the scores of runs and steps, the newest first: the current one of each name, person and step."""
        check_last(last)
        if run is not None:
            await run_of(self.store, run)
        start = None if since is None else await time_before(self.store, since, "since")
        where = ScoreFilter(run=run, name=name, by=who, time_from=start)
        return await score_page(self.store, where, last, cursor, agent=agent, dataset=dataset)
