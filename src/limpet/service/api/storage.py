"""Maintain the store: verify, export, load, prune."""

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from limpet.arguments import checked
from limpet.clock import Duration
from limpet.engine.definitions.agents import Agent, check_agent
from limpet.engine.execution.handle import Handle
from limpet.policy.retention import KeepRule
from limpet.service.api.core import AppCore
from limpet.service.archives import MAX_BYTES
from limpet.service.bundles import export_run, load_run
from limpet.service.files import file_errors, new_file
from limpet.service.operation import By, InDoors, Param, RunId, command, query
from limpet.service.prune import Pruned, prune, rotate
from limpet.service.task_import import ImportedTasks, Importer, Running
from limpet.service.verify import Verified, save_heads, verify_all, verify_one

__all__ = ["Storage"]


@checked
class Storage(AppCore):
    """Maintain the store."""

    topic = "Maintain the store"

    @query("/runs/{run}/verify", needs="look", is_large=True, example="ticket-42")
    async def verify(
        self,
        run: Annotated[
            str | None, Param(description="Only this run.", examples=["ticket-42"]), *RunId.__metadata__[1:]
        ] = None,
        /,
        *,
        heads: Annotated[str | Path | None, InDoors(None)] = None,
        pruned: Annotated[str | Path | None, InDoors(None)] = None,
    ) -> Verified:
        """Check the hashes of one run or of all, and the rows derived from their logs. Raises Tampered.

        `heads` is a file that `save_heads` wrote: each log must still contain the head that is recorded there. `pruned`
        is the list in an archive of runs that `prune` deleted since then.
        """
        if run is not None:
            return await verify_one(self.store, run)
        with (
            nullcontext() if heads is None else file_errors(heads) as kept,
            nullcontext() if pruned is None else file_errors(pruned) as gone,
        ):
            return await verify_all(self.store, kept, pruned=gone)

    async def save_heads(self, path: str | Path, /) -> int:
        """Write the head of every log to a file, and return their number. Store it elsewhere, and pass it to
        `verify(heads=...)`.
        """
        with file_errors(path) as file:
            return await save_heads(self.store, file)

    async def export(self, run: str, path: str | Path, /, *, with_handoffs: bool = False, by: By = None) -> None:
        """Write a run to a file that people can read, and that `load` imports into another store.

        With handoffs, the file includes the runs that it called or handed over to, and that these called. The audit log
        records the export before the file is there.
        """
        with new_file(path) as file:
            await export_run(self.store, run, file, with_handoffs=with_handoffs)
            await self._record_export("run.exported", run, by)

    async def load(self, path: str | Path, /, *, max_bytes: int = MAX_BYTES) -> Handle[Any]:
        """Import a run from a file. A run that has not ended continues when it is resumed.

        The file is read into memory as a whole: one that would unpack to more than `max_bytes` (1 GiB) is rejected.
        """
        with file_errors(path) as file:
            row = await load_run(self.store, file, self._actor, max_bytes)
        return Handle(self._port, row.id, self._find_code(row.agent, row.agent_version))

    async def import_tasks(
        self, source: str | Path, /, *, agent: Agent[Any, Any] | str, running: Running = "pending", by: By = None
    ) -> ImportedTasks:
        """Turn the tasks of another program into runs of an agent.

        `source` is a `tasks.json` (an object of tasks by id, or a list), a SQLite file or a database URL with a table
        `agent_tasks`. Each task has `id`, `user_input`, `state`, `result`, `error`, `created_at` and `updated_at`. A
        pending task becomes a run that a worker does, a completed or failed one a run with its result or error. One
        that was running starts again, or with `running="failed"` becomes a failed run. All tasks are checked before one
        is written; importing again changes nothing. Raises InvalidTasks.
        """
        self._check_open()
        if isinstance(agent, str):
            known = self._agents.get(agent) or await self._find_agent(agent)
        else:
            check_agent(agent)
            known = agent
        engine = "" if self._settings.engine is None else self._settings.engine.name
        importer = Importer(self.store, known, running=running, sender=self._principal(by).sender, engine=engine)
        with file_errors(source):
            done = await importer.run(source)
        if self._worker_loop is not None:
            self._worker_loop.wake()
        return done

    @command("/prune", needs="maintain", is_large=True, is_destructive=True, example="--older-than 30d")
    async def prune(
        self,
        *,
        older_than: Annotated[
            Duration, Param(description="Age since the end of a run, such as 30d.", examples=["30d"]), InDoors(str)
        ],
        dry_run: Annotated[bool, Param(description="Only report what would be deleted.")] = True,
        by_status: Annotated[
            Mapping[str, Duration | None] | None,
            Param(description="Another age by status; null keeps them.", examples=[{"failed": "90d"}]),
            InDoors(dict[str, str | None] | None),
        ] = None,
        by_agent: Annotated[
            Mapping[str, Duration | None] | None,
            Param(description="Another age by agent; null keeps them."),
            InDoors(dict[str, str | None] | None),
        ] = None,
        archive: Annotated[str | Path | None, InDoors(None)] = None,
        snapshots: Annotated[int | None, Param(ge=1, description="Number of snapshots to keep per run.")] = None,
    ) -> Pruned:
        """Delete runs that ended longer ago than `older_than`. With `dry_run`, only report them.

        `by_status` and `by_agent` set another age for some runs; None keeps them forever. Runs that belong together (a
        fork and its origin, a caller and the runs it called) are deleted together or not at all. With `archive`, a
        folder, each run is exported there first. `snapshots` is the number of snapshots to keep per run.
        """
        if archive is not None and not dry_run:
            with file_errors(archive) as folder:
                await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            await self._record_export("runs.archived", "", None)
        rule = KeepRule(older_than=older_than, by_status=by_status, by_agent=by_agent)
        with nullcontext() if archive is None else file_errors(archive) as folder:
            done = await prune(self.store, rule, dry_run=dry_run, archive=folder)
        if snapshots is not None and not dry_run:
            done.snapshots = await rotate(self.store, keep=snapshots, older_than=older_than)
        return done
