"""Storage size of a conversation: constant per turn, and a small multiple of its text.

Each turn is a run of an LLM agent. Its text is used in five places but stored once: the user's text in the run's input
and in the conversation, the reply in the model step's result, in the conversation and in the run's result.
"""

from pathlib import Path

import limpet
from bench import conversations


async def test_bytes_per_turn_do_not_grow_with_the_conversation(tmp_path: Path, full: bool) -> None:
    """Early and late turns differ by less than 10 %, including summaries."""
    agent, turns = conversations.talker(window=20_000), (100, 200, 900, 1_000) if full else (50, 100, 150, 200)
    early, later, late, end = await conversations.stored(tmp_path / "t.db", turns, agent=agent)
    first, last = (later - early) / (turns[1] - turns[0]), (end - late) / (turns[3] - turns[2])
    assert abs(last - first) < first / 10
    assert later <= 3.2 * turns[1] * 2 * conversations.MESSAGE_BYTES  # the text is noise, which does not compress


async def test_prose_is_stored_in_at_most_three_times_its_bytes(tmp_path: Path) -> None:
    """Including all events, for 200 turns with a message and a reply of 1 KB."""
    [held] = await conversations.stored(tmp_path / "t.db", (200,), say=conversations.prose)
    assert held <= 3 * 200 * 2 * conversations.MESSAGE_BYTES


async def test_the_log_of_a_run_does_not_repeat_the_history(tmp_path: Path) -> None:
    """A prompt is stored as a reference to earlier messages."""
    await conversations.stored(tmp_path / "t.db", (5,))
    async with limpet.open(f"sqlite:////{tmp_path}/t.db", worker=False) as app:
        last = (await app.runs())[0]
        log = str([event.body for event in await app.log(last.id)])
        assert len(await app.messages("c")) == 10
    assert conversations.text("message 4") in log
    assert not any(conversations.text(f"message {number}") in log for number in range(4))
