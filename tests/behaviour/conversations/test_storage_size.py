"""What a conversation costs on disk: each turn as much as the first ones, and a few times what was said.

Each turn is a run of an agent of a model. What was said is in five places, and stored once: the user's text in the
run's input and in the conversation, the reply in the result of the model's step, in the conversation, in the run's
result.
"""

from pathlib import Path

import limpet
from bench import conversations


async def test_a_turn_costs_the_same_however_long_the_conversation_is(tmp_path: Path, full: bool) -> None:
    """Bytes a turn differ by less than 10 % between an early and a late turn, with summaries on the way."""
    agent, turns = conversations.talker(window=20_000), (100, 200, 900, 1_000) if full else (50, 100, 150, 200)
    early, later, late, end = await conversations.stored(tmp_path / "t.db", turns, agent=agent)
    first, last = (later - early) / (turns[1] - turns[0]), (end - late) / (turns[3] - turns[2])
    assert abs(last - first) < first / 10
    assert later <= 3.2 * turns[1] * 2 * conversations.MESSAGE_BYTES  # of noise, which nobody says


async def test_prose_is_stored_in_three_times_its_bytes(tmp_path: Path) -> None:
    """With everything around it: 200 turns of a message and a reply of 1 KB."""
    [held] = await conversations.stored(tmp_path / "t.db", (200,), say=conversations.prose)
    assert held <= 3 * 200 * 2 * conversations.MESSAGE_BYTES


async def test_the_history_is_not_stored_again(tmp_path: Path) -> None:
    """What a model is asked is a reference: what was said at the first turn is not in the log of the last."""
    await conversations.stored(tmp_path / "t.db", (5,))
    async with limpet.open(f"sqlite:////{tmp_path}/t.db", worker=False) as app:
        last = (await app.runs())[0]
        log = str([event.body for event in await app.log(last.id)])
        assert len(await app.messages("c")) == 10
    assert conversations.text("message 4") in log
    assert not any(conversations.text(f"message {number}") in log for number in range(4))
