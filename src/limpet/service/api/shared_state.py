"""Shared records: read and patch them, and see who changed what."""

from collections.abc import Mapping
from typing import Annotated, TypedDict, Unpack

from limpet.arguments import checked
from limpet.engine.run.shared_records import RecordChange, SharedRecord, patch_to_write, shown_record
from limpet.events import bodies as b
from limpet.journal import conflict_of, read_record, record_id
from limpet.service.api.control import Named, Texts
from limpet.service.api.core import AppCore
from limpet.service.operation import (
    ALL_DOORS,
    MAX_INTEGER,
    By,
    CommandId,
    Cursor,
    InDoors,
    Last,
    Limit,
    Param,
    command,
    query,
)
from limpet.service.page import Page, number_of
from limpet.service.queries import check_last
from limpet.service.records import RecordInfo, RecordUpdate, record_changes, record_row, records_page
from limpet.stores import Appended, Missed, SendCommands

__all__ = ["SharedState"]

RecordName = Annotated[str, Param(description="Name of the record.", examples=["board"])]
Version = Annotated[int | None, Param(ge=1, le=MAX_INTEGER, description="At this version. Default: the newest.")]
NamedTexts = Annotated[Mapping[str, str] | None, InDoors(dict[str, str] | None)]


class RecordParams(TypedDict, total=False):
    """Parts of a patch of a record."""

    facts: Annotated[Named, Param(description="Facts to add or replace, by key.", examples=[{"owner": "ann"}])]
    retract: Annotated[Texts, Param(description="Keys of facts to remove.")]
    source: Annotated[str | None, Param(description="Source of the facts.")]
    derived_from: Annotated[Texts, Param(description="Keys of facts that these were derived from.")]
    plan: Annotated[Texts, Param(description="New plan. Items that stay keep their status.")]
    revise: Annotated[NamedTexts, Param(description="New status of items: pending, doing, done or skipped.")]
    questions: Annotated[NamedTexts, Param(description="Questions to ask, by an id of your own.")]
    answered: Annotated[NamedTexts, Param(description="Answers, by the id of the question.")]
    close: Annotated[Texts, Param(description="Ids of questions to remove.")]
    data: Annotated[Named, Param(description="Values to set, by key.")]
    unset: Annotated[Texts, Param(description="Keys to remove from the data.")]


@checked
class SharedState(AppCore):
    """Shared records."""

    topic = "Shared records"

    @query("/records", needs="look")
    async def records(self, *, last: Last = 100, cursor: Cursor = None) -> Page[RecordInfo]:
        """List the newest shared records."""
        check_last(last)
        return await records_page(self.store, last, cursor)

    @query("/records/{record}", needs=("payloads", "write"), example="board --version 3")
    async def record(self, record: RecordName, /, *, version: Version = None) -> SharedRecord:
        """Return a shared record: its facts with their writers, questions, plan and data."""
        await record_row(self.store, record)
        return shown_record(record, await read_record(self.store, record, version))

    @query("/records/{record}/changes", needs=("payloads", "write"), is_large=True, example="board --since 3")
    async def record_changes(
        self,
        record: RecordName,
        /,
        *,
        since: Annotated[int, Param(ge=0, le=MAX_INTEGER, description="Only after this version.", examples=[3])] = 0,
        until: Annotated[int | None, Param(ge=1, le=MAX_INTEGER, description="Only up to this version.")] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Page[RecordUpdate]:
        """List the patches of a shared record in order: who changed what, from which value to which."""
        check_last(limit, "limit")
        return await record_changes(self.store, record, max(since, number_of(cursor) or 0), until, limit)

    @command(
        "/records/{record}/patch",
        needs="write",
        doors=ALL_DOORS,
        example="""board --read 3 --facts '{"owner": "ann"}'""",
    )
    async def patch_record(
        self,
        record: RecordName,
        /,
        *,
        read: Annotated[
            int, Param(ge=0, le=MAX_INTEGER, description="The version that you have read; 0 for a new record.")
        ],
        by: By = None,
        command_id: CommandId = None,
        **change: Unpack[RecordParams],
    ) -> SharedRecord:
        """Patch a shared record that you have read, and return it.

        Changes of other facts, questions and keys that others made since then are kept. It is refused if they changed
        one that you change, too, or the plan if you change it: then read the record again, and decide again.
        """
        who, id = self._principal(by), self._command_id(command_id)
        wanted: RecordChange = {name: each for name, each in change.items() if each is not None}  # type: ignore[assignment]
        if read:
            await record_row(self.store, record)
        patch = await patch_to_write(self.store, record, read, wanted, command=id)
        body = b.RecordPatched(command=id, read=read, patch=patch, **who.sender)
        leg = SendCommands(run=record_id(record), bodies=(body,), actor=self._actor)
        self._check_open()
        done = await self.store.append(leg)
        if isinstance(done, Missed):
            raise await conflict_of(self.store, record, body, done)
        assert isinstance(done, Appended)
        assert done.heads[0] is not None
        return shown_record(record, await read_record(self.store, record, done.heads[0].seq))
