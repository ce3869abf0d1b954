"""Every error that Limpet raises: a stable code, its facts as fields, and a hint: what to type or change.

    LimpetError
    │
    ├── InvalidValue                The value is not plain JSON, or would be read back as a different value
    │   └── InvalidArgument         An argument or option is invalid
    ├── InvalidPatch                The patch is invalid
    ├── InvalidAnswer               The answer does not fit the request
    ├── InvalidBundle               The file is not an exported run, or it was changed
    ├── InvalidTasks                Tasks of another program cannot be imported
    ├── InvalidAppend               The write is malformed
    ├── ContractError               An input or result does not match the agent's contract
    ├── NotFound                    No such run, request, worker, blob or path
    ├── IdConflict                  The id already belongs to something else
    ├── RecordConflict              A shared record has changed since it was read
    ├── WrongUsage                  Invalid command-line arguments
    ├── FileFailed                  A file or folder cannot be read or written
    ├── ExtraMissing                An optional dependency is not installed
    │
    ├── DefinitionError             An invalid definition of a tool or agent
    ├── WrongCall                   A mistake in agent or tool code
    ├── HandedOff                   A call after a handoff
    ├── Divergence                  The code does not match the run's log
    ├── Suspended                   This process no longer executes the run
    ├── SecretWithheld              The secret was loaded from a log, which does not store its value
    │
    ├── StepFailed                  A step failed
    │   ├── Rejected                A person rejected the step
    │   ├── OutcomeUnknown          It is unknown whether the step was applied, and it is not retried
    │   └── OutputUnavailable       The step was applied, but its output cannot be stored or read
    ├── Stale                       The tool requires fresh data from a source, and the last read is too old or missing
    ├── BudgetExceeded              The next step would exceed the run's budget
    ├── DeadlineExceeded            The run passed its deadline
    ├── AgentFailed                 A called agent did not complete
    ├── ModelRefused                The model refused to answer
    ├── NoProgress                  The model repeats itself or does not finish
    ├── ContextTooSmall             The prompt does not fit into the model's window
    │
    ├── RunFailed                   The run has failed
    ├── RunCancelled                The run was cancelled
    ├── NotDone                     The run has not ended yet
    ├── WrongState                  The run's status does not allow this
    ├── LeaseLost                   Another worker holds the run, or it was released
    ├── WorkerAlive                 A worker with this id is alive in another process
    ├── AlreadyAnswered             The request was already decided or withdrawn
    ├── Expired                     The request or wait expired before an answer arrived
    ├── NotAllowed                  This person may not decide the request
    ├── NeedsPerson                 A model's client tried to decide what only a person decides
    ├── FormOutdated                The request shows something else than the form that was filled in
    ├── PatchOutdated               The run has changed what a patch touches since it was read
    │
    ├── NoStore                     No store exists at the URL
    ├── Retryable                   Base class of store errors after which a retry is safe and likely to succeed
    │   ├── ConnectionLost          The server or the disk failed
    │   └── StoreBusy               Another process held the store for too long
    ├── QueryTimeout                A query took too long
    ├── StoreRefused                The database refused a statement
    │   └── ReadOnlyStore           The store can be read, but not written
    ├── StoreUnavailable            The store accepts no work now
    │   └── StoreReplaced           The store's file was deleted or replaced while it was open
    ├── StaleServer                 The server is a former primary, or another database
    ├── EngineUnavailable           The engine that has runs driven cannot be reached
    ├── Unsupported                 This store does not support the operation
    ├── NewerVersion                A newer version of Limpet wrote this
    ├── DamagedEvent                The event's kind and version are known, but its body does not decode
    ├── Tampered                    The log does not match its own hashes
    ├── BlobDamaged                 The stored bytes do not match the blob's name
    ├── WrongKeys                   The store's data cannot be decrypted with the given keys
    │
    ├── InvalidLinkKey              The keys of decision links are malformed
    ├── InvalidLink                 The link to decide a request is not valid
    ├── LinkExpired                 The link to decide a request has expired
    ├── LinkOutdated                The request shows something else than when the link was sent
    ├── LoginRefused                The identity provider's reply logs no one in
    ├── NotAuthenticated            The HTTP request has no token, or an unknown one
    ├── NotPermitted                The caller's roles do not allow the operation
    ├── AuthUnavailable             The server cannot check tokens at the moment
    ├── TooManyRequests             The caller sends more requests than the server accepts
    ├── ServerBusy                  The server has too much to do
    ├── WrongHost                   The HTTP request names a host that this server does not accept
    ├── WrongOrigin                 The HTTP request comes from a browser page of another origin
    ├── NotRemote                   The call needs the store itself, not a server
    ├── InvalidReply                A server did not reply as a Limpet server does
    │
    ├── NotRecorded                 The replay reached a call that its log does not have, and did not make it
    ├── NotStubbed                  A fork with stubbed effects could not generate a result for a tool
    ├── NotResumable                The agent behaved differently when it was resumed
    ├── TrialStuck                  A test run waits for something that never happens, or takes too long
    └── Unexpected                  An exception that is not a LimpetError

A class body has two templates, `_summary` and `_hint`, which are filled with the fields.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from limpet.redaction import hide_secrets_in
from limpet.times import format_time

__all__ = [
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
]


@dataclass(eq=False, repr=False)
class LimpetError(Exception):
    """Base class of all Limpet errors. `code`, `facts`, `summary` and `hint` are the same in every interface."""

    __module__ = "limpet"

    code: ClassVar[str] = "limpet_error"
    _summary: ClassVar[str] = "Limpet failed."
    _hint: ClassVar[str] = "Read the fields of this error."

    @property
    def facts(self) -> Mapping[str, object]:
        """Fields of the error by name, with secrets masked. `fix` is left out: it is the hint."""
        return {name: value for name, value in self._fields().items() if name != "fix"}

    @property
    def summary(self) -> str:
        """One sentence that says what happened."""
        return self._summary.format(**self._shown())

    @property
    def hint(self) -> str:
        """Command to type or edit to make; an error with a field `fix` may carry its own hint."""
        known = self._fields()
        return str(known.get("fix") or self._hint.format(**{**known, **self._shown()}))

    def _shown(self) -> dict[str, object]:
        """Return the facts in the form in which the summary shows them."""
        return dict(self.facts)

    def _fields(self) -> dict[str, object]:
        known: dict[str, object] = hide_secrets_in({field.name: getattr(self, field.name) for field in fields(self)})
        return known

    def __init_subclass__(cls) -> None:
        """Give the class its public name, `limpet.Expired`, which is stored in logs and survives moves."""
        if cls.__module__ == __name__:
            cls.__module__ = LimpetError.__module__

    def __reduce__(self) -> tuple[type["LimpetError"], tuple[object, ...]]:
        return type(self), tuple(self._fields().values())  # copy and pickle would pass the message instead

    def __str__(self) -> str:
        return f"{self.summary} {self.hint} [{self.code}]"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.facts.items())})"


@dataclass(eq=False, repr=False)
class InvalidValue(LimpetError):
    """The value is not plain JSON, would be read back as a different value, or does not have the declared type."""

    path: str
    """Where in the value; "$" is the whole value."""
    reason: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "invalid_value"
    _summary = "Invalid value at {path}: {reason}."
    _hint = "Pass plain JSON: None, bool, int, finite float, str, list, or dict with str keys."

    def at(self, name: str) -> str:
        """Return the reason with its place, such as "cents: expected int, got str". `name` is that of the value."""
        return f"{place_of(self.path, name)}: {self.reason}"


def place_of(path: str, name: str) -> str:
    """Return a path for people: `name` for the whole value ("$"), and "order.cents" for "$.order.cents"."""
    return path[2:] if path.startswith("$.") else f"{name}{path[1:]}" if path.startswith("$") else path


@dataclass(eq=False, repr=False)
class InvalidArgument(InvalidValue):
    """An argument or option is invalid. Nothing was done."""

    code = "invalid_argument"
    _summary = "Invalid {path}: {reason}."
    _hint = "Nothing changed. Correct {path} and retry."


def invalid_url(url: str) -> InvalidArgument:
    """Return the error for a URL that names no store."""
    fix = "Use sqlite:///file.db (four slashes for an absolute path), postgresql://user@host/database or memory:."
    return InvalidArgument(path="store URL", reason=repr(url), fix=fix)


@dataclass(eq=False, repr=False)
class InvalidPatch(LimpetError):
    """The patch is invalid; no part of it was applied."""

    part: str
    reason: str
    code = "invalid_patch"
    _summary = "Patch rejected; nothing was applied. Problem in {part}: {reason}."
    _hint = "Correct {part} and send the whole patch again. `limpet state RUN` shows the current state."


@dataclass(eq=False, repr=False)
class InvalidAnswer(LimpetError):
    """The answer does not fit the request; it was not recorded."""

    request: str
    reason: str
    code = "invalid_answer"
    _summary = "Invalid answer to request {request}: {reason}."
    _hint = (
        "Run `limpet inbox` to see its options or schema, and answer again. If the run failed on this answer, "
        "resuming it asks again."
    )


@dataclass(eq=False, repr=False)
class InvalidBundle(LimpetError):
    """The file is not an exported run, or it was changed."""

    path: str
    reason: str
    code = "invalid_bundle"
    _summary = "{path} is not a valid bundle: {reason}."
    _hint = "Pass a file that `limpet export` wrote, with this version of Limpet or an older one."


@dataclass(eq=False, repr=False)
class InvalidTasks(LimpetError):
    """Some tasks of another program cannot be imported. Nothing was imported."""

    path: str
    problems: tuple[str, ...]
    """Each task that cannot be imported, and why."""
    code = "invalid_tasks"
    _summary = "Nothing was imported from {path}: {problems}."
    _hint = "Correct or remove these tasks, and import again: `limpet import tasks FILE --agent NAME`."

    def _shown(self) -> dict[str, object]:
        return {**super()._shown(), "problems": "; ".join(self.problems)}


@dataclass(eq=False, repr=False)
class InvalidAppend(LimpetError):
    """The write is malformed: a bug in the writer. Nothing was written."""

    run: str
    """Id of the run or conversation; empty if the write belongs to none."""
    reason: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "invalid_append"
    _summary = "The store refused a write{run}: {reason}."
    _hint = "Fix the writer: seal events with seal(), from the head that the store returned."

    def _shown(self) -> dict[str, object]:
        return {**self.facts, "run": f" to {self.run}" if self.run else ""}


@dataclass(eq=False, repr=False)
class ContractError(LimpetError):
    """An input or result does not match the agent's contract."""

    agent: str
    what: str
    reason: str
    faults: tuple[str, ...] = ()
    """All mismatches, each with its path."""
    code = "contract_error"
    _summary = "The {what} of {agent} does not match its contract: {reason}."
    _hint = (
        "Pass or return what the annotations declare; `agent.contract()` shows them. A run with an invalid input "
        "does not start."
    )


