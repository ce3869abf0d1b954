"""A deadline for the whole run and a timeout for each step.

python examples/seeds/deadlines.py
"""

import limpet


@limpet.tool(effect="none", timeout="10s")
def look(n: int) -> bool:
    """Look whether it is there."""
    return n == 3


@limpet.agent(deadline="5m")
def watch(run: limpet.sync.Run, iterations: int) -> str:
    """Look until the deadline, which is checked before each step and ends a wait."""
    found = [run.step(look, n) for n in range(iterations)]
    run.sleep("0s" if any(found) else "1h")
    return "found"


with limpet.sync.open("sqlite:///deadlines.db", agents=[watch]) as app:
    print(app.run(watch, 5))
    late = app.start(watch, 1, deadline="100ms", id="late")
    print(app.task(late.id).error if [*late.events()] else "")
