"""A task with a state: executed once, resumed after a failure, and still there after a restart.

python examples/seeds/tasks.py
"""

import limpet

disk = {"is_full": True}


@limpet.tool(effect="idempotent")
def do_work(user_input: str) -> str:
    """Fail until the disk has space."""
    print(f"works on {user_input!r}")
    if disk["is_full"]:
        raise limpet.Permanent("no space left")
    return f"done: {user_input}"


@limpet.agent()
def worker(run: limpet.sync.Run, user_input: str) -> str:
    """Do the work, and ask the user whether it may end."""
    result = run.step(do_work, user_input)
    return result if run.ask("Is it right?", to="user") else "rejected"


def execute_task(app: limpet.sync.App, task_id: str, user_input: str) -> None:
    """Start the task, or resume it; a completed one is left alone."""
    had_failed = task_id in [task.id for task in app.tasks(state="failed")]
    app.start(worker, user_input, id=task_id)
    if had_failed:
        app.resume(task_id)
    for event in app.get(task_id).events():
        if event.kind == "run.waiting" and (waiting := app.inbox(run=task_id)):
            print([task.id for task in app.tasks(state="awaiting_user")])
            app.approve(waiting[0], by="ann")
    task = app.task(task_id)
    print(task.id, task.state, task.result or task.error, task.created_at <= task.updated_at)


with limpet.sync.open("sqlite:///tasks.db", agents=[worker]) as app:
    execute_task(app, "task-1", "deploy")
disk["is_full"] = False
with limpet.sync.open("sqlite:///tasks.db", agents=[worker]) as app:
    execute_task(app, "task-1", "deploy")
    execute_task(app, "task-1", "deploy")
    try:
        app.task("task-2")
    except limpet.NotFound as error:
        print(error.summary)