@dataclass(eq=False, repr=False)
class NotFound(LimpetError):
    """No such run, request, worker, blob or path."""

    what: str
    id: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "not_found"
    _summary = "No {what} {id!r}."
    _hint = "Correct the id, or pass the right store with --url or LIMPET_URL."


@dataclass(eq=False, repr=False)
class IdConflict(LimpetError):
    """The id already belongs to something else: a run of another agent or input, another command, or a token."""

    what: str
    """`run`, `command` or `token`."""
    id: str
    reason: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "id_conflict"
    _summary = "The {what} id {id!r} is already used {reason}."
    _hint = "Use another id. Reuse an id only to repeat exactly the same {what}."


@dataclass(eq=False, repr=False)
class RecordConflict(LimpetError):
    """A shared record has changed since it was read, in a part that the patch changes, too; nothing was written."""

    record: str
    read: int
    """Version that the writer of the patch had read."""
    version: int
    """Version of the record now; 0 if there is none."""
    changes: tuple[str, ...] = ()
    """Changes of these parts by others since then, the first 20."""
    code = "record_conflict"
    _summary = "Record {record!r} has changed since version {read}: {told}."
    _hint = "Read the record again (it has version {version} now), and send a patch that fits."

    def _shown(self) -> dict[str, object]:
        return {**self.facts, "told": "; ".join(self.changes) or f"its version is {self.version}"}


