"""A long conversation: a summary by a model replaces the older turns, which stay in the store.

python examples/seeds/compaction.py
"""

import limpet.testing


@limpet.agent()
def chat(run: limpet.sync.Run) -> list[str]:
    """Say 32 turns; the model then sees a summary and the newest of them."""
    for turn in range(1, 33):
        run.say(f"turn {turn}", role="user" if turn % 2 else "assistant")
    run.compact(limpet.summarise_with(limpet.testing.ScriptedModel("User asked about X.")), above=100, keep=20)
    return [message.text for message in run.messages()]


with limpet.sync.open("sqlite:///chat.db", agents=[chat]) as app:
    print(app.run(chat, id="chat-1"), len(app.messages("chat-1.chat", whole=True)))
