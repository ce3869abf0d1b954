"""The scenarios that every engine must pass: what runs do, while their workers die at every step.

A test file for a new engine is some lines. First without kills, with a worker in the process of the test:

    import limpet
    import pytest
    from limpet.engines.scenarios import EngineHarness, scenarios
    from limpet.engines.scenarios.agents import agents

    @pytest.mark.parametrize("scenario", scenarios(processes=False), ids=str)
    async def test_my_engine(scenario, tmp_path):
        async with limpet.open(STORE, engine=MyEngine(), agents=agents) as app:
            with EngineHarness(store=STORE, app=app, ledger=tmp_path) as harness:
                await scenario.run(harness)

Then with worker processes, which die before and after each effect, and are started again:

    async def test_my_engine_while_workers_die(tmp_path):
        worker = [sys.executable, "my_worker.py"]  # serves `agents` with MyEngine()
        with EngineHarness(
            store=STORE, engine=MyEngine(), worker=worker, ledger=tmp_path, kills="every step"
        ) as harness:
            for scenario in scenarios():
                await scenario.run(harness)

A scenario checks how each of its runs ended, its log, and, in a ledger outside the store, that each effect happened
once.
"""

from limpet.engines.scenarios import boundaries, commands_to_runs, families, parked_runs, shared_workers
from limpet.engines.scenarios.ledger import Ledger
from limpet.engines.scenarios.scenario import EngineHarness, Scenario, ScenarioWorld, scenarios
from limpet.engines.scenarios.worker_fleet import WorkerFleet

__all__ = ["TOPICS", "EngineHarness", "Ledger", "Scenario", "ScenarioWorld", "WorkerFleet", "scenarios"]

if not __debug__:
    raise RuntimeError("the scenarios are made of asserts: run them without -O")

TOPICS = (boundaries, parked_runs, families, commands_to_runs, shared_workers)