@dataclass(eq=False, repr=False)
class WrongUsage(LimpetError):
    """Invalid command-line arguments; nothing was done."""

    reason: str
    command: str
    code = "wrong_usage"
    _summary = "{reason}"
    _hint = "Run `{command} --help`."


@dataclass(eq=False, repr=False)
class FileFailed(LimpetError):
    """A file or folder cannot be read or written."""

    path: str
    reason: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "file_failed"
    _summary = "Cannot use {path}: {reason}."
    _hint = "Pass another path, or fix this one: it must exist, be readable and writable, and have free disk space."


@dataclass(eq=False, repr=False)
class ExtraMissing(LimpetError):
    """An optional dependency is not installed."""

    extra: str
    code = "extra_missing"
    _summary = "The optional dependency {extra!r} is not installed."
    _hint = "Run `pip install 'limpet[{extra}]'`."


@dataclass(eq=False, repr=False)
class DefinitionError(LimpetError):
    """An invalid definition of a tool or agent; raised where it is defined."""

    what: str
    reason: str
    code = "definition_error"
    _summary = "Invalid definition of {what}: {reason}."
    _hint = "Correct the definition. Nothing was started."


@dataclass(eq=False, repr=False)
class WrongCall(LimpetError):
    """A mistake in agent or tool code: a call in the wrong place, without `await`, or without a scope."""

    reason: str
    fix: str
    code = "wrong_call"
    _summary = "{reason}."
    _hint = "{fix}"


@dataclass(eq=False, repr=False)
class HandedOff(LimpetError):
    """A call after a handoff; it had no effect."""

    run: str
    agent: str
    code = "handed_off"
    _summary = "{run} was handed off to {agent}; this call had no effect."
    _hint = "Return the result of `run.handoff`. To continue after it, use `run.call` instead."


@dataclass(eq=False, repr=False)
class Divergence(LimpetError):
    """The code does not match the run's log. Nothing was done."""

    run: str
    verb: str
    reason: str
    code = "divergence"
    _summary = "The code of {run} no longer matches its log at {verb}: {reason}. Nothing was done."
    _hint = (
        "Restore the old code or guard the change with `run.version(...)`, then run `limpet resume {run}`. Or continue "
        "with the new code in a fork: `limpet fork {run} --at STEP`."
    )


def is_named(names: Iterable[str], cls: type[BaseException] | str) -> bool:
    """Return whether a class, given as such or by its qualified name or the end of that, is among qualified names."""
    if isinstance(cls, type):
        return f"{cls.__module__}.{cls.__qualname__}" in names
    return any(name == cls or name.endswith(f".{cls}") for name in names)


@dataclass(eq=False, repr=False)
class Suspended(LimpetError):
    """This process no longer executes the run; the call had no effect."""

    run: str
    reason: str
    code = "suspended"
    _summary = "This process no longer executes {run} ({reason}); this call had no effect."
    _hint = (
        "Let the function end, and call no run method in `finally`. The run continues from its log when a worker "
        "claims it."
    )


@dataclass(eq=False, repr=False)
class SecretWithheld(LimpetError):
    """The secret was loaded from a log, which does not store its value."""

    code = "secret_withheld"
    _summary = "This secret was loaded from the log, which does not store its value."
    _hint = "Read the secret inside the tool that uses it, or pass a `Secret` to the step."


