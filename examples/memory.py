"""Memory across runs: a store of its own behind two tools. A run recalls at its start, and remembers at its end.

python examples/memory.py
"""

import asyncio
from datetime import datetime

import apsw

import limpet


def memory() -> apsw.Connection:
    """Open the memory, which is not the store of the runs."""
    connection = apsw.Connection("memory.db")
    connection.execute("CREATE TABLE IF NOT EXISTS memory (key TEXT PRIMARY KEY, user TEXT, note TEXT, since TEXT)")
    return connection


@limpet.external(ttl="1h")  # in one run, an hour-old memory is recalled again before it is used
def recall(user: str) -> list[dict[str, str]]:
    """Return what is known about a user, and since when."""
    rows = memory().execute("SELECT note, since FROM memory WHERE user = ? ORDER BY since", (user,))
    return [{"note": str(note), "since": str(since)} for note, since in rows]


@limpet.tool(effect="idempotent", invalidates=[recall])
def remember(user: str, note: str, since: datetime) -> None:
    """Store a note under the key of the step, so that a repeated call stores it once."""
    row = (limpet.idempotency_key(), user, note, f"{since:%Y-%m-%d}")
    memory().execute("INSERT INTO memory VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row)


@limpet.agent()
async def support(run: limpet.Run, message: str) -> str:
    """Answer with what earlier runs have learned about the user."""
    known = await run.read(recall, "ann")  # a step and a fact: this run keeps what it knew, on replay too
    if "call me" in message:
        await run.step(remember, "ann", f"prefers the name {message.rpartition(' ')[2]}", run.now())
    notes = [each["note"] for each in known]
    return f"known: {', '.join(notes) or 'nothing'}"


async def main() -> None:
    """Two runs share the memory, and neither sees the state of the other."""
    async with limpet.open("sqlite:///runs.db", agents=[support]) as app:
        print(await app.run(support, "Please call me Annie", id="ticket-1"))
        print(await app.run(support, "Where is my parcel?", id="ticket-2"))
        [fact] = (await app.state("ticket-2")).working.known_facts
        print(fact.key, "from", fact.source, "as of step", fact.step)
        print([each.tool for each in await app.steps("ticket-1")], len([*memory().execute("SELECT * FROM memory")]))


if __name__ == "__main__":
    asyncio.run(main())
