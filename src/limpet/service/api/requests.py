"""Decide requests: the inbox, answers, approvals, rejections and standing approvals."""

from collections.abc import Mapping
from typing import Annotated, Any

from limpet.arguments import checked
from limpet.clock import Duration
from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import Request, RunInfo
from limpet.service.access import may
from limpet.service.api.core import AppCore
from limpet.service.inbox import Decided, GrantInfo
from limpet.service.operation import (
    ALL_DOORS,
    Caller,
    CommandId,
    Cursor,
    InDoors,
    Limit,
    Param,
    RequestId,
    RunId,
    command,
    query,
)
from limpet.service.page import Page
from limpet.service.precedents import Precedent, precedents_of
from limpet.service.request_records import RequestRecord, request_record
from limpet.service.resolve import run_of

__all__ = ["Requests"]

By = Annotated[str | Principal, Param(description="Who decides: the name of a person.", examples=["ann"]), InDoors(str)]
GivenRequest = Annotated[
    str | Request, Param(description="Request id.", examples=["01j9x"]), *RequestId.__metadata__[1:], InDoors(str)
]


@checked
class Requests(AppCore):
    """Decide requests."""

    topic = "Decide requests"

    @query("/inbox", needs=("payloads", "decide"), is_large=True, example="--to finance --older-than 2h")
    async def inbox(  # noqa: PLR0913 - all by name, and few at a time
        self,
        *,
        to: Annotated[str | None, Param(description="Only for this person or group.", examples=["finance"])] = None,
        run: Annotated[
            str | None, Param(description="Only this run.", examples=["ticket-42"]), *RunId.__metadata__[1:]
        ] = None,
        risk: Annotated[str | None, Param(description="Only this risk.", examples=["external_action"])] = None,
        older_than: Annotated[
            Duration | None,
            Param(description="Only requests open for this long, such as 1h.", examples=["1h"]),
            InDoors(str | None),
        ] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
        caller: Caller = None,
    ) -> Page[Request]:
        """List the open requests, the oldest first, with their context and the consequence of each answer.

        `to` is a person (including the groups they belong to) or a group. A caller who may only decide requests gets
        those that they are asked.
        """
        names = self._inbox.addressed(to, _limited(caller))
        return await self._inbox.inbox(names, run=run, risk=risk, older_than=older_than, limit=limit, cursor=cursor)

    @query("/requests/{request}", needs=("payloads", "decide"), example="01j9x")
    async def request(self, request: RequestId, /, *, caller: Caller = None) -> RequestRecord:
        """Show one request, open or decided, with its context and who decided it, when, how and why.

        A caller who may only decide requests gets one that they are asked.
        """
        found = await request_record(self.store, request)
        if (only_for := _limited(caller)) is not None:
            self._inbox.check_asked(found, only_for)
        return found

    async def _may_decide(self, request: Request, who: Principal) -> bool:
        """Return whether a caller may decide a request."""
        return await self._inbox.may_decide(request, who)

    @query("/requests/{request}/precedents", needs=("payloads", "decide"), is_large=True, example="01j9x")
    async def precedents(self, request: RequestId, /, *, caller: Caller = None) -> Page[Precedent]:
        """List what followed the call that a request is about in the agent's last 20 runs, the newest first.

        Only the newest 100 steps of each run are read. A request about no call has none.
        """
        found = await self.request(request, caller=caller)
        if found.tool is None:
            return Page([])
        return Page(await precedents_of(self.store, await run_of(self.store, found.run), found.tool))

    @command("/requests/{request}/answer", needs="decide", doors=ALL_DOORS, example="01j9x red")
    async def answer(
        self,
        request: GivenRequest,
        answer: Annotated[object, Param(description="The answer, as JSON."), InDoors(Any)],
        /,
        *,
        by: By,
        command_id: CommandId = None,
    ) -> Decided:
        """Answer a request. The answer must match what the request asks for. The first answer is final."""
        return await self._inbox.answer(request, answer, self._principal(by), self._command_id(command_id))

    @command(
        "/requests/{request}/approve",
        needs="decide",
        doors=ALL_DOORS,
        example="""01j9x --args '{"cents": 900}'""",
    )
    async def approve(
        self,
        request: GivenRequest,
        /,
        *,
        by: By,
        args: Annotated[
            Mapping[str, Any] | None,
            Param(description="Arguments of the tool to replace.", examples=[{"cents": 900}]),
            InDoors(dict[str, Any] | None),
        ] = None,
        standing: Annotated[
            bool, Param(description="Also approve further calls of this tool in this run, until revoked.")
        ] = False,
        command_id: CommandId = None,
    ) -> Decided:
        """Approve a request, once: a tool call, or a yes-or-no question."""
        who, id = self._principal(by), self._command_id(command_id)
        return await self._inbox.approve(request, who, id, args, standing=standing)

    @command(
        "/requests/{request}/reject",
        needs="decide",
        doors=ALL_DOORS,
        example='01j9x --because "too much for one day"',
    )
    async def reject(
        self,
        request: GivenRequest,
        /,
        *,
        by: By,
        because: Annotated[str, Param(description="Reason, which the agent receives.")],
        command_id: CommandId = None,
    ) -> Decided:
        """Reject a request, with a reason."""
        return await self._inbox.reject(request, self._principal(by), self._command_id(command_id), because)

    @query("/runs/{run}/grants", needs="look", example="ticket-42")
    async def grants(self, run: RunId, /) -> Page[GrantInfo]:
        """List the standing approvals of a run."""
        return Page(await self._inbox.grants(run))

    @command("/runs/{run}/grants", needs="maintain", example="ticket-42 --tool refund")
    async def grant(
        self,
        run: RunId,
        /,
        *,
        tool: Annotated[str | None, Param(description="Approve all calls of this tool.", examples=["refund"])] = None,
        risk: Annotated[
            str | None, Param(description="Approve all tools with this risk.", examples=["external_action"])
        ] = None,
        by: By,
        command_id: CommandId = None,
    ) -> GrantInfo:
        """Approve all further calls of a tool, or of tools with a risk, in a run, until revoked.

        A call that waits for an approval already still needs its own. Pass either `tool` or `risk`.
        """
        return await self._inbox.grant(run, self._principal(by), self._command_id(command_id), tool, risk)

    @command("/runs/{run}/grants/{grant}/revoke", needs="maintain", result=RunInfo, example="ticket-42 01j9y")
    async def revoke(
        self,
        run: RunId,
        grant: Annotated[str, Param(description="Id of the standing approval, from `grants`.", examples=["01j9y"])],
        /,
        *,
        by: By,
        because: Annotated[str, Param(description="Reason, which is recorded.")] = "",
        command_id: CommandId = None,
    ) -> None:
        """Revoke a standing approval: the next call of its tool asks again."""
        await self._inbox.revoke(run, grant, self._principal(by), self._command_id(command_id), because)


def _limited(caller: Principal | None) -> Principal | None:
    """Return a caller who sees only requests that they are asked; None for one who sees all."""
    return None if caller is None or may(caller, "payloads") else caller
