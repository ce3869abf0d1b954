"""When state is saved, whether an old run may be resumed, and how many snapshots are kept.

python examples/seeds/checkpoints.py
"""

import time

import limpet


@limpet.tool(effect="none")
def look(n: int) -> str:
    """Read a page."""
    return f"page {n} " * 1_000


@limpet.agent(checkpoint="every_iteration", max_age="300ms")  # or "every_step", "on_state_change"
def crawl(run: limpet.sync.Run, pages: int) -> int:
    """Save once per turn."""
    for turn in run.turns(max=pages):
        run.patch(facts={"read": turn.number, "bytes": len(run.step(look, turn.number))})
    return int(run.state.facts["read"])


with limpet.sync.open("sqlite:///crawl.db", agents=[crawl], worker=False) as app:
    app.start(crawl, 300, id="crawl-1")
time.sleep(0.6)  # noqa: TID251 - until the run is too old
with limpet.sync.open("sqlite:///crawl.db", agents=[crawl]) as app:
    crawling, reasons = app.get("crawl-1"), set()
    for event in crawling.events():
        if event.kind == "run.waiting":
            reasons.add(app.info("crawl-1").waits_text)
            app.resume("crawl-1", by="ann")
    print(reasons, crawling.result())
    print(app.resume("crawl-1").result())  # completed: nothing runs again
    print(app.prune(older_than="0s", by_status={"completed": None}, snapshots=1, dry_run=False).snapshots > 0)
