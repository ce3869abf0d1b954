"""Read the audit log, and export it."""

from pathlib import Path
from typing import Annotated

from limpet.arguments import checked
from limpet.service.api.core import AppCore
from limpet.service.audit import AuditFilter, AuditInfo, audit_page, export_audit
from limpet.service.files import new_file
from limpet.service.operation import ALL_DOORS, By, Cursor, Limit, Param, Since, query
from limpet.service.page import Page
from limpet.service.queries import time_before

__all__ = ["Auditing"]


@checked
class Auditing(AppCore):
    """Read the audit log."""

    topic = "Audit"

    @query("/audit", needs="audit", doors=ALL_DOORS - {"mcp"}, example="--who ann --since 7d")
    async def audit(
        self,
        *,
        who: Annotated[str | None, Param(description="Only this caller.", examples=["ann"])] = None,
        action: Annotated[
            str | None, Param(description="Only this operation or action.", examples=["token.created"])
        ] = None,
        outcome: Annotated[
            str | None, Param(description="Only `done`, or this error code.", examples=["not_permitted"])
        ] = None,
        since: Since = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Page[AuditInfo]:
        """List what callers did, and what they were refused, the newest first.

        A page of a long log may be short, or empty, and still have a `next`: about 20,000 events are examined for one.
        """
        start = 0 if since is None else await time_before(self.store, since, "since")
        where = AuditFilter(who, action, outcome, start)
        return await audit_page(self.store, where, limit=limit, cursor=cursor)

    async def export_audit(self, path: str | Path, /, *, by: By = None) -> int:
        """Write the whole audit log to a file, as JSON lines with their hashes, and return the number of events.

        The audit log records the export before the file is there.
        """
        with new_file(path) as file:
            done = await export_audit(self.store, file)
            await self._record_export("audit.exported", "", by)
        return done.events
