"""The ledger: a folder outside the store in which the tools of the scenarios record their effects.

It counts what really happened, whatever the store says: each effect is a line, appended with one write and synced.
Marks are files: the first process that makes one is told so.
"""

import os
import signal
from collections import Counter
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

__all__ = ["KILLS", "LEDGER", "Ledger", "LedgerEntry", "die_once", "ledger"]

LEDGER = "LIMPET_SCENARIO_LEDGER"
"""Variable with the path of the ledger, for workers."""
KILLS = "LIMPET_SCENARIO_KILLS"
"""Variable with the number of places of `die_once` at which a worker dies, for each owner of effects."""


class LedgerEntry(msgspec.Struct, frozen=True):
    """One execution of an effect."""

    owner: str
    """The run that the effect belongs to, or another name that the scenario chose."""
    label: str
    """Name of the effect."""
    key: str
    """The idempotency key; "" for an effect without one, of which each execution counts."""


class Ledger(Struct, frozen=True):
    """The ledger in a folder, which any number of processes write at the same time."""

    folder: Path

    def record(self, owner: str, label: str, key: str) -> None:
        """Add an entry, which is on disk afterwards."""
        line = msgspec.json.encode(LedgerEntry(owner, label, key)) + b"\n"
        file = os.open(self.folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)

    def entries(self, prefix: str = "") -> list[LedgerEntry]:
        """Return the entries of all owners with a prefix, in order."""
        path = self.folder / "effects"
        lines = path.read_bytes().splitlines() if path.exists() else []
        found = (msgspec.json.decode(line, type=LedgerEntry) for line in lines)
        return [each for each in found if each.owner.startswith(prefix)]

    def count(self, prefix: str) -> Counter[tuple[str, str]]:
        """Return how often each effect of these owners happened, by owner and label: once for each key."""
        found = self.entries(prefix)
        keyed = {(each.owner, each.label, each.key) for each in found if each.key}
        bare = [(each.owner, each.label) for each in found if not each.key]
        return Counter([*((owner, label) for owner, label, _ in keyed), *bare])

    def mark(self, name: str) -> bool:
        """Make a mark. Returns whether it is new."""
        try:
            os.close(os.open(self._mark(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            return False
        return True

    def has(self, name: str) -> bool:
        """Return whether a mark was made."""
        return self._mark(name).exists()

    def _mark(self, name: str) -> Path:
        return self.folder / f"mark-{sha256(name.encode()).hexdigest()[:32]}"


def ledger() -> Ledger:
    """Return the ledger of this process."""
    return Ledger(Path(os.environ[LEDGER]))


def die_once(owner: str, place: str) -> None:
    """Kill this process here, if no process died at this place before, and the owner has a death left."""
    deaths, own = int(os.environ.get(KILLS, "0")), ledger()
    if deaths and own.mark(f"{owner} {place}") and any(own.mark(f"{owner} death {number}") for number in range(deaths)):
        os.kill(os.getpid(), signal.SIGKILL)
