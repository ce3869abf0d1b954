"""Two agents share a board: one writes what it found, and both take items of one plan, no item twice."""

import asyncio

import limpet


@limpet.tool(effect="idempotent")
async def ship(item: str) -> str:
    """Ship an item."""
    return f"shipped {item}"


@limpet.agent()
async def planner(run: limpet.Run, items: list[str]) -> None:
    """Write the plan."""
    board = await run.record("board")
    await run.patch_record(board, plan=items, facts={"customer": "ann"}, source="the order")


@limpet.agent()
async def packer(run: limpet.Run) -> list[str]:
    """Take items of the plan until none is left."""
    done: list[str] = []
    while True:
        board = await run.record("board")
        free = [item for item, status in zip(board.plan, board.plan_status, strict=True) if status == "pending"]
        if not free:
            return done
        try:
            await run.patch_record(board, revise={free[0]: "doing"})
        except limpet.RecordConflict:
            continue  # the other packer was faster: look again
        done.append(await run.step(ship, free[0]))
        await run.patch_record(await run.record("board"), data={free[0]: done[-1]})  # merges with what others do


async def main() -> None:
    """Plan, and let two packers work."""
    async with limpet.open("sqlite:///board.db", agents=[planner, packer]) as app:
        await app.run(planner, ["cup", "plate", "bowl"], id="plan-1")
        shipped = await asyncio.gather(app.run(packer, id="packer-1"), app.run(packer, id="packer-2"))
        print(sorted(item for each in shipped for item in each))

        board = await app.record("board")
        await app.patch_record("board", read=board.version, questions={"gift": "Is it a gift?"}, by="ben")
        [fact] = (await app.record("board")).known_facts
        print(f"{fact.key}: {fact.value}, by {fact.by}, step {fact.step}")


asyncio.run(main())
