"""Telling people of a request: for each channel a run of a built-in agent, created in the append that asks.

So a request that is in the inbox is told, whatever dies; and telling it never holds up the run that asks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from limpet.engine.execution import Execution
from limpet.events import Lineage, digest, inline
from limpet.events import bodies as b
from limpet.stores import Create

__all__ = ["AGENT", "Notices", "notices"]

AGENT = "limpet.notify"


class Notices(NamedTuple):
    """What goes into the append that asks: that it is told, and the runs that tell it."""

    called: tuple[b.AgentCalled, ...]
    runs: tuple[Create, ...]


def notices(x: Execution, opened: b.RequestOpened, to: Sequence[str], *, round: int = 0) -> Notices:
    """Tell all channels of a request that is for these; `round` counts how often it went on to somebody else."""
    called: list[b.AgentCalled] = []
    runs: list[Create] = []
    for place, channel in enumerate(x.kit.channels):
        told = {"request": opened.request, "channel": channel, "to": list(to)}
        run = f"notify-{opened.request}-{round * len(x.kit.channels) + place + 1}"
        name = f"{opened.name}/notify:{channel}#{round + 1}"
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
    return Notices(tuple(called), tuple(runs))
