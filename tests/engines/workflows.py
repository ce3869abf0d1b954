"""Look at the workflows of runs in Temporal."""

from collections.abc import Iterable

from temporalio.client import Client, WorkflowExecutionStatus

from limpet.clock import SECOND, SystemClock
from tests.servers.temporal import TemporalServer

__all__ = ["check_workflows", "open_workflows"]

# Events in the history of one execution of a workflow, at most.
LONGEST_HISTORY = 200
LOOK = SECOND // 20


async def open_workflows(client: Client) -> list[str]:
    """Return the ids of the workflows that run."""
    return [each.id async for each in client.list_workflows("ExecutionStatus = 'Running'")]


async def check_workflows(server: TemporalServer, runs: Iterable[str]) -> None:
    """Wait until no workflow of these runs is open, and assert that each had one with a short history."""
    client = await Client.connect(server.host)
    for run in runs:
        handle = client.get_workflow_handle(run)
        while (found := await handle.describe()).status is WorkflowExecutionStatus.RUNNING:
            await SystemClock().sleep(LOOK)
        assert found.history_length <= LONGEST_HISTORY, f"{run} has {found.history_length} events"
    async for each in client.list_workflows():
        assert each.history_length <= LONGEST_HISTORY, f"{each.id} has {each.history_length} events"