@dataclass(eq=False, repr=False)
class StepFailed(LimpetError):
    """A step failed; raised live and on replay. Nothing was applied, unless it is an OutcomeUnknown."""

    tool: str
    number: int
    attempts: int
    error_type: str
    message: str = ""
    error_types: tuple[str, ...] = ()
    """Qualified names of the error's class and all its base classes."""
    code = "step_failed"
    _summary = "Step {number} ({tool}) failed after {attempts} attempt{s}: {error_type}: {message}."
    _hint = "Catch limpet.StepFailed to continue without it. Or fix the cause and run `limpet resume` on the run."

    def _shown(self) -> dict[str, object]:
        # The message of a foreign error may already end with a full stop.
        shown = {name: each.removesuffix(".") if isinstance(each, str) else each for name, each in self.facts.items()}
        cause = ": ".join(str(shown[name]) for name in ("error_type", "message") if shown[name])
        return {**shown, "cause": cause, "s": "" if self.attempts == 1 else "s"}

    def was(self, cls: type[BaseException] | str) -> bool:
        """Return whether the error was of this class or a subclass, given as a class or by its name."""
        return is_named((self.error_type, *self.error_types), cls)


@dataclass(eq=False, repr=False)
class Rejected(StepFailed):
    """A person rejected the step; it did not start."""

    because: str = ""
    by: str = ""
    code = "rejected"
    _summary = "{by!r} rejected step {number} ({tool}): {because}."
    _hint = "Catch limpet.Rejected to continue without it. `limpet resume` on the failed run asks again."


@dataclass(eq=False, repr=False)
class OutcomeUnknown(StepFailed):
    """Limpet does not know whether the step was applied, and does not retry it."""

    code = "outcome_unknown"
    _summary = "Unknown whether step {number} ({tool}) was applied: {cause}."
    _hint = (
        "Find out in the external system whether {tool} was applied, then run `limpet resume` on the failed run: it "
        "asks for the outcome, or repeats an idempotent tool. Or catch limpet.OutcomeUnknown. `@{tool}.verify` "
        "automates the check."
    )


@dataclass(eq=False, repr=False)
class OutputUnavailable(StepFailed):
    """The step was applied, but its output cannot be stored or read. A resume repeats it only if that is safe."""

    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "output_unavailable"
    _summary = "Step {number} ({tool}) was applied, but its output cannot be stored or read: {message}."
    _hint = (
        "Return plain JSON or the annotated type from {tool}, or catch limpet.OutputUnavailable. To continue a failed "
        "run, fork it at the next step with `--result {number}=JSON`."
    )


@dataclass(eq=False, repr=False)
class Stale(LimpetError):
    """The tool requires fresh data from a source, and the last read is too old or missing. It did not start."""

    tool: str
    source: str
    code = "stale"
    _summary = "{tool} did not start: the data from {source} is out of date."
    _hint = "Call `run.read({source}, ...)` again before this step."


@dataclass(eq=False, repr=False)
class BudgetExceeded(LimpetError):
    """The next step would exceed the run's budget."""

    limit: str
    allowed: float
    wanted: float
    """Total usage of the run, including the most that the next step may use."""
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "budget_exceeded"
    _summary = "Budget exceeded: {limit} is {allowed}, and with the next step the usage would be {wanted}."
    _hint = (
        "Run `limpet extend RUN --budget {limit}=N` with a larger N, then `limpet resume RUN`. For new runs, set a "
        'larger {limit} in Budget(...), or exhausted="ask" so that a person can extend it.'
    )

    def _shown(self) -> dict[str, object]:
        return {**self.facts, "allowed": f"{self.allowed:.12g}", "wanted": f"{self.wanted:.12g}"}


@dataclass(eq=False, repr=False)
class DeadlineExceeded(LimpetError):
    """The run passed its deadline."""

    deadline: int
    """By the store's clock, in microseconds since 1970."""
    code = "deadline_exceeded"
    _summary = "The run passed its deadline, {deadline}."
    _hint = (
        "Run `limpet extend RUN --deadline 2h`, then `limpet resume RUN`. For new runs, set a longer deadline= on the "
        "agent."
    )

    def _shown(self) -> dict[str, object]:
        return {**self.facts, "deadline": format_time(self.deadline)}


@dataclass(eq=False, repr=False)
class AgentFailed(LimpetError):
    """A called agent did not complete."""

    run: str
    agent: str
    outcome: str
    """`failed`, `cancelled`, or `expired` if its deadline passed."""
    error_type: str = ""
    message: str = ""
    step: int | None = None
    """Number of the step that failed in that run."""
    error_types: tuple[str, ...] = ()
    """Qualified names of the error's class and all its base classes."""
    traceback: str = ""
    """Traceback of the error in that run."""
    code = "agent_failed"
    _summary = "Agent {agent} ({run}) did not complete ({outcome}): {error_type}: {message}"
    _hint = "Run `limpet show {run}`. Resuming the calling run also resumes {run} from its failed step."

    def was(self, cls: type[BaseException] | str) -> bool:
        """Return whether the error was of this class or a subclass, given as a class or by its name."""
        return is_named((self.error_type, *self.error_types), cls)


