"""One interface for memory, SQLite and PostgreSQL: save, get, list by state.

python examples/seeds/stores.py postgresql://localhost/agents
"""

import sys

import limpet


@limpet.agent()
def divide(run: limpet.sync.Run, by: int) -> int:
    """Fail for zero."""
    run.patch(goal=f"divide by {by}")
    return 100 // by


url = sys.argv[1] if len(sys.argv) > 1 else "memory:"
with limpet.sync.open(url, agents=[divide]) as app:
    for n in (5, 0, 4):
        [*app.start(divide, n, id=f"task-{n}").events()]
    task = app.task("task-5")
    print(task.id, task.user_input, task.state, task.result, task.error, task.created_at <= task.updated_at)
    print([task.id for task in app.tasks(state="completed")], [task.id for task in app.tasks(state="failed")])
    try:
        app.task("task-7")
    except limpet.NotFound:
        print("task-7 is not there")
