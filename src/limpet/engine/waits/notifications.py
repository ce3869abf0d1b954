"""Notifications of requests: one run of a built-in agent per channel, created in the append that opens the request.

So every request in the inbox is notified, even after a crash, and a notification never delays the asking run.
"""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from limpet.engine.execution.execution import Execution
from limpet.engine.execution.principal import sent_by_run
from limpet.events import Lineage, digest, inline
from limpet.events import bodies as b
from limpet.stores import Create

__all__ = ["AGENT", "NotificationRuns", "notification_runs"]

AGENT = "limpet.notify"


class NotificationRuns(NamedTuple):
    """Events and runs for the append that opens a request."""

    called: tuple[b.AgentCalled, ...]
    runs: tuple[Create, ...]


def notification_runs(x: Execution, opened: b.RequestOpened, to: Sequence[str]) -> NotificationRuns:
    """Return the notifications of a request for these people, one per channel.

    Each escalation or reopening gets new ones.
    """
    called: list[b.AgentCalled] = []
    runs: list[Create] = []
    for channel in x.kit.channels if x.effects != "stub" else ():  # a fork without live effects notifies no one
        input = {"request": opened.request, "channel": channel, "to": list(to)}
        names = (f"{opened.name}/notify:{channel}#{time}" for time in count(1))
        name = next(each for each in names if each not in x.history.records)
        run = f"notify-{opened.request}-{channel}-{name.rpartition('#')[2]}"
        called.append(
            b.AgentCalled(name=name, run=run, agent=AGENT, mode="notify", asked=digest(input), agent_version=channel)
        )
        created = b.RunCreated(
            agent=AGENT,
            agent_version=channel,  # so that a worker that knows the channel claims the run
            input=inline(input),
            parent=Lineage(run=x.run, name=name, mode="notify"),
            **sent_by_run(x.run),
        )
        runs.append(Create(run=run, bodies=(created,), actor=x.kit.worker))
    return NotificationRuns(tuple(called), tuple(runs))
