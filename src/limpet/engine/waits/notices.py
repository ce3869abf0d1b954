"""Telling people of a request: for each channel a run of a built-in agent, created in the append that asks.

So a request that is in the inbox is told, whatever dies; and telling it never holds up the run that asks.
"""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from limpet.engine.execution.execution import Execution
from limpet.events import Lineage, digest, inline
from limpet.events import bodies as b
from limpet.stores import Create

__all__ = ["AGENT", "NotificationRuns", "notification_runs"]

AGENT = "limpet.notify"


class NotificationRuns(NamedTuple):
    """What goes into the append that asks: that it is told, and the runs that tell it."""

    called: tuple[b.AgentCalled, ...]
    runs: tuple[Create, ...]


def notification_runs(x: Execution, opened: b.RequestOpened, to: Sequence[str]) -> NotificationRuns:
    """Tell all channels of a request that is for these: anew each time, if it went on to somebody else or came back."""
    called: list[b.AgentCalled] = []
    runs: list[Create] = []
    for channel in x.kit.channels if x.effects != "stub" else ():  # who only tries does not disturb anybody
        told = {"request": opened.request, "channel": channel, "to": list(to)}
        names = (f"{opened.name}/notify:{channel}#{time}" for time in count(1))
        name = next(each for each in names if each not in x.history.records)
        run = f"notify-{opened.request}-{channel}-{name.rpartition('#')[2]}"
        called.append(
            b.AgentCalled(name=name, run=run, agent=AGENT, mode="notify", asked=digest(told), agent_version=channel)
        )
        created = b.RunCreated(
            agent=AGENT,
            agent_version=channel,  # so that it is claimed where that channel is known
            input=inline(told),
            parent=Lineage(run=x.run, name=name, mode="notify"),
        )
        runs.append(Create(run=run, bodies=(created,), actor=x.kit.worker))
    return NotificationRuns(tuple(called), tuple(runs))
