"""A repeated call creates nothing twice: each action has a key, and a completed step is not called again.

python examples/seeds/idempotency.py
"""

from pathlib import Path

import limpet


@limpet.tool(effect="idempotent")
def create_file(name: str) -> None:
    """Create the file. The key is the same on every retry, for services that recognise it."""
    print(limpet.idempotency_key())
    Path(name).write_text("data", encoding="utf-8")


@limpet.agent()
def create(run: limpet.sync.Run, name: str) -> None:
    """Create the file once."""
    run.step(create_file, name)


with limpet.sync.open("sqlite:///files.db", agents=[create]) as app:
    app.run(create, "report.txt", id="task_abc123")
    app.run(create, "report.txt", id="task_abc123")
