"""Files of released versions can always be read."""

import gzip
from pathlib import Path

import msgspec
import pytest

from limpet import open_store
from limpet.events import KINDS, Event, verify
from limpet.journal import load, load_log_view, load_steps, verify_run
from limpet.state import RunState, fold
from limpet.stores import RunFilter
from limpet.stores.conformance.suite import contract
from limpet.stores.fork_reads import StepRange

VERSIONS = sorted(path for path in Path(__file__).parent.iterdir() if path.is_dir() and (path / "run.jsonl").exists())


def read(path: Path) -> list[Event]:
    """Return events from JSON lines."""
    events = []
    for text in path.read_bytes().splitlines():
        fields = msgspec.json.decode(text)
        fields |= {"body": fields["body"].encode(), "hash": bytes.fromhex(fields["hash"])}
        events.append(Event(**fields))
    return events


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_old_logs_fold_to_the_recorded_state(version: Path) -> None:
    """The chain is intact, every kind is decoded, and the state is the recorded one."""
    events = read(version / "run.jsonl")
    verify(events)
    assert fold(events) == msgspec.json.decode((version / "state.json").read_bytes(), type=RunState)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
@pytest.mark.parametrize("name", ["conversation", "audit", "record"])
def test_old_conversations_audit_logs_and_records_are_read(version: Path, name: str) -> None:
    """Each event is upcast to its newest version."""
    events = read(version / f"{name}.jsonl")
    verify(events)
    assert all(event.decode() for event in events)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
async def test_old_sqlite_files_are_opened(version: Path, tmp_path: Path) -> None:
    """The file is migrated if necessary; logs, lists, inbox and snapshots are readable, and newer features work."""
    (tmp_path / "store.db").write_bytes(gzip.decompress((version / "store.gz").read_bytes()))
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        await verify_run(store, "golden")
        state = await load(store, "golden")
        assert (state.status, state.position.step, state.requests[0].request) == ("waiting", 1, "q1")
        assert await store.count(RunFilter(labels={"team": "a"}, status=("waiting",))) == 1
        assert [request.to for request in await store.requests()] == [("ann",)]
        steps = (await load_log_view(store, "golden")).steps
        assert await load_steps(store, "golden", StepRange()) == [*steps.values()]
        assert await store.snapshots("golden")
        assert (await store.snapshot("golden") is None) == (version.name == "0.1.0")  # not used, without a digest
        await store.save_contracts([contract("support")])
        assert [row.agent for row in await store.contracts()] == ["support"]


def test_every_kind_is_in_the_newest_golden_files() -> None:
    """A new kind must be added here before its release."""
    newest = VERSIONS[-1]
    found = {
        event.kind for name in ("run", "conversation", "audit", "record") for event in read(newest / f"{name}.jsonl")
    }
    assert found == {kind.name for kind in KINDS}
