"""The scenarios that every engine must pass: what runs do, while their workers die at every step.

A test file for a new engine is some lines:

    import pytest
    from limpet.engines.scenarios import EngineHarness, scenarios

    @pytest.fixture(scope="module")
    def harness(tmp_path_factory):
        worker = [sys.executable, "-m", "my_worker", STORE]  # serves limpet.engines.scenarios.agents:agents
        folder = tmp_path_factory.mktemp("ledger")
        with EngineHarness(store=STORE, engine=MyEngine(), worker=worker, ledger=folder, kills="every step") as made:
            yield made

    @pytest.mark.parametrize("scenario", scenarios(), ids=str)
    def test_my_engine(scenario, harness):
        asyncio.run(scenario.run(harness))

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
