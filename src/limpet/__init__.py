"""Limpet: the state layer that production AI agents are missing.

This module only re-exports the public API; `compose` implements `open`, `open_store`, `llm_agent` and `summarise_with`.
A public name is loaded with its module at its first use, so that a program loads only the modules that it uses.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limpet import sync as sync
    from limpet.clock import Duration as Duration
    from limpet.compose import llm_agent as llm_agent
    from limpet.compose import open as open  # noqa: A004 - used as `limpet.open`
    from limpet.compose import open_store as open_store
    from limpet.compose import summarise_with as summarise_with
    from limpet.context.slice import ContextSlice as ContextSlice
    from limpet.engine.approvals.externals import External as External
    from limpet.engine.approvals.externals import external as external
    from limpet.engine.definitions.agents import Agent as Agent
    from limpet.engine.definitions.agents import Budget as Budget
    from limpet.engine.definitions.call_context import Call as Call
    from limpet.engine.definitions.call_context import current as current
    from limpet.engine.definitions.call_context import idempotency_key as idempotency_key
    from limpet.engine.definitions.tools import Done as Done
    from limpet.engine.definitions.tools import Tool as Tool
    from limpet.engine.definitions.tools import tool as tool
    from limpet.engine.definitions.upgrades import versioned as versioned
    from limpet.engine.execution.handle import Handle as Handle
    from limpet.engine.execution.principal import Principal as Principal
    from limpet.engine.execution.views import EventView as EventView
    from limpet.engine.execution.views import Request as Request
    from limpet.engine.execution.views import RunInfo as RunInfo
    from limpet.engine.run.agent_decorator import agent as agent
    from limpet.engine.run.compaction import Compaction as Compaction
    from limpet.engine.run.compaction import Summariser as Summariser
    from limpet.engine.run.conversation import Message as Message
    from limpet.engine.run.run import Run as Run
    from limpet.engine.run.run import Turn as Turn
    from limpet.engine.run.working_state import State as State
    from limpet.engine.steps.retry_decorator import retry as retry
    from limpet.engine.steps.verdict import NotApplied as NotApplied
    from limpet.engine.steps.verdict import Permanent as Permanent
    from limpet.engine.steps.verdict import RetryAfter as RetryAfter
    from limpet.engine.worker.duties import Retention as Retention
    from limpet.engine.worker.worker_settings import Worker as Worker
    from limpet.errors import AgentFailed as AgentFailed
    from limpet.errors import AlreadyAnswered as AlreadyAnswered
    from limpet.errors import AuthUnavailable as AuthUnavailable
    from limpet.errors import BlobDamaged as BlobDamaged
    from limpet.errors import BudgetExceeded as BudgetExceeded
    from limpet.errors import ConnectionLost as ConnectionLost
    from limpet.errors import ContextTooSmall as ContextTooSmall
    from limpet.errors import ContractError as ContractError
    from limpet.errors import DamagedEvent as DamagedEvent
    from limpet.errors import DeadlineExceeded as DeadlineExceeded
    from limpet.errors import DefinitionError as DefinitionError
    from limpet.errors import Divergence as Divergence
    from limpet.errors import EngineUnavailable as EngineUnavailable
    from limpet.errors import Expired as Expired
    from limpet.errors import ExtraMissing as ExtraMissing
    from limpet.errors import FileFailed as FileFailed
    from limpet.errors import FormOutdated as FormOutdated
    from limpet.errors import HandedOff as HandedOff
    from limpet.errors import IdConflict as IdConflict
    from limpet.errors import InvalidAnswer as InvalidAnswer
    from limpet.errors import InvalidAppend as InvalidAppend
    from limpet.errors import InvalidArgument as InvalidArgument
    from limpet.errors import InvalidBundle as InvalidBundle
    from limpet.errors import InvalidLink as InvalidLink
    from limpet.errors import InvalidLinkKey as InvalidLinkKey
    from limpet.errors import InvalidPatch as InvalidPatch
    from limpet.errors import InvalidReply as InvalidReply
    from limpet.errors import InvalidTasks as InvalidTasks
    from limpet.errors import InvalidValue as InvalidValue
    from limpet.errors import LeaseLost as LeaseLost
    from limpet.errors import LimpetError as LimpetError
    from limpet.errors import LinkExpired as LinkExpired
    from limpet.errors import LinkOutdated as LinkOutdated
    from limpet.errors import LoginRefused as LoginRefused
    from limpet.errors import ModelRefused as ModelRefused
    from limpet.errors import NeedsPerson as NeedsPerson
    from limpet.errors import NewerVersion as NewerVersion
    from limpet.errors import NoProgress as NoProgress
    from limpet.errors import NoStore as NoStore
    from limpet.errors import NotAllowed as NotAllowed
    from limpet.errors import NotAuthenticated as NotAuthenticated
    from limpet.errors import NotDone as NotDone
    from limpet.errors import NotFound as NotFound
    from limpet.errors import NotPermitted as NotPermitted
    from limpet.errors import NotRecorded as NotRecorded
    from limpet.errors import NotRemote as NotRemote
    from limpet.errors import NotResumable as NotResumable
    from limpet.errors import NotStubbed as NotStubbed
    from limpet.errors import OutcomeUnknown as OutcomeUnknown
    from limpet.errors import OutputUnavailable as OutputUnavailable
    from limpet.errors import PatchOutdated as PatchOutdated
    from limpet.errors import QueryTimeout as QueryTimeout
    from limpet.errors import ReadOnlyStore as ReadOnlyStore
    from limpet.errors import RecordConflict as RecordConflict
    from limpet.errors import Rejected as Rejected
    from limpet.errors import Retryable as Retryable
    from limpet.errors import RunCancelled as RunCancelled
    from limpet.errors import RunFailed as RunFailed
    from limpet.errors import SecretWithheld as SecretWithheld
    from limpet.errors import ServerBusy as ServerBusy
    from limpet.errors import Stale as Stale
    from limpet.errors import StaleServer as StaleServer
    from limpet.errors import StepFailed as StepFailed
    from limpet.errors import StoreBusy as StoreBusy
    from limpet.errors import StoreRefused as StoreRefused
    from limpet.errors import StoreReplaced as StoreReplaced
    from limpet.errors import StoreUnavailable as StoreUnavailable
    from limpet.errors import Suspended as Suspended
    from limpet.errors import Tampered as Tampered
    from limpet.errors import TooManyRequests as TooManyRequests
    from limpet.errors import TrialStuck as TrialStuck
    from limpet.errors import Unexpected as Unexpected
    from limpet.errors import Unsupported as Unsupported
    from limpet.errors import WorkerAlive as WorkerAlive
    from limpet.errors import WrongCall as WrongCall
    from limpet.errors import WrongHost as WrongHost
    from limpet.errors import WrongKeys as WrongKeys
    from limpet.errors import WrongOrigin as WrongOrigin
    from limpet.errors import WrongState as WrongState
    from limpet.errors import WrongUsage as WrongUsage
    from limpet.events import Artifact as Artifact
    from limpet.events import Fact as Fact
    from limpet.events import OpenQuestion as OpenQuestion
    from limpet.events import PlanItem as PlanItem
    from limpet.events import RiskFlag as RiskFlag
    from limpet.events import StatePatch as StatePatch
    from limpet.llm.model import Model as Model
    from limpet.policy.escalation import Escalate as Escalate
    from limpet.policy.retry import Retry as Retry
    from limpet.policy.risk import Approvals as Approvals
    from limpet.secret import Secret as Secret
    from limpet.service.app import App as App
    from limpet.service.compare import Comparison as Comparison
    from limpet.service.diffs import Diff as Diff
    from limpet.service.moments import Moment as Moment
    from limpet.service.moments import Point as Point
    from limpet.service.notices import RunNotice as RunNotice
    from limpet.service.page import Page as Page
    from limpet.service.people_channels import Email as Email
    from limpet.service.people_channels import Slack as Slack
    from limpet.service.prompts import PromptView as PromptView
    from limpet.service.steps import StepInfo as StepInfo
    from limpet.service.webhooks import Webhook as Webhook
    from limpet.service.webhooks import is_genuine as is_genuine
    from limpet.state import AgentState as AgentState
    from limpet.stores import Store as Store
    from limpet.stores.cipher import MasterKeys as MasterKeys

    __version__: str
else:
    from importlib import import_module

    _NAMES = {
        "limpet.clock": ("Duration",),
        "limpet.compose": (
            "llm_agent",
            "open",
            "open_store",
            "summarise_with",
        ),
        "limpet.context.slice": ("ContextSlice",),
        "limpet.engine.approvals.externals": (
            "External",
            "external",
        ),
        "limpet.engine.definitions.agents": (
            "Agent",
            "Budget",
        ),
        "limpet.engine.definitions.call_context": (
            "Call",
            "current",
            "idempotency_key",
        ),
        "limpet.engine.definitions.tools": (
            "Done",
            "Tool",
            "tool",
        ),
        "limpet.engine.definitions.upgrades": ("versioned",),
        "limpet.engine.execution.handle": ("Handle",),
        "limpet.engine.execution.principal": ("Principal",),
        "limpet.engine.execution.views": (
            "EventView",
            "Request",
            "RunInfo",
        ),
        "limpet.engine.run.agent_decorator": ("agent",),
        "limpet.engine.run.compaction": (
            "Compaction",
            "Summariser",
        ),
        "limpet.engine.run.conversation": ("Message",),
        "limpet.engine.run.run": (
            "Run",
            "Turn",
        ),
        "limpet.engine.run.working_state": ("State",),
        "limpet.engine.steps.retry_decorator": ("retry",),
        "limpet.engine.steps.verdict": (
            "NotApplied",
            "Permanent",
            "RetryAfter",
        ),
        "limpet.engine.worker.duties": ("Retention",),
        "limpet.engine.worker.worker_settings": ("Worker",),
        "limpet.errors": (
            "AgentFailed",
            "AlreadyAnswered",
            "AuthUnavailable",
            "BlobDamaged",
            "BudgetExceeded",
            "ConnectionLost",
            "ContextTooSmall",
            "ContractError",
            "DamagedEvent",
            "DeadlineExceeded",
            "DefinitionError",
            "Divergence",
            "EngineUnavailable",
            "Expired",
            "ExtraMissing",
            "FileFailed",
            "FormOutdated",
            "HandedOff",
            "IdConflict",
            "InvalidAnswer",
            "InvalidAppend",
            "InvalidArgument",
            "InvalidBundle",
            "InvalidLink",
            "InvalidLinkKey",
            "InvalidPatch",
            "InvalidReply",
            "InvalidTasks",
            "InvalidValue",
            "LeaseLost",
            "LimpetError",
            "LinkExpired",
            "LinkOutdated",
            "LoginRefused",
            "ModelRefused",
            "NeedsPerson",
            "NewerVersion",
            "NoProgress",
            "NoStore",
            "NotAllowed",
            "NotAuthenticated",
            "NotDone",
            "NotFound",
            "NotPermitted",
            "NotRecorded",
            "NotRemote",
            "NotResumable",
            "NotStubbed",
            "OutcomeUnknown",
            "OutputUnavailable",
            "PatchOutdated",
            "QueryTimeout",
            "ReadOnlyStore",
            "RecordConflict",
            "Rejected",
            "Retryable",
            "RunCancelled",
            "RunFailed",
            "SecretWithheld",
            "ServerBusy",
            "Stale",
            "StaleServer",
            "StepFailed",
            "StoreBusy",
            "StoreRefused",
            "StoreReplaced",
            "StoreUnavailable",
            "Suspended",
            "Tampered",
            "TooManyRequests",
            "TrialStuck",
            "Unexpected",
            "Unsupported",
            "WorkerAlive",
            "WrongCall",
            "WrongHost",
            "WrongKeys",
            "WrongOrigin",
            "WrongState",
            "WrongUsage",
        ),
        "limpet.events": (
            "Artifact",
            "Fact",
            "OpenQuestion",
            "PlanItem",
            "RiskFlag",
            "StatePatch",
        ),
        "limpet.llm.model": ("Model",),
        "limpet.policy.escalation": ("Escalate",),
        "limpet.policy.retry": ("Retry",),
        "limpet.policy.risk": ("Approvals",),
        "limpet.secret": ("Secret",),
        "limpet.service.app": ("App",),
        "limpet.service.compare": ("Comparison",),
        "limpet.service.diffs": ("Diff",),
        "limpet.service.moments": (
            "Moment",
            "Point",
        ),
        "limpet.service.notices": ("RunNotice",),
        "limpet.service.page": ("Page",),
        "limpet.service.people_channels": (
            "Email",
            "Slack",
        ),
        "limpet.service.prompts": ("PromptView",),
        "limpet.service.steps": ("StepInfo",),
        "limpet.service.webhooks": (
            "Webhook",
            "is_genuine",
        ),
        "limpet.state": ("AgentState",),
        "limpet.stores": ("Store",),
        "limpet.stores.cipher": ("MasterKeys",),
    }
    _MODULES = {name: module for module, names in _NAMES.items() for name in names}
    __all__ = sorted([*_MODULES, "__version__", "sync"])  # noqa: PLE0605

    def __getattr__(name: str) -> object:
        """Load a public name, and keep it."""
        if name == "sync":
            return import_module("limpet.sync")
        if name == "__version__":
            found = import_module("importlib.metadata").version("limpet")
        elif name in _MODULES:
            found = getattr(import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module 'limpet' has no attribute {name!r}", name=name, obj=import_module("limpet"))
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """List the public names only, not the submodules."""
        return __all__
