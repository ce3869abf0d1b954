"""Limpet: the state layer that production AI agents are missing.

This module only re-exports the public API; `compose` implements `open`, `open_store`, `llm_agent` and `summarise_with`.
"""

import importlib as _importlib

from limpet import sync
from limpet.clock import Duration
from limpet.compose import llm_agent, open, open_store, summarise_with  # noqa: A004 - used as `limpet.open`
from limpet.context.slice import ContextSlice
from limpet.engine.approvals.externals import External, external
from limpet.engine.definitions.agents import Agent, Budget
from limpet.engine.definitions.call_context import Call, current, idempotency_key
from limpet.engine.definitions.tools import Done, Tool, tool
from limpet.engine.definitions.upgrades import versioned
from limpet.engine.execution.handle import Handle
from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import EventView, Request, RunInfo
from limpet.engine.run.agent_decorator import agent
from limpet.engine.run.compaction import Compaction, Summariser
from limpet.engine.run.conversation import Message
from limpet.engine.run.run import Run, Turn
from limpet.engine.run.working_state import State
from limpet.engine.steps.retry_decorator import retry
from limpet.engine.steps.verdict import NotApplied, Permanent, RetryAfter
from limpet.engine.worker.duties import Retention
from limpet.engine.worker.worker import Worker
from limpet.errors import (
    AgentFailed,
    AlreadyAnswered,
    BlobDamaged,
    BudgetExceeded,
    ConnectionLost,
    ContextTooSmall,
    ContractError,
    DamagedEvent,
    DeadlineExceeded,
    DefinitionError,
    Divergence,
    Expired,
    ExtraMissing,
    FileFailed,
    HandedOff,
    IdConflict,
    InvalidAnswer,
    InvalidAppend,
    InvalidArgument,
    InvalidBundle,
    InvalidPatch,
    InvalidTasks,
    InvalidValue,
    LeaseLost,
    LimpetError,
    ModelRefused,
    NewerVersion,
    NoProgress,
    NoStore,
    NotAllowed,
    NotAuthenticated,
    NotDone,
    NotFound,
    NotRecorded,
    NotResumable,
    NotStubbed,
    OutcomeUnknown,
    OutputUnavailable,
    QueryTimeout,
    ReadOnlyStore,
    Rejected,
    Retryable,
    RunCancelled,
    RunFailed,
    SecretWithheld,
    Stale,
    StaleServer,
    StepFailed,
    StoreBusy,
    StoreRefused,
    StoreReplaced,
    StoreUnavailable,
    Suspended,
    Tampered,
    TrialStuck,
    Unexpected,
    Unsupported,
    WorkerAlive,
    WrongCall,
    WrongHost,
    WrongKeys,
    WrongOrigin,
    WrongState,
    WrongUsage,
)
from limpet.events import Artifact, Fact, OpenQuestion, PlanItem, RiskFlag, StatePatch
from limpet.llm.model import Model
from limpet.policy.escalation import Escalate
from limpet.policy.retry import Retry
from limpet.policy.risk import Approvals
from limpet.secret import Secret
from limpet.service.app import App
from limpet.service.compare import Comparison
from limpet.service.diffs import Diff
from limpet.service.moments import Moment, Point
from limpet.service.page import Page
from limpet.service.prompts import PromptView
from limpet.service.steps import StepInfo
from limpet.service.webhooks import Webhook, is_genuine
from limpet.state import AgentState
from limpet.stores import Store
from limpet.stores.cipher import MasterKeys

__all__ = [
    "Agent",
    "AgentFailed",
    "AgentState",
    "AlreadyAnswered",
    "App",
    "Approvals",
    "Artifact",
    "BlobDamaged",
    "Budget",
    "BudgetExceeded",
    "Call",
    "Compaction",
    "Comparison",
    "ConnectionLost",
    "ContextSlice",
    "ContextTooSmall",
    "ContractError",
    "DamagedEvent",
    "DeadlineExceeded",
    "DefinitionError",
    "Diff",
    "Divergence",
    "Done",
    "Duration",
    "Escalate",
    "EventView",
    "Expired",
    "External",
    "ExtraMissing",
    "Fact",
    "FileFailed",
    "HandedOff",
    "Handle",
    "IdConflict",
    "InvalidAnswer",
    "InvalidAppend",
    "InvalidArgument",
    "InvalidBundle",
    "InvalidPatch",
    "InvalidTasks",
    "InvalidValue",
    "LeaseLost",
    "LimpetError",
    "MasterKeys",
    "Message",
    "Model",
    "ModelRefused",
    "Moment",
    "NewerVersion",
    "NoProgress",
    "NoStore",
    "NotAllowed",
    "NotApplied",
    "NotAuthenticated",
    "NotDone",
    "NotFound",
    "NotRecorded",
    "NotResumable",
    "NotStubbed",
    "OpenQuestion",
    "OutcomeUnknown",
    "OutputUnavailable",
    "Page",
    "Permanent",
    "PlanItem",
    "Point",
    "Principal",
    "PromptView",
    "QueryTimeout",
    "ReadOnlyStore",
    "Rejected",
    "Request",
    "Retention",
    "Retry",
    "RetryAfter",
    "Retryable",
    "RiskFlag",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunInfo",
    "Secret",
    "SecretWithheld",
    "Stale",
    "StaleServer",
    "State",
    "StatePatch",
    "StepFailed",
    "StepInfo",
    "Store",
    "StoreBusy",
    "StoreRefused",
    "StoreReplaced",
    "StoreUnavailable",
    "Summariser",
    "Suspended",
    "Tampered",
    "Tool",
    "TrialStuck",
    "Turn",
    "Unexpected",
    "Unsupported",
    "Webhook",
    "Worker",
    "WorkerAlive",
    "WrongCall",
    "WrongHost",
    "WrongKeys",
    "WrongOrigin",
    "WrongState",
    "WrongUsage",
    "__version__",
    "agent",
    "current",
    "external",
    "idempotency_key",
    "is_genuine",
    "llm_agent",
    "open",
    "open_store",
    "retry",
    "summarise_with",
    "sync",
    "tool",
    "versioned",
]


def __getattr__(name: str) -> str:
    """Look up `limpet.__version__` on demand: importing the metadata costs a fifth of the import time."""
    if name == "__version__":
        metadata = _importlib.import_module("importlib.metadata")
        return str(metadata.version("limpet"))
    raise AttributeError(name)


def __dir__() -> list[str]:
    """List the public names only, not the submodules."""
    return sorted(__all__)
