"""Every interface, the row and the fold agree on where a run is, whatever it does with its plan."""

import random  # noqa: TID251 - seeded
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

import limpet
from limpet.events import PlanStatus
from limpet.journal import load
from limpet.service.access import LOCAL
from limpet.service.app import App
from limpet.service.operation import operations_of
from limpet.service.views import position_info

ITEMS = ("look", "refund", "write", "close", "look")
STATUSES: tuple[PlanStatus, ...] = ("pending", "doing", "done", "skipped")
OPERATIONS = operations_of(App)


@limpet.tool(name="position_look", effect="none")
async def look() -> int:
    """Do nothing."""
    return 1


@limpet.agent(name="position_planner")
async def planner(run: limpet.Run, seed: int) -> None:
    """Do random things with a plan, derived from the seed."""
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 8)):
        await change(run, chance)
    if chance.random() < 0.2:
        raise ValueError("seeded")


async def change(run: limpet.Run, chance: random.Random) -> None:
    """Change the plan at random, or use it."""
    known = run.state.plan
    match chance.choice(["plan", "revise", "scope", "step", "goal"]):
        case "plan":
            await run.patch(plan=chance.sample(ITEMS, chance.randrange(len(ITEMS) + 1)))
        case "revise" if known:
            await run.patch(revise={chance.choice(known): chance.choice(STATUSES)})
        case "scope":
            async with run.scope(chance.choice(ITEMS)):
                await run.step(look)
        case "goal":
            await run.patch(goal=str(chance.random()), plan=known if chance.random() < 0.5 else None)
        case _:
            await run.step(look)


async def positions(app: App, run: str) -> list[Any]:
    """Return the position of a run as its row, its fold and every interface have it."""
    row, folded = await app.store.get(run), position_info((await load(app.store, run)).position)
    found: list[Any] = [{**vars_of(folded), "seq": row.seq}]
    found.append({**found[0], "step": row.step, "steps": row.steps, "item": row.item, "items": row.items})
    found.append((await OPERATIONS["show"].run(app, {"run": run}, who=LOCAL))["run"]["position"])
    found.append((await OPERATIONS["state"].run(app, {"run": run}, who=LOCAL))["position"])
    return found


def vars_of(position: Any) -> dict[str, Any]:
    """Return the fields of a position."""
    return {name: getattr(position, name) for name in ("seq", "step", "steps", "item", "items", "text")}


@pytest.mark.parametrize("part", range(4))
async def test_row_fold_and_interfaces_agree_on_the_position(part: int, full: bool) -> None:
    """2,000 seeded runs with --full, otherwise 160; a tenth of them are forked with another plan."""
    count = 500 if full else 40
    seeds = range(part * count, (part + 1) * count)
    async with limpet.open("memory://", agents=[planner]) as app:
        for seed in seeds:
            await app.start(planner, seed, id=f"r{seed}")
        for seed in seeds:
            handle = await app.get(f"r{seed}")
            with suppress(limpet.RunFailed):  # some fail on purpose
                await handle.result(timeout="60s")
            if seed % 10 == 0:
                await forked(app, handle.id)
        listed = {each.id: each.position for each in await app.runs(last=1000)}
        assert len(listed) == len(seeds) * 1.1
        for run, shown in listed.items():
            first, *others = await positions(app, run)
            assert all(each == first for each in others), (run, first, others)
            assert vars_of(shown) == first
        await app.verify()


async def forked(app: App, run: str) -> None:
    """Fork a run after its first event, with a plan of its own."""
    fork = await app.fork(run, seq=1, patch={"plan": ["look", "more"], "revise": {"look": "done"}}, effects="live")
    with suppress(limpet.RunFailed):
        await fork.result(timeout="60s")


async def test_verify_finds_a_row_with_another_position() -> None:
    """A row that says another item than its log is reported."""
    async with limpet.open("memory://", agents=[planner]) as app:
        handle = await app.start(planner, 3, id="r3")
        await handle.result(timeout="60s")
        row = await app.store.get("r3")
        app.store._backend._tables.streams["r3"] = replace(row, item=4)  # type: ignore[attr-defined]
        with pytest.raises(limpet.Tampered, match="item"):
            await app.verify("r3")