@dataclass(eq=False, repr=False)
class ModelRefused(LimpetError):
    """The model refused to answer."""

    agent: str
    text: str
    code = "model_refused"
    _summary = "The model of {agent} refused to answer: {text}"
    _hint = (
        "Read the prompt with `limpet prompt RUN STEP`, change the instructions, and run `limpet fork RUN --at STEP`. "
        "Resuming the run would return the recorded reply again."
    )


@dataclass(eq=False, repr=False)
class NoProgress(LimpetError):
    """The model repeats itself or does not finish."""

    agent: str
    reason: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "no_progress"
    _summary = "{agent} did not finish: {reason}."
    _hint = "Change the instructions, then fork the run at an earlier model call: `limpet fork RUN --at STEP`."


@dataclass(eq=False, repr=False)
class ContextTooSmall(LimpetError):
    """The prompt does not fit into the model's window."""

    needed: int
    window: int
    code = "context_too_small"
    _summary = "The prompt needs at least {needed} tokens, but the window has {window}."
    _hint = "Set window= to the model's real size, remove tools, or shorten the instructions or the newest messages."


@dataclass(eq=False, repr=False)
class RunFailed(LimpetError):
    """The run has failed."""

    run: str
    error_type: str
    message: str
    step: int | None = None
    error_types: tuple[str, ...] = ()
    """Qualified names of the error's class and all its base classes."""
    traceback: str = ""
    """Traceback of the error, as it was recorded."""
    fix: str = ""
    """The hint of the error that failed the run, if it has one."""
    code = "run_failed"
    _summary = "{run} failed: {error_type}: {message}."
    _hint = "Fix the cause, then run `limpet resume {run}` to continue from the failed step."

    def _shown(self) -> dict[str, object]:
        # The message may already end with a full stop.
        return {**self.facts, "message": str(self.facts["message"]).removesuffix(".")}


@dataclass(eq=False, repr=False)
class RunCancelled(LimpetError):
    """The run was cancelled."""

    run: str
    reason: str
    code = "run_cancelled"
    _summary = "{run} was cancelled: {reason}."
    _hint = "Start a new run. A cancelled run cannot be resumed."


@dataclass(eq=False, repr=False)
class NotDone(LimpetError):
    """The run has not ended yet."""

    run: str
    status: str
    code = "not_done"
    _summary = "{run} has not ended: it is {status}."
    _hint = "Pass a longer timeout=, or run `limpet show {run}` to see what it waits for."


@dataclass(eq=False, repr=False)
class WrongState(LimpetError):
    """The run's status does not allow this."""

    run: str
    status: str
    wanted: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "wrong_state"
    _summary = "{run} is {status}, so {wanted} is not possible."
    _hint = (
        "Run `limpet show {run}` to see what it allows. A run that completed or was cancelled cannot change; start "
        "a new one."
    )


@dataclass(eq=False, repr=False)
class LeaseLost(LimpetError):
    """Another worker holds the run, or it was released; this fence can no longer write."""

    run: str
    fence: int
    current: int
    code = "lease_lost"
    _summary = "Another worker has taken over {run}: fence {fence} is no longer valid (now {current})."
    _hint = "Stop executing this run. `journal.keep_late()` stores the results that were not written."


@dataclass(eq=False, repr=False)
class WorkerAlive(LimpetError):
    """A worker with this id is alive in another process."""

    worker: str
    code = "worker_alive"
    _summary = "A worker with the id {worker!r} is alive in another process."
    _hint = "If you call `store.register`, use a new worker id for each process. `limpet worker` always does."


@dataclass(eq=False, repr=False)
class AlreadyAnswered(LimpetError):
    """The request was already decided or withdrawn. The first decision is final."""

    request: str
    status: str
    by: str
    code = "already_answered"
    _summary = "Request {request} is already {status} (by {by!r}). The first decision is final."
    _hint = "Nothing to do. `limpet inbox` lists the open requests."


@dataclass(eq=False, repr=False)
class Expired(LimpetError):
    """The request or wait expired before an answer arrived."""

    request: str
    """Id of the request, or name of the call of `run.receive`."""
    expired_at: int
    """By the store's clock, in microseconds since 1970."""
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "expired"
    _summary = "The request or wait {request} expired at {expired_at}."
    _hint = "Run `limpet inbox` for the open requests: this one can no longer be decided."

    def _shown(self) -> dict[str, object]:
        return {**self.facts, "expired_at": format_time(self.expired_at)}


@dataclass(eq=False, repr=False)
class NotAllowed(LimpetError):
    """This person may not decide the request. It is still open."""

    request: str
    by: str
    to: tuple[str, ...]
    reason: str = ""
    """Why one of the addressees may not decide it."""
    fix: str = ""
    """The hint for them."""
    code = "not_allowed"
    _summary = "{by!r} may not decide request {request}, which is for {to}{reason}. It is still open."
    _hint = "Decide as one of them, or add {by!r} to a group in `limpet.open(people=...)`."

    def _shown(self) -> dict[str, object]:
        return {**self.facts, "to": ", ".join(self.to), "reason": self.reason and f": {self.reason}"}


@dataclass(eq=False, repr=False)
class NeedsPerson(LimpetError):
    """A model's client tried to decide what only a person decides. The request is still open."""

    request: str
    by: str
    fix: str = ""
    """How the person decides it, where that is known."""
    code = "needs_person"
    _summary = "Only a person decides request {request}, not a model that acts for {by!r}. It is still open."
    _hint = "Tell the person to type `limpet approve {request}` or `limpet reject {request} --because REASON`."


