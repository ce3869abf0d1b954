"""Notifications of requests and runs: one run of a built-in agent per channel, created in the append they are about.

So nothing is missed, even after a crash, and a notification never delays the run. Runs of built-in agents cause none.
"""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from limpet.engine.execution.execution import Execution
from limpet.engine.execution.kit import NoticeKind
from limpet.engine.execution.principal import sent_by_run
from limpet.events import Lineage, Wait, digest, inline
from limpet.events import bodies as b
from limpet.stores import Create

__all__ = ["AGENT", "BUILT_IN", "NotificationRuns", "notification_runs", "run_notices"]

BUILT_IN = "limpet."
"""Prefix of the names of built-in agents."""
AGENT = f"{BUILT_IN}notify"
# A run that waits for one of these continues only if a person or program outside acts.
OUTSIDE = ("person", "signal", "operator")


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
    for channel, on in x.kit.channels.items():
        if "asks" not in on or x.effects == "stub":  # a fork without live effects notifies no one
            continue
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
            engine=x.kit.engine,
            **sent_by_run(x.run),
        )
        runs.append(Create(run=run, bodies=(created,), actor=x.kit.worker))
    return NotificationRuns(tuple(called), tuple(runs))


def run_notices(x: Execution, agent: str, what: NoticeKind, waits: Sequence[Wait] = ()) -> tuple[Create, ...]:
    """Return runs that tell channels how a run ended, or that it waits for people or programs outside."""
    if not x.kit.channels:
        return ()
    is_told = what != "waits" or any(each.what in OUTSIDE for each in waits)
    if agent.startswith(BUILT_IN) or x.effects == "stub" or not is_told:
        return ()
    return tuple(
        Create(
            run=f"notify-{x.kit.ids.new()}",
            bodies=(
                b.RunCreated(
                    agent=AGENT,
                    agent_version=channel,
                    input=inline({"run": x.run, "what": what, "waits_for": [str(each) for each in waits]}),
                    parent=Lineage(run=x.run, name=f"{what}/notify:{channel}", mode="notify"),
                    engine=x.kit.engine,
                    **sent_by_run(x.run),
                ),
            ),
            actor=x.kit.worker,
        )
        for channel, on in x.kit.channels.items()
        if what in on
    )
