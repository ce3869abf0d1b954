"""A step that completes fully or is rolled back: its rows and its event are one transaction.

python examples/seeds/atomic_step.py
"""

from typing import Any

import limpet


def account(connection: Any, name: str, cents: int) -> None:
    """Change an account in the store's own database."""
    connection.execute("CREATE TABLE IF NOT EXISTS accounts (name TEXT, cents INTEGER CHECK (cents < 100))")
    connection.execute("INSERT INTO accounts VALUES (?, ?)", (name, cents))


@limpet.tool(effect="transaction", retry=1)
def transfer(cents: int) -> str:
    """Take it from Ann and give it to Bob, or do neither."""
    account(limpet.current().transaction, "Ann", -cents)
    account(limpet.current().transaction, "Bob", cents)
    return f"{cents} moved"


@limpet.agent()
def bank(run: limpet.sync.Run, cents: int) -> str:
    """Transfer money."""
    return run.step(transfer, cents)


with limpet.sync.open("sqlite:///bank.db", agents=[bank]) as app:
    for cents in (50, 500):
        [*app.start(bank, cents, id=f"transfer-{cents}").events()]
        print(app.task(f"transfer-{cents}").state)
