"""The amount that a run has spent: in the log, lent to called runs, reserved, and not yet flushed."""

from msgspec.structs import replace

from limpet.engine.execution.execution import Execution
from limpet.events import Limits, Spent
from limpet.events import bodies as b

__all__ = ["NOTHING", "lent_budgets", "spent_before"]

NOTHING = Spent()


def spent_before(x: Execution, number: int, *, lent: bool = True) -> Spent:
    """Return what was spent before step `number`.

    Steps are counted by number, since parallel ones may not be in the log yet.
    """
    fold = x.journal.fold
    spent = fold.spent
    slices = [each.most() for each in lent_budgets(x)] if lent else []
    gone = [*slices, *_unsettled(x)]
    return replace(
        spent,
        steps=number - 1 + spent.steps - fold.step + sum(each.steps for each in slices),
        tokens=spent.tokens + sum(each.tokens for each in gone),
        cost=spent.cost + sum(each.cost for each in gone),
        wall_us=spent.wall_us + max(x.kit.now() - fold.time, 0),
    )


def lent_budgets(x: Execution) -> list[Limits]:
    """Return the budgets of called runs that have not returned, also of calls that are being written."""
    called = {child.run: child.budget for child in x.journal.fold.children}
    return [each for each in (x.lent | called).values() if each is not None]


def _unsettled(x: Execution) -> list[Spent]:
    """Return the reservations of running steps, and what was spent since the last flush."""
    reserved, found = x.journal.fold.reserved, []
    for body in x.journal.pending:
        if isinstance(body, b.BudgetReserved):
            reserved[body.number] = Spent(tokens=body.tokens, cost=body.cost)
        elif isinstance(body, b.StepCompleted | b.StepFailed | b.StepUnknown):
            before = reserved.pop(body.number, None)
            found.append(body.spent or (before if isinstance(body, b.StepUnknown) else None) or NOTHING)
    return [*found, *reserved.values()]
