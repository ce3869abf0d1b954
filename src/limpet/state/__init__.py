"""The state of a run, computed from its log, and the agent's working state in it. Pure: no clock, no I/O."""

from limpet.state.agent import AgentState
from limpet.state.derivation import derived, outdated
from limpet.state.fold import Fold, fold
from limpet.state.log_view import LogView, StepView, step_of
from limpet.state.patch import apply, describe_patch, diff
from limpet.state.run import ENDED, Counters, Position, RunState, Status
from limpet.state.task import TaskRecord, TaskState, task_record

__all__ = [
    "ENDED",
    "AgentState",
    "Counters",
    "Fold",
    "LogView",
    "Position",
    "RunState",
    "Status",
    "StepView",
    "TaskRecord",
    "TaskState",
    "apply",
    "derived",
    "describe_patch",
    "diff",
    "fold",
    "outdated",
    "step_of",
    "task_record",
]