@dataclass(eq=False, repr=False)
class FormOutdated(LimpetError):
    """The request shows something else than the form that was filled in. Nothing was decided."""

    request: str
    code = "form_outdated"
    _summary = "Request {request} asks for something else than the form that was filled in. Nothing was decided."
    _hint = "Repeat the call without the form: the person then sees the new arguments."


@dataclass(eq=False, repr=False)
class PatchOutdated(LimpetError):
    """The run has changed what a patch touches since its state was read. Nothing was sent."""

    run: str
    seq: int
    """Position of the log at which the sender read the state."""
    now: int
    """Position of the log now."""
    changed: tuple[str, ...]
    """The parts that have changed meanwhile, such as `facts.cents`."""
    code = "patch_outdated"
    _summary = "Run {run} has changed {changed} between event {seq} and event {now}. The patch was not sent."
    _hint = "Read the state again (`limpet state {run}`), and send a patch of that, with its `seq`."

    def _shown(self) -> dict[str, object]:
        return {**self.facts, "changed": ", ".join(self.changed)}


@dataclass(eq=False, repr=False)
class NoStore(LimpetError):
    """No store exists at the URL. Reading commands do not create one."""

    url: str
    code = "no_store"
    _summary = "No store at {url}. Limpet did not create one."
    _hint = "Pass --url or set LIMPET_URL. `limpet worker` creates a new store."


@dataclass(eq=False, repr=False)
class Retryable(LimpetError):
    """Base class of store errors after which a retry is safe and likely to succeed."""

    reason: str
    code = "retryable"
    _summary = "The store did not accept the call: {reason}."
    _hint = "Retry."


@dataclass(eq=False, repr=False)
class ConnectionLost(Retryable):
    """The server or the disk failed. It is unknown whether the write was applied; repeating it is safe."""

    code = "connection_lost"
    _summary = "Cannot reach the store: {reason}. The write may or may not have been applied."
    _hint = "Retry: a repeated write is applied once. The store reconnects automatically."


@dataclass(eq=False, repr=False)
class StoreBusy(Retryable):
    """Another process held the store for too long, or wrote first. Nothing was written."""

    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "store_busy"
    _summary = "The store is busy: {reason}. Nothing was written."
    _hint = "Retry. If it persists, find the process that keeps a transaction open."


@dataclass(eq=False, repr=False)
class QueryTimeout(LimpetError):
    """A query took too long; it changed nothing."""

    what: str
    seconds: float
    code = "query_timeout"
    _summary = "{what} took longer than {seconds} s."
    _hint = "Narrow the query with its filters or a smaller limit, and retry."


@dataclass(eq=False, repr=False)
class StoreRefused(LimpetError):
    """The database refused a statement. Nothing was written, and the store stays usable."""

    reason: str
    code = "store_refused"
    _summary = "The database refused a statement: {reason}. Nothing was written."
    _hint = "Fix the cause (privileges, settings, disk space) and retry. You need not reopen the store."


@dataclass(eq=False, repr=False)
class ReadOnlyStore(StoreRefused):
    """This process can read the store, but not write to it. Queries work, and change nothing."""

    fix: str = ""
    """The hint, where a better one than the default is known."""
    is_standby: bool = False
    """Whether the server is a standby, which may be promoted."""
    code = "read_only_store"
    _summary = "The store is read-only here: {reason}. Nothing was written."
    _hint = "Use a file, folder, role or server that accepts writes. Queries such as `limpet show` work here."


def outdated_store(why: ReadOnlyStore, found: str) -> ReadOnlyStore:
    """Return the error for a store that this process would have to upgrade, and may not write to."""
    return ReadOnlyStore(
        reason=f"{found}, and it cannot be upgraded, because {why.reason}",
        fix="Run `limpet doctor` once with a user, role or server that may write to the store: that upgrades it.",
        is_standby=why.is_standby,
    )


@dataclass(eq=False, repr=False)
class StoreUnavailable(LimpetError):
    """The store accepts no work now. Each call tries again."""

    reason: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "store_unavailable"
    _summary = "The store accepts no work: {reason}."
    _hint = "Fix the cause (disk, space, connection) and retry. Repeating a write is safe."


@dataclass(eq=False, repr=False)
class EngineUnavailable(LimpetError):
    """The engine that has runs driven cannot be reached. Commands are recorded all the same."""

    engine: str
    address: str
    reason: str
    code = "engine_unavailable"
    _summary = "{engine} at {address} cannot be reached: {reason}."
    _hint = "Correct the address or start the server. Nothing is lost: its workers take up the runs when it is back."


def not_open(what: str = "app") -> StoreUnavailable:
    """Return the error for an app or store that is used before it is opened or after it is closed."""
    return StoreUnavailable(
        reason=f"the {what} is not open", fix="Use it inside `async with limpet.open(...) as app`, or await it."
    )


def other_loop() -> WrongCall:
    """Return the error for an app that is used on another event loop than the one it was opened on."""
    return WrongCall(
        reason="The app was opened on another event loop",
        fix="Open and use it inside one `asyncio.run(main())`, or use `limpet.sync.open`, without a loop.",
    )


