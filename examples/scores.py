"""Score runs and steps, find the bad ones, and export them as a dataset."""

import asyncio
import json

import limpet


@limpet.tool(effect="none")
async def draft_reply(letter: str) -> str:
    """Draft a reply to a letter."""
    return f"Thank you for your letter about {letter}."


@limpet.agent()
async def replies(run: limpet.Run, letter: str) -> str:
    """Reply to a letter."""
    return await run.step(draft_reply, letter)


async def main() -> None:
    """Run, score, find and export."""
    async with limpet.open("sqlite:///scores.db", agents=[replies]) as app:
        for place, letter in enumerate(["a broken cup", "a late parcel", "your cat"], start=1):
            await app.run(replies, letter, id=f"letter-{place}")

        await app.score("letter-1", "quality", 0.9, by="ann")
        await app.score("letter-2", "quality", 0.2, comment="does not say when it comes", by="ann")
        await app.score("letter-2", "tone", "too formal", step=1, by="ben")
        await app.score("letter-3", "quality", comment="is this about cats at all?", by="ann")

        bad = await app.runs(scored="quality<0.5", since="7d")
        print([run.id for run in bad])
        for score in await app.scores(name="tone", dataset=True):
            print(json.dumps([score.input, score.output, score.value]))


asyncio.run(main())
