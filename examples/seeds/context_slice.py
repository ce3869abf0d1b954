"""The part of an agent's state that its current step needs, in at most so many bytes.

python examples/seeds/context_slice.py
"""

from typing import Any

import limpet


@limpet.tool(effect="none")
def read_log(name: str) -> str:
    """Read a log."""
    return f"{name}: 500 Internal Server Error\n" * 900


@limpet.agent()
def investigate(run: limpet.sync.Run) -> dict[str, Any]:
    """Gather more than fits."""
    run.patch(goal="find the error", plan=["collect", "explain"], questions=["Which server?"])
    for item, name in (("collect", "nginx"), ("explain", "kernel")):
        with run.scope(item):
            run.artifact(run.step(read_log, name), type="tool_result.logs", summary=f"{name} log")
            for n in range(40):
                run.patch(facts={f"{name} {n}": "x" * 40}, source=name)
            known = run.context(max_bytes=2_000)
    return known.as_json()


with limpet.sync.open("sqlite:///context.db", agents=[investigate]) as app:
    found = app.run(investigate, id="i-1")
    print(found["goal"], found["current_step"], found["open_questions"])
    print([artifact["summary"] for artifact in found["artifacts"]], [fact["key"] for fact in found["facts"]][:2])
    print(found["left_out"])