@dataclass(eq=False, repr=False)
class StoreReplaced(StoreUnavailable):
    """The store's file was deleted or replaced while it was open; the store has stopped."""

    code = "store_replaced"
    _summary = "The store has stopped, and the last writes may be lost: {reason}."
    _hint = "Stop every process that uses this store, put the file back or restore a backup, and start them again."


@dataclass(eq=False, repr=False)
class StaleServer(LimpetError):
    """The server is a former primary, or another database than the one that this process has used."""

    found: str
    seen: str
    code = "stale_server"
    _summary = (
        "The database server is at {found}, but this process has used {seen}. It is a former primary, or another "
        "database."
    )
    _hint = "Point the URL at the current primary. If you restored an old backup on purpose, restart this process."


@dataclass(eq=False, repr=False)
class Unsupported(LimpetError):
    """This store does not support the operation."""

    what: str
    code = "unsupported"
    _summary = "This store does not support {what}."
    _hint = "Open a store that does: `store.capabilities` lists what each supports."


@dataclass(eq=False, repr=False)
class NewerVersion(LimpetError):
    """A newer version of Limpet wrote this. A worker that cannot read a run leaves it to newer workers."""

    what: str
    reason: str
    code = "newer_version"
    _summary = "Cannot read {what}: {reason}."
    _hint = "Run `pip install -U limpet`: a newer version wrote this. A store cannot be downgraded."


def newer_store(found: int, supported: int) -> NewerVersion:
    """Return the error for a store with a newer schema."""
    return NewerVersion(
        what=f"the store, which has schema version {found}",
        reason=f"this version of Limpet supports up to {supported}",
    )


@dataclass(eq=False, repr=False)
class DamagedEvent(LimpetError):
    """The event's kind and version are known, but its body does not decode. The run waits for an operator."""

    kind: str
    version: int
    reason: str
    code = "damaged_event"
    _summary = "Cannot read event {kind!r} version {version}: {reason}."
    _hint = (
        "Run `limpet verify` to find out whether the store is damaged, and restore the run from a backup or an export."
    )


@dataclass(eq=False, repr=False)
class Tampered(LimpetError):
    """The log does not match its own hashes."""

    run: str
    seq: int
    reason: str
    code = "tampered"
    _summary = "The log of {run} is not intact at event {seq}: {reason}."
    _hint = (
        "Do not resume it. Run `limpet verify {run}`, and compare with a backup or with saved heads (`limpet "
        "verify --heads FILE`)."
    )


@dataclass(eq=False, repr=False)
class BlobDamaged(LimpetError):
    """The stored bytes do not match the blob's name."""

    blob: str
    reason: str
    code = "blob_damaged"
    _summary = "Blob {blob} is damaged: {reason}."
    _hint = "Restore it from a backup. A blob is named by its content, so any intact copy works."


@dataclass(eq=False, repr=False)
class WrongKeys(LimpetError):
    """The store's data cannot be decrypted with the given keys."""

    reason: str
    code = "wrong_keys"
    _summary = "Cannot use the store with these keys: {reason}."
    _hint = (
        "Pass the keys that this store was created with in keys=, LIMPET_KEYS or LIMPET_KEYS_FILE. Encryption "
        "cannot be turned on or off later."
    )


@dataclass(eq=False, repr=False)
class InvalidLinkKey(LimpetError):
    """The keys of decision links are malformed. Nothing was started."""

    reason: str
    code = "invalid_link_key"
    _summary = "Cannot make links to decide requests: {reason}."
    _hint = "Set LIMPET_LINK_KEY to the output of `openssl rand -hex 32`; several keys as id:key,id:key."


@dataclass(eq=False, repr=False)
class InvalidLink(LimpetError):
    """The link to decide a request is not valid. Nothing was decided."""

    reason: str
    code = "invalid_link"
    _summary = "This link is not valid: {reason}."
    _hint = "Open the link in the notice itself, or find the request in the inbox."


@dataclass(eq=False, repr=False)
class LinkExpired(LimpetError):
    """The link to decide a request has expired. Nothing was decided."""

    expired_at: int
    """By the store's clock, in microseconds since 1970."""
    code = "link_expired"
    _summary = "This link expired at {expired_at}."
    _hint = "Find the request in the inbox: if it is still open, it can be decided there."

    def _shown(self) -> dict[str, object]:
        return {**self.facts, "expired_at": format_time(self.expired_at)}


@dataclass(eq=False, repr=False)
class LinkOutdated(LimpetError):
    """The request shows something else than when the link was sent. Nothing was decided."""

    request: str
    code = "link_outdated"
    _summary = "Request {request} asks for something else than when this link was sent."
    _hint = "Find the request in the inbox, with its new arguments, and decide there."


@dataclass(eq=False, repr=False)
class LoginRefused(LimpetError):
    """The identity provider's reply logs no one in. No session has begun."""

    reason: str
    code = "login_refused"
    _summary = "You are not logged in: {reason}."
    _hint = "Begin again at /ui/login. If it fails again, an operator must change the mapping of claims to roles."


@dataclass(eq=False, repr=False)
class NotAuthenticated(LimpetError):
    """The HTTP request has no token, or an unknown one."""

    code = "not_authenticated"
    _summary = "Missing or unknown token."
    _hint = (
        "Pass a token: `token=` or LIMPET_TOKEN in Python and on the command line, the header `Authorization` with the "
        "scheme Bearer over HTTP. `limpet token create` makes one. Without LIMPET_TOKEN, `limpet serve` prints one."
    )


