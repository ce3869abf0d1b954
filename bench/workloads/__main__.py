"""`python -m bench.workloads NAME ARGUMENTS`: run one of Limpet's workloads, and print its figures as JSON."""

from bench.script import answer
from bench.workloads import agents, bulk, cold, engines, long_runs, mcp_calls, steps, store, talks, values, web

MEASURES = (
    steps.bare,
    steps.bare_between_work,
    store.store,
    steps.one,
    steps.many,
    steps.workers,
    steps.work,
    steps.stand_by,
    long_runs.leave,
    long_runs.resume,
    long_runs.approval,
    long_runs.states,
    long_runs.idle,
    values.values,
    talks.conversation,
    talks.turns_at,
    talks.last_page,
    cold.cold,
    bulk.million,
    web.web,
    mcp_calls.mcp_calls,
    mcp_calls.mcp_start,
    engines.engine,
)

if __name__ == "__main__":
    agents.quiet()
    answer({each.__name__: each for each in MEASURES})
