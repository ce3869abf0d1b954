"""The engine: connect to Temporal, start and poke the workflows of runs, and work on their tasks."""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import PollerBehaviorSimpleMaximum, UnsandboxedWorkflowRunner, Worker

from limpet.clock import SECOND
from limpet.engine.execution.user_code import wait_within
from limpet.engine.worker.run_host import RunHost
from limpet.errors import EngineUnavailable
from limpet.stores import ReadyRun
from limpet.temporal.activities import Activities
from limpet.temporal.run_workflow import AGENT, POKE, STATUS, WORKFLOW, RunArgs, RunWorkflow
from limpet.temporal.sdk_log import quiet_runtime
from limpet.temporal.temporal_address import TemporalAddress

__all__ = ["TemporalEngine"]

log = logging.getLogger("limpet")

# How long a call may take; a command that was committed does not wait for it.
CALL = timedelta(seconds=10)
# Queues are polled by few connections each, because there is one for each agent and version.
POLLERS = PollerBehaviorSimpleMaximum(maximum=2)
# The id of the code, which is the workflow alone. By default, Temporal hashes all loaded modules, which takes seconds.
BUILD = "limpet-1"
# Longest time for the last tasks of workflows when a worker stops, in microseconds.
LAST_TASKS = 3 * SECOND
# Workflows to wait for at the same time.
WAITING = 20
# Answers that mean that search attributes cannot be listed or added here. After others, such as those of a server that
# is just being stopped, it is asked again.
REFUSALS = (
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ALREADY_EXISTS,
)
# More than the worker itself waits for running effects.
LONGER = timedelta(seconds=3)


