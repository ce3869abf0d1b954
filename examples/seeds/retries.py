"""Retries with exponential backoff: of a plain function, and of a tool, where they survive the process.

python examples/seeds/retries.py
"""

import limpet

calls: list[str] = []


def fetch() -> str:
    """Fail once."""
    calls.append("fetch")
    if calls.count("fetch") < 2:
        raise TimeoutError("no answer")
    return "fetched"


@limpet.tool(effect="none", retry=limpet.Retry(3, first="10ms"))
def execute_tool(name: str) -> str:
    """Fail always."""
    calls.append(name)
    raise TimeoutError(f"{name} gave no answer")


@limpet.agent()
def caller(run: limpet.sync.Run, name: str) -> str:
    """Call the tool, up to three times."""
    return run.step(execute_tool, name)


print(limpet.retry(fetch, 3))  # waits 1 s, then 2 s; here it succeeds after the first wait
with limpet.sync.open("sqlite:///retries.db", agents=[caller]) as app:
    try:
        app.run(caller, "check_disk", id="r")
    except limpet.RunFailed as error:
        print(error.message, calls)