@dataclass(eq=False, repr=False)
class NotPermitted(LimpetError):
    """The caller's roles do not allow the operation."""

    operation: str
    by: str
    roles: tuple[str, ...]
    """Roles of which one is enough; none if a right is missing."""
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "not_permitted"
    _summary = "{by} may not use {operation}."
    _hint = "It needs one of these roles: {roles}. An admin creates a token with it: `limpet token create`."

    def _shown(self) -> dict[str, object]:
        return {**self.facts, "roles": ", ".join(self.roles)}


@dataclass(eq=False, repr=False)
class AuthUnavailable(LimpetError):
    """The server cannot check tokens at the moment."""

    code = "auth_unavailable"
    _summary = "The server cannot check tokens at the moment."
    _hint = "Retry later. The server's log has the cause."


@dataclass(eq=False, repr=False)
class TooManyRequests(LimpetError):
    """The caller sends more requests than the server accepts. This one was not served."""

    reason: str
    seconds: int
    """When to retry."""
    code = "too_many_requests"
    _summary = "Too many requests: {reason}."
    _hint = "Retry after {seconds} s, and send fewer at once."


@dataclass(eq=False, repr=False)
class ServerBusy(LimpetError):
    """The server has too much to do. The request was not served."""

    waited: float
    """How long the request waited for its turn, in seconds."""
    seconds: int
    """When to retry."""
    code = "server_busy"
    _summary = "The server is busy: the request waited {waited} s for its turn, and was not served."
    _hint = "Retry after {seconds} s."


@dataclass(eq=False, repr=False)
class WrongHost(LimpetError):
    """The HTTP request names a host that this server does not accept."""

    host: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "wrong_host"
    _summary = "This server does not accept the host name {host!r}."
    _hint = "Restart the server with `limpet serve --allow-host {host}`, or pass hosts=[{host!r}] to `limpet.web.asgi`."


@dataclass(eq=False, repr=False)
class WrongOrigin(LimpetError):
    """The HTTP request comes from a browser page of another origin."""

    origin: str
    code = "wrong_origin"
    _summary = "Browser pages of {origin!r} may not call this server."
    _hint = "Call it from your own server, which keeps the token, or allow it: `limpet serve --allow-origin {origin}`."


@dataclass(eq=False, repr=False)
class NotRemote(LimpetError):
    """The call needs the store itself, and the app is a client of a server. Nothing was sent."""

    what: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "not_remote"
    _summary = "{what} is not possible through a server."
    _hint = "Open the store itself, by its sqlite:// or postgresql:// URL, on a machine that reaches it."


@dataclass(eq=False, repr=False)
class InvalidReply(LimpetError):
    """A server did not reply as a Limpet server does."""

    url: str
    status: int
    reason: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "invalid_reply"
    _summary = "Unexpected reply {status} from {url}: {reason}."
    _hint = "Pass the address of `limpet serve` itself: redirects are not followed. Is its version the same as here?"


@dataclass(eq=False, repr=False)
class NotRecorded(LimpetError):
    """The replay reached a call that its log does not have, and did not make it."""

    tool: str
    effect: str
    code = "not_recorded"
    _summary = "{tool} (effect {effect}) is not in the log, so the replay did not call it."
    _hint = "To allow it, run `limpet replay --allow {tool}`, or pass allow=['{tool}']."


@dataclass(eq=False, repr=False)
class NotStubbed(LimpetError):
    """A fork with stubbed effects could not generate a result for a tool."""

    tool: str
    number: int
    reason: str
    fix: str = ""
    """The hint, where a better one than the default is known."""
    code = "not_stubbed"
    _summary = "Cannot stub a result for {tool} (step {number}): {reason}."
    _hint = (
        "Fork the original run with `--effects ask`. Or fork this run at the next step, with `--effects stub` and "
        "`--result {number}=JSON`."
    )


@dataclass(eq=False, repr=False)
class NotResumable(LimpetError, AssertionError):
    """The agent behaved differently when it was resumed: its code depends on more than its run."""

    agent: str
    when: str
    difference: str
    code = "not_resumable"
    _summary = "{agent} behaved differently when it {when}: {difference}."
    _hint = (
        "Keep state in run.state.data. Use run.now(), run.random() and run.uuid(). Move other side inputs into "
        "tools, and stub tools with varying results."
    )


@dataclass(eq=False, repr=False)
class TrialStuck(LimpetError):
    """A test run waits for something that never happens, or takes too long."""

    agent: str
    reason: str
    asks: bool = False
    """Whether the run waits for a person."""
    code = "trial_stuck"
    _summary = "The test run of {agent} did not end: {reason}."
    _hint = 'Add the answer to answers= (by tool, by question, or "*" for all), or stub the tool that it waits for.'


@dataclass(eq=False, repr=False)
class Unexpected(LimpetError):
    """An exception that is not a LimpetError: from the app's code, or a bug in Limpet."""

    error_type: str
    message: str
    code = "unexpected"
    _summary = "Unexpected internal error: {error_type}: {message}."
    _hint = "Repeat with --debug for a traceback, or read the server's log."
