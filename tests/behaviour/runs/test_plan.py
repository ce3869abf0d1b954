"""The plan of a run: where it is, and how a revision keeps what was done."""

from typing import Any

import pytest

import limpet


@limpet.agent(name="plan_reviser")
async def reviser(run: limpet.Run, plans: list[Any]) -> list[str]:
    """Apply patches of the plan, and return the status of each item."""
    for each in plans:
        await run.patch(**each)
    return [item.status for item in run.state.working.items]


async def statuses(*plans: Any) -> tuple[list[str], str]:
    """Return the statuses after some patches, and the position that lists show."""
    async with limpet.open("memory://", agents=[reviser]) as app:
        handle = await app.start(reviser, list(plans))
        found = await handle.result(timeout="10s")
        return found, (await app.info(handle.id)).position.text


async def test_a_plan_with_nothing_done_is_at_its_first_item() -> None:
    """Lists said "step 4 of 4" before anything was done."""
    plan = ["look", "refund", "write", "close"]
    assert await statuses({"plan": plan}) == (["pending"] * 4, "step 1 of 4")


async def test_a_revised_plan_keeps_the_status_of_items_that_stay() -> None:
    """Also if they move; new items are pending."""
    found = await statuses(
        {"plan": ["look", "refund", "write"]},
        {"revise": {"look": "done", "refund": "doing"}},
        {"plan": ["call", "look", "refund", "close"]},
    )
    assert found == (["pending", "done", "doing", "pending"], "step 3 of 4")


async def test_equal_items_are_revised_one_after_the_other() -> None:
    """A plan may name the same thing twice."""
    found = await statuses({"plan": ["look", "act", "look"]}, *[{"revise": {"look": "done"}}] * 2)
    assert found == (["done", "pending", "done"], "step 2 of 3")
    kept = await statuses({"plan": ["look", "look"]}, {"revise": {"look": "done"}}, {"plan": ["look", "look", "look"]})
    assert kept == (["done", "pending", "pending"], "step 2 of 3")


async def test_a_plan_of_which_all_is_done_is_at_its_last_item() -> None:
    """Skipped items count as done."""
    found = await statuses({"plan": ["look", "act"]}, {"revise": {"look": "done", "act": "skipped"}})
    assert found == (["done", "skipped"], "step 2 of 2")


@pytest.mark.parametrize(
    ("revise", "message"),
    [
        ({"lok": "done"}, "revise: 'lok' is not in the plan, which has 'look'"),
        ({"look": "finished"}, "revise: an item is invalid: must be one of 'pending', 'doing', 'done', 'skipped'"),
        (["look"], "Invalid revise: must be Mapping or None, not list"),
    ],
)
async def test_an_invalid_revision_is_refused(revise: Any, message: str) -> None:
    """With the items that the plan has, and nothing changed."""
    with pytest.raises(limpet.RunFailed, match=message):
        await statuses({"plan": ["look"]}, {"revise": revise})