class TemporalEngine:
    """Has the runs of one store driven by workflows of one namespace."""

    name = "temporal"

    def __init__(
        self, address: TemporalAddress, *, public_url: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        self.address = address
        self._public_url = public_url.rstrip("/")
        self._environment = os.environ if environment is None else environment
        self._store = ""
        self._connecting: asyncio.Task[Client] | None = None
        self._client: Client | None = None
        self._has_attributes = False

    async def open(self, store: str) -> None:
        """Note the store, whose identity its task queues have. Temporal is called when it is first needed."""
        self._store = store

    async def close(self) -> None:
        """Forget the connection."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._client = None

    # Names

    @property
    def _workflows(self) -> str:
        """Task queue of the workflows, which every worker of the store works on."""
        return f"limpet-{self._store[:8]}"

    def _queue(self, agent: str, version: str) -> str:
        """Task queue of the drives of an agent's version."""
        return f"{self._workflows}:{agent}:{version}"

    @property
    def _task_timeout(self) -> timedelta:
        """Time after which Temporal gives up on a worker that has a task of a workflow, which takes milliseconds."""
        return timedelta(seconds=min(max(self.address.heartbeat, 2), 10))

    # Calls

    async def client(self) -> Client:
        """Return the client, connected. Raises EngineUnavailable. All who wait for a connection share one attempt."""
        if self._client is not None:
            return self._client
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> Client:
        options = self.address.connect_options(self._environment)
        try:
            client = await Client.connect(runtime=quiet_runtime(), **options)
            self._has_attributes = await _has_attributes(client)
        except (RuntimeError, RPCError) as error:
            raise EngineUnavailable(
                engine="Temporal", address=self.address.host, reason=_reason(error, self.address.namespace)
            ) from None
        self._client = client
        return client

    async def wake(self, run: ReadyRun, *, is_missed: bool = False) -> None:
        """Start the workflow of a run, if it does not run, and tell it the position of the log.

        A workflow that has completed is not started again, because a call may come late. But Temporal remembers for
        days the workflow of a run that was deleted since, or of another store: if the sweep has found the run, it is.
        """
        client = await self.client()
        if not run.agent:  # the run is unknown, and only its workflow is left
            with suppress(RPCError):
                await client.get_workflow_handle(run.id).signal(POKE, run.seq, rpc_timeout=CALL)
            return
        policy = WorkflowIDReusePolicy
        reuse = policy.ALLOW_DUPLICATE if is_missed else policy.ALLOW_DUPLICATE_FAILED_ONLY
        try:
            await self._start(client, run, reuse, has_attributes=self._has_attributes)
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT or not self._has_attributes:
                raise
            await self._start(
                client, run, reuse, has_attributes=False
            )  # new attributes are not known everywhere at once

    async def _start(
        self, client: Client, run: ReadyRun, reuse: WorkflowIDReusePolicy, *, has_attributes: bool
    ) -> None:
        queue = self._queue(run.agent, run.version)
        args = RunArgs(run=run.id, queue=queue, heartbeat=self.address.heartbeat, has_attributes=has_attributes)
        pairs = [SearchAttributePair(AGENT, run.agent), SearchAttributePair(STATUS, "running")]
        with suppress(WorkflowAlreadyStartedError):  # it has completed: there is nothing to do
            await client.start_workflow(
                WORKFLOW,
                args,
                id=run.id,
                task_queue=self._workflows,
                task_timeout=self._task_timeout,
                id_reuse_policy=reuse,
                start_signal=POKE,
                start_signal_args=[run.seq],
                memo={"run": run.id, "agent": run.agent, "version": run.version, **self._link(run.id)},
                search_attributes=TypedSearchAttributes(pairs) if has_attributes else None,
                static_summary=f"{run.agent} {run.version}",
                static_details=self._link(run.id).get("link"),
                rpc_timeout=CALL,
            )

    def _link(self, run: str) -> dict[str, str]:
        return {"link": f"{self._public_url}/ui/runs/{run}"} if self._public_url else {}

    async def unfinished(self) -> AsyncIterator[str]:
        """Yield the runs of all workflows that are open."""
        client = await self.client()
        query = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Running' AND TaskQueue = '{self._workflows}'"
        async for found in client.list_workflows(query):
            yield found.id

    # Work

    async def serve(self, host: RunHost) -> None:
        """Work on the tasks of the agents that a host serves, until cancelled."""
        client, activities = await self.client(), Activities(host)
        grace = timedelta(microseconds=host.grace) + LONGER
        workflows = Worker(
            client,
            task_queue=self._workflows,
            workflows=[RunWorkflow],
            activities=[activities.cancel],
            workflow_runner=UnsandboxedWorkflowRunner(),
            # A workflow that is cached in a dead worker waits for seconds; ours are short to replay.
            max_cached_workflows=0,
            no_remote_activities=True,
            identity=host.id,
            build_id=BUILD,
        )
        drives = [
            Worker(
                client,
                task_queue=self._queue(agent, version),
                activities=[activities.drive],
                max_concurrent_activities=host.size,
                activity_task_poller_behavior=POLLERS,
                graceful_shutdown_timeout=grace,
                identity=host.id,
                build_id=BUILD,
            )
            for agent, version in host.serving
        ]
        async with asyncio.TaskGroup() as outer:
            advancing = outer.create_task(workflows.run())
            try:
                async with asyncio.TaskGroup() as inner:
                    for each in drives:
                        inner.create_task(each.run())
            finally:
                if not advancing.done():
                    ending = asyncio.ensure_future(_until_closed(client, activities.just_ended))
                    await wait_within(host.kit.clock, {ending}, LAST_TASKS)
                    ending.cancel()


async def _until_closed(client: Client, runs: Sequence[str]) -> None:
    """Wait until the workflows of runs that have ended are closed."""
    places = asyncio.Semaphore(WAITING)

    async def wait(run: str) -> None:
        async with places:
            with suppress(RPCError, WorkflowFailureError):
                await client.get_workflow_handle(run).result(rpc_timeout=CALL)

    await asyncio.gather(*map(wait, runs))


def _reason(error: Exception, namespace: str) -> str:
    """Return why Temporal cannot be used, in a few words."""
    if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
        return f"there is no namespace {namespace} (`temporal operator namespace create -n {namespace}` makes one)"
    found = re.findall(r'message: "([^"]*)"', str(error))
    return str(found[-1] if found else error).rstrip(".")


async def _has_attributes(client: Client) -> bool:
    """Return whether the namespace has our search attributes; they are added where that is allowed."""
    wanted = (AGENT.name, STATUS.name)
    try:
        asked = ListSearchAttributesRequest(namespace=client.namespace)
        known = (await client.operator_service.list_search_attributes(asked)).custom_attributes
        missing = [name for name in wanted if name not in known]
        if missing:
            kind = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
            added = AddSearchAttributesRequest(
                namespace=client.namespace, search_attributes=dict.fromkeys(missing, kind)
            )
            await client.operator_service.add_search_attributes(added)
    except RPCError as error:
        if error.status not in REFUSALS:
            raise
        log.warning("Temporal: workflows have no search attributes (%s): %s", ", ".join(wanted), error)
        return False
    return True
