"""The log of one run: append, state from snapshots and tail, verify."""

from limpet.journal.journal import Journal
from limpet.journal.snapshots import load, load_whole
from limpet.journal.verify import verify_run

__all__ = ["Journal", "load", "load_whole", "verify_run"]
