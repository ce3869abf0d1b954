"""Activity: how the newest runs went, over time and by agent. Only their rows are read."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from math import ceil

from limpet.service.batch_agent import OWN
from limpet.service.resolve import each_run
from limpet.stores import RequestFilter, RunFilter, RunRow, Store
from limpet.stores.api.base import LARGEST_PAGE
from limpet.times import to_datetime, to_datetime_or_none
from limpet.view import View

__all__ = ["Activity", "ActivityPeriod", "AgentActivity", "activity_of"]

# Maximum number of periods, and their possible lengths, in seconds.
PERIODS = 48
LENGTHS = (10, 60, 300, 900, 3600, 21_600, 86_400, 604_800)
# Open requests whose age is looked at, the oldest first.
REQUESTS = 1000
SECOND = 1_000_000


class ActivityPeriod(View, frozen=True, kw_only=True):
    """Runs of a period."""

    start: datetime
    """Start of the period, which lasts until the next one starts."""
    created: int
    """Number of runs that were created."""
    completed: int
    """Number of runs that completed."""
    failed: int
    """Number of runs that failed."""
    waiting_since: datetime | None
    """Since when the oldest request that was opened in the period, and is still open, waits."""


class AgentActivity(View, frozen=True, kw_only=True):
    """Runs of one agent."""

    agent: str
    """Name of the agent."""
    versions: tuple[str, ...]
    """Versions, the newest run's first."""
    runs: int
    """Number of runs."""
    completed: int
    """Number that completed."""
    failed: int
    """Number that failed."""
    cancelled: int
    """Number that were cancelled."""
    success: float | None
    """Share of the runs that completed, of those that completed or failed; null for none."""
    median_seconds: float | None
    """Median time from creation to end, of the runs that ended, waiting included."""
    p95_seconds: float | None
    """Time that 95 % of the runs that ended did not exceed."""
    median_cost: float
    """Median cost."""
    p95_cost: float
    """Cost that 95 % of the runs did not exceed."""
    cost: float
    """Cost of all of them."""


class Activity(View, frozen=True, kw_only=True):
    """How the newest runs went."""

    runs: int
    """Number of runs that were counted."""
    ended: int
    """Number of them that ended."""
    failed: int
    """Number of them that failed."""
    cost: float
    """Cost of all of them."""
    since: datetime | None
    """When the oldest of them was created."""
    period_seconds: int
    """Length of a period."""
    periods: tuple[ActivityPeriod, ...]
    """The periods since then, the newest 48 at most."""
    oldest_request: datetime | None
    """Since when the oldest open request waits."""
    median_request: datetime | None
    """Since when the median open request waits."""
    agents: tuple[AgentActivity, ...]
    """By agent; the one with the most runs is first."""


async def activity_of(store: Store, last: int, agent: str | None, end: int) -> Activity:
    """Return how the newest runs before a time went, without those of built-in agents."""
    rows: list[RunRow] = []
    async for row in each_run(store, RunFilter(agent=agent, created_before=end + 1), page=min(last, LARGEST_PAGE)):
        if not row.agent.startswith(OWN):
            rows.append(row)
        if len(rows) == last:
            break
    opened = sorted(each.opened for each in await store.requests(RequestFilter(), limit=REQUESTS))
    ended = [row for row in rows if row.ended is not None]
    since = min((row.created for row in rows), default=None)
    covered = (end - (since or end)) / SECOND
    length = next((each for each in LENGTHS if covered <= each * (PERIODS - 1)), LENGTHS[-1])
    return Activity(
        runs=len(rows),
        ended=len(ended),
        failed=sum(row.status == "failed" for row in rows),
        cost=sum(row.cost for row in rows),
        since=to_datetime_or_none(since),
        period_seconds=length,
        periods=() if since is None else _periods(rows, opened, since, max(end, since), length * SECOND),
        oldest_request=to_datetime(opened[0]) if opened else None,
        median_request=to_datetime(opened[len(opened) // 2]) if opened else None,
        agents=_by_agent(rows),
    )


def _periods(
    rows: Sequence[RunRow], opened: Sequence[int], since: int, end: int, length: int
) -> tuple[ActivityPeriod, ...]:
    created = Counter(row.created // length for row in rows)
    completed, failed = (
        Counter(row.ended // length for row in rows if row.ended is not None and row.status == status)
        for status in ("completed", "failed")
    )
    oldest = {time // length: time for time in reversed(opened)}
    last = end // length
    return tuple(
        ActivityPeriod(
            start=to_datetime(each * length),
            created=created[each],
            completed=completed[each],
            failed=failed[each],
            waiting_since=to_datetime_or_none(oldest.get(each)),
        )
        for each in range(max(since // length, last - PERIODS + 1), last + 1)
    )


def _by_agent(rows: Sequence[RunRow]) -> tuple[AgentActivity, ...]:
    found: defaultdict[str, list[RunRow]] = defaultdict(list)
    for row in rows:
        found[row.agent].append(row)
    return tuple(sorted((_agent(*each) for each in found.items()), key=lambda each: (-each.runs, each.agent)))


def _agent(name: str, rows: Sequence[RunRow]) -> AgentActivity:
    count = {status: sum(row.status == status for row in rows) for status in ("completed", "failed", "cancelled")}
    decided = count["completed"] + count["failed"]
    lasted = sorted((row.ended - row.created) / SECOND for row in rows if row.ended is not None)
    costs = sorted(row.cost for row in rows)
    return AgentActivity(
        agent=name,
        versions=tuple(dict.fromkeys(row.agent_version for row in rows)),
        runs=len(rows),
        completed=count["completed"],
        failed=count["failed"],
        cancelled=count["cancelled"],
        success=count["completed"] / decided if decided else None,
        median_seconds=_percentile(lasted, 0.5) if lasted else None,
        p95_seconds=_percentile(lasted, 0.95) if lasted else None,
        median_cost=_percentile(costs, 0.5),
        p95_cost=_percentile(costs, 0.95),
        cost=sum(costs),
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    return ordered[max(ceil(share * len(ordered)) - 1, 0)]
