"""The log of one run: append, load the state from snapshots and tail, verify."""

from limpet.journal.conversation import ConversationWriter, Entry, OutgoingMessages, Summary, entries, latest, replaced
from limpet.journal.journal import Journal, OnPlaced
from limpet.journal.record_log import conflict_of, read_record, record_id
from limpet.journal.snapshots import check_snapshots, load, load_whole
from limpet.journal.steps import load_log_view, load_step, load_step_view, load_steps
from limpet.journal.verify import check_late, check_position, verify_run

__all__ = [
    "ConversationWriter",
    "Entry",
    "Journal",
    "OnPlaced",
    "OutgoingMessages",
    "Summary",
    "check_late",
    "check_position",
    "check_snapshots",
    "conflict_of",
    "entries",
    "latest",
    "load",
    "load_log_view",
    "load_step",
    "load_step_view",
    "load_steps",
    "load_whole",
    "read_record",
    "record_id",
    "replaced",
    "verify_run",
]
