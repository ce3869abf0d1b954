"""Every error that Limpet raises: a stable code, its facts as fields, and a sentence with the cure.

    LimpetError
    ├── InvalidValue          the value is not plain JSON, or would come back as another one
    │   └── InvalidArgument   what was asked for cannot be, as it was said
    ├── InvalidId             an id that cannot name a run
    ├── InvalidDuration       a duration that cannot be read
    ├── InvalidUrl            an address that no store has
    ├── NoStore               there is no store at an address
    ├── InTheWay              a place that is taken
    ├── InvalidPatch          a patch refused as a whole
    ├── InvalidAppend         an append that no correct writer would send
    ├── NotFound              there is no such run, request, worker or blob
    ├── InputConflict         the id is taken by a run with another agent or input
    ├── CommandConflict       the command id is taken by another command
    ├── WrongState            the run is not in a state in which this can be done
    ├── AlreadyAnswered       the request was decided before
    ├── Expired               the request's time is over
    ├── LeaseLost             another worker has the run now
    ├── WorkerAlive           a worker of this name lives in another process
    ├── Tampered              a log that does not fit its own hashes
    ├── UnknownEvent          written by a newer version of Limpet
    │   └── DamagedEvent      its body is not one of its kind and version
    ├── SchemaTooNew          the store was migrated by a newer version of Limpet
    ├── DefinitionError       a tool or an agent that cannot be
    ├── NotDurable            a tool was called directly in an agent's code
    ├── NeverAwaited          an agent's code called a verb and forgot to await it
    ├── UnscopedParallel      parallel code without a scope of its own
    ├── Divergence            the code is not the one that wrote the log
    ├── StepFailed            a step failed
    │   ├── Rejected          a person did not approve it
    │   ├── OutcomeUnknown    nobody knows whether it was applied
    │   └── OutputUnavailable  it was applied, and its output cannot be read
    ├── ModelRefused          a model that does not want to answer
    ├── NoProgress            a model goes round in circles
    ├── ContextTooSmall       what a model must be told does not fit into its window
    ├── Stale                 a tool must not go by old news
    ├── NotRecorded           a replay has come to a call that its log does not hold
    ├── NotStubbed            no result of a tool could be made up
    ├── AgentFailed           an agent that was called did not complete
    ├── HandedOff             a verb after a handoff
    ├── NotAllowed            somebody who was not asked decides
    ├── ContractError         an input or a result that is not what the agent declares
    ├── RunFailed             the run has failed
    ├── RunCancelled          the run was cancelled
    ├── NotDone               the run has not ended yet
    ├── BudgetExceeded        the run may not use more
    ├── DeadlineExceeded      the run's deadline has passed
    ├── InvalidAnswer         an answer that the request does not allow
    ├── InvalidBundle         a file that holds no run
    ├── Suspended             the run is not driven here any more
    ├── NoCall                this is for the code of tools
    ├── NotResumable          an agent did something else when it was resumed
    ├── TrialStuck            a run in a test will never end
    ├── SecretWithheld        a secret that came from a log, which does not hold it
    ├── KeyMissing            what is stored was encrypted with a key that is not at hand
    ├── WrongKeys             the store and the keys that it is opened with do not belong together
    ├── BlobDamaged           stored bytes that are not what their name says
    ├── Unsupported           this kind of store cannot do it
    ├── ExtraMissing          a part of Limpet that is not installed
    ├── WrongUsage            words on the command line that say nothing, or too little
    ├── NotAuthenticated      a request over HTTP without a token that is known
    ├── WrongHost             a request over HTTP that is meant for another server
    ├── WrongOrigin           a request over HTTP from a page of another server
    ├── NotServed             a path or a method that is not there
    ├── FileFailed            a file that cannot be read or written
    ├── Unexpected            an error that is none of these
    ├── StaleServer           a database server that lies behind what was seen before
    ├── ConnectionLost        nobody knows whether it was written; repeating it is safe
    ├── StoreRefused          the database refused it; nothing was written
    ├── StoreBusy             somebody else held the store for too long; nothing was written
    └── StoreUnavailable      the store cannot work now; it tries again with every call
        └── StoreReplaced     its file was deleted or replaced; it stopped for good

A class body holds two templates, `_says` and `_cure`, filled with the fields.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from limpet.redaction import hide_secrets_in

__all__ = [
    "AgentFailed",
    "AlreadyAnswered",
    "BlobDamaged",
    "BudgetExceeded",
    "CommandConflict",
    "ConnectionLost",
    "ContextTooSmall",
    "ContractError",
    "DamagedEvent",
    "DeadlineExceeded",
    "DefinitionError",
    "Divergence",
    "Expired",
    "ExtraMissing",
    "FileFailed",
    "HandedOff",
    "InTheWay",
    "InputConflict",
    "InvalidAnswer",
    "InvalidAppend",
    "InvalidArgument",
    "InvalidBundle",
    "InvalidDuration",
    "InvalidId",
    "InvalidPatch",
    "InvalidUrl",
    "InvalidValue",
    "KeyMissing",
    "LeaseLost",
    "LimpetError",
    "ModelRefused",
    "NeverAwaited",
    "NoCall",
    "NoProgress",
    "NoStore",
    "NotAllowed",
    "NotAuthenticated",
    "NotDone",
    "NotDurable",
    "NotFound",
    "NotRecorded",
    "NotResumable",
    "NotServed",
    "NotStubbed",
    "OutcomeUnknown",
    "OutputUnavailable",
    "Rejected",
    "RunCancelled",
    "RunFailed",
    "SchemaTooNew",
    "SecretWithheld",
    "Stale",
    "StaleServer",
    "StepFailed",
    "StoreBusy",
    "StoreRefused",
    "StoreReplaced",
    "StoreUnavailable",
    "Suspended",
    "Tampered",
    "TrialStuck",
    "Unexpected",
    "UnknownEvent",
    "UnscopedParallel",
    "Unsupported",
    "WorkerAlive",
    "WrongHost",
    "WrongKeys",
    "WrongOrigin",
    "WrongState",
    "WrongUsage",
]


@dataclass(eq=False, repr=False)
class LimpetError(Exception):
    """Whatever Limpet raises; `code`, `facts` and `cure` are the same on every surface."""

    __module__ = "limpet"

    code: ClassVar[str] = "limpet_error"
    _says: ClassVar[str] = "Something went wrong."
    _cure: ClassVar[str] = "Look at the facts."

    @property
    def facts(self) -> Mapping[str, object]:
        """What is known about this one, by name, and may be said."""
        known: dict[str, object] = hide_secrets_in({field.name: getattr(self, field.name) for field in fields(self)})
        return known

    @property
    def says(self) -> str:
        """What happened."""
        return self._says.format(**self.facts)

    @property
    def cure(self) -> str:
        """What to do about it."""
        return self._cure.format(**self.facts)

    def __init_subclass__(cls) -> None:
        """Its stored name is the public one: `limpet.Expired`, wherever the class may move."""
        if cls.__module__ == __name__:
            cls.__module__ = LimpetError.__module__

    def __reduce__(self) -> tuple[type["LimpetError"], tuple[object, ...]]:
        return type(self), tuple(self.facts.values())  # so that it can be copied, and leave a process of a pool

    def __str__(self) -> str:
        return f"{self.says} {self.cure} [{self.code}]"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.facts.items())})"


@dataclass(eq=False, repr=False)
class InvalidValue(LimpetError):
    """The value is not plain JSON, or would come back as another one."""

    path: str
    reason: str
    code = "invalid_value"
    _says = "The value at {path} cannot be stored: {reason}."
    _cure = "Pass plain JSON: None, bool, int, finite float, str, list, and dict with str keys."


@dataclass(eq=False, repr=False)
class InvalidArgument(InvalidValue):
    """What was asked for cannot be, as it was said."""

    code = "invalid_argument"
    _says = "{path} is not right: {reason}."
    _cure = "Nothing was done: say it otherwise, and ask again."


@dataclass(eq=False, repr=False)
class InvalidId(LimpetError):
    """An id that cannot name a run."""

    id: str
    code = "invalid_id"
    _says = "{id!r} cannot be an id."
    _cure = "Use 1 to 200 of letters, digits and ._:@+=- and begin with a letter or digit."


@dataclass(eq=False, repr=False)
class InvalidDuration(LimpetError):
    """A duration that cannot be read."""

    given: str
    code = "invalid_duration"
    _says = "{given} is not a duration, nor a point in time."
    _cure = (
        'Say a number with its unit, such as "500ms", "10s", "2h", "3d" or "1w"; in Python also seconds as a number, '
        "a timedelta, or for a point in time a datetime with its time zone, such as `datetime.now(UTC)`."
    )


@dataclass(eq=False, repr=False)
class InvalidUrl(LimpetError):
    """An address that no store has."""

    url: str
    code = "invalid_url"
    _says = "{url!r} is not the address of a store."
    _cure = "Use sqlite:///file.db (four slashes for an absolute path), postgresql://user@host/database or memory:."


@dataclass(eq=False, repr=False)
class NoStore(LimpetError):
    """There is no store at an address; none was made, because there would be nothing to see in it."""

    url: str
    code = "no_store"
    _says = "There is no store at {url}, and none was made."
    _cure = "Say where it is with --url or LIMPET_URL, or go to its folder; a worker makes a new one."


@dataclass(eq=False, repr=False)
class InTheWay(LimpetError):
    """A place that is taken by something else; nothing was written."""

    path: str
    reason: str
    code = "in_the_way"
    _says = "{path} is in the way: {reason}. Nothing was written."
    _cure = "Say another folder, or move what is there out of the way."


@dataclass(eq=False, repr=False)
class InvalidPatch(LimpetError):
    """A patch refused as a whole: nothing of it was applied."""

    part: str
    reason: str
    code = "invalid_patch"
    _says = "The patch is refused as a whole: {part}: {reason}."
    _cure = "Read the state, correct this part, and send the patch again."


@dataclass(eq=False, repr=False)
class InvalidAppend(LimpetError):
    """An append that no correct writer would send."""

    run: str
    reason: str
    code = "invalid_append"
    _says = "The append to {run} is malformed: {reason}."
    _cure = "Number and seal events with seal(), from the head that the store gave."


@dataclass(eq=False, repr=False)
class NotFound(LimpetError):
    """There is no such run, request, worker or blob."""

    what: str
    id: str
    code = "not_found"
    _says = "There is no {what} {id!r} in this store."
    _cure = "Check the id and the store's address."


@dataclass(eq=False, repr=False)
class InputConflict(LimpetError):
    """The id is taken by a run with another agent or input."""

    run: str
    agent: str
    code = "input_conflict"
    _says = "The id {run!r} belongs to a run of agent {agent!r} with another input."
    _cure = "Use another id, or send the same input to get that run."


@dataclass(eq=False, repr=False)
class CommandConflict(LimpetError):
    """The command id is taken by another command."""

    run: str
    command: str
    code = "command_conflict"
    _says = "The command id {command!r} was used for something else on {run}."
    _cure = "Use a new id for a new command; repeat an id only to repeat the same command."


@dataclass(eq=False, repr=False)
class WrongState(LimpetError):
    """The run is not in a state in which this can be done."""

    run: str
    status: str
    wanted: str
    code = "wrong_state"
    _says = "{run} is {status}: {wanted} is not possible."
    _cure = "Look at the run's status first; what has ended stays as it is, and new work is a new run."


@dataclass(eq=False, repr=False)
class AlreadyAnswered(LimpetError):
    """The request was decided before; the first decision stands."""

    request: str
    status: str
    by: str
    code = "already_answered"
    _says = "Request {request} is {status} already (by {by!r}); that stands."
    _cure = "Nothing to do: what was decided first, or that nobody needs to decide any more, stands."


@dataclass(eq=False, repr=False)
class Expired(LimpetError):
    """The request's time is over."""

    request: str
    expired_at: int
    code = "expired"
    _says = "{request} expired at {expired_at} µs of the store's clock."
    _cure = "The run goes on by its own rule for silence; look at it to see how."


@dataclass(eq=False, repr=False)
class LeaseLost(LimpetError):
    """Another worker has the run now, or it was given back: this fence writes nothing any more."""

    run: str
    fence: int
    current: int
    code = "lease_lost"
    _says = "{run} was taken over: fence {fence} is no longer valid, it is at {current}."
    _cure = "Stop driving this run; what you still have can be kept as a late result."


@dataclass(eq=False, repr=False)
class WorkerAlive(LimpetError):
    """A worker of this name lives in another process."""

    worker: str
    code = "worker_alive"
    _says = "The worker {worker!r} is alive in another process."
    _cure = "Give each worker an id of its own; a new one for every process is best."


@dataclass(eq=False, repr=False)
class Tampered(LimpetError):
    """A log that does not fit its own hashes."""

    run: str
    seq: int
    reason: str
    code = "tampered"
    _says = "The log of {run} is not intact at event {seq}: {reason}."
    _cure = "Do not resume it; compare it with a backup or with heads exported earlier."


@dataclass(eq=False, repr=False)
class UnknownEvent(LimpetError):
    """A newer version of Limpet wrote the event. A worker that cannot read it leaves the run to a newer worker."""

    kind: str
    version: int
    reason: str
    code = "unknown_event"
    _says = "The event {kind!r} version {version} cannot be read: {reason}."
    _cure = "Run the version of Limpet that wrote it, or a newer one."


@dataclass(eq=False, repr=False)
class DamagedEvent(UnknownEvent):
    """The kind and version are known, but the body is not one of theirs: the run waits for an operator."""

    code = "damaged_event"
    _cure = "Run `limpet verify` to see whether the store was damaged; restore the run from a backup or an export."


@dataclass(eq=False, repr=False)
class SchemaTooNew(LimpetError):
    """The store was migrated by a newer version of Limpet."""

    found: int
    known: int
    code = "schema_too_new"
    _says = "The store has schema {found}; this version of Limpet knows schemas up to {known}."
    _cure = "Upgrade Limpet on this machine; a store is never taken back to an older schema."


@dataclass(eq=False, repr=False)
class DefinitionError(LimpetError):
    """A tool or an agent that cannot be; raised where it is defined."""

    what: str
    reason: str
    code = "definition_error"
    _says = "{what} cannot be defined so: {reason}."
    _cure = "Mend the definition; nothing was started."


@dataclass(eq=False, repr=False)
class NotDurable(LimpetError):
    """A tool was called directly in an agent's code: its result would not be recorded."""

    tool: str
    code = "not_durable"
    _says = "The tool {tool} was called directly inside an agent."
    _cure = "Write `run.step({tool}, ...)`; in another tool and outside a run, a direct call is fine."


@dataclass(eq=False, repr=False)
class NeverAwaited(LimpetError):
    """An agent's code called a verb and returned without awaiting it, so that it was never done."""

    verb: str
    place: str
    """The file and the line of the call."""
    code = "never_awaited"
    _says = "run.{verb} was called in {place} and never awaited: nothing was done."
    _cure = "Put `await` before the call, and resume the run."


@dataclass(eq=False, repr=False)
class UnscopedParallel(LimpetError):
    """Parallel code without a scope of its own: after a crash its results could swap."""

    verb: str
    scope: str
    code = "unscoped_parallel"
    _says = "{verb} was called by parallel code in {scope}, which belongs to another task or thread."
    _cure = 'Give each branch a scope of its own: `async with run.scope("its name"):` around its verbs.'


@dataclass(eq=False, repr=False)
class Divergence(LimpetError):
    """The code is not the one that wrote the log; nothing was done."""

    run: str
    verb: str
    reason: str
    code = "divergence"
    _says = "The code of {run} has diverged from its log at {verb}: {reason}."
    _cure = "Bring the older code back, guard the change with `run.version(...)`, or fork the run; then resume it."


def is_named(names: Iterable[str], cls: type[BaseException] | str) -> bool:
    """Whether a class is among qualified names; given by its name, that or the end of one."""
    if isinstance(cls, type):
        return f"{cls.__module__}.{cls.__qualname__}" in names
    return any(name == cls or name.endswith(f".{cls}") for name in names)


@dataclass(eq=False, repr=False)
class StepFailed(LimpetError):
    """A step failed; live and on replay alike. Nothing was applied, unless it is an OutcomeUnknown."""

    tool: str
    number: int
    attempts: int
    error_type: str
    message: str = ""
    error_types: tuple[str, ...] = ()
    """Qualified names of the error's class and all its bases."""
    code = "step_failed"
    _says = "Step {number} ({tool}) failed after {attempts} attempt{s}: {error_type}: {message}."
    _cure = "Catch it where the agent can do something else; or mend the cause and resume the run from this step."

    @property
    def says(self) -> str:
        """What happened; somebody else's words may end with a full stop already."""
        said = {name: each.removesuffix(".") if isinstance(each, str) else each for name, each in self.facts.items()}
        return self._says.format(**said, s="" if self.attempts == 1 else "s")

    def was(self, cls: type[BaseException] | str) -> bool:
        """Whether the error was of this class, or of one with this name: qualified, or the end of one."""
        return is_named((self.error_type, *self.error_types), cls)


@dataclass(eq=False, repr=False)
class Rejected(StepFailed):
    """A person did not approve the step; it was not started."""

    because: str = ""
    by: str = ""
    code = "rejected"
    _says = "Step {number} ({tool}) was rejected by {by!r}: {because}."
    _cure = "Let the agent do something else; a resume asks again."


@dataclass(eq=False, repr=False)
class OutcomeUnknown(StepFailed):
    """A step has no answer: it may have been applied or not, and trying on was given up."""

    code = "outcome_unknown"
    _says = "Nobody knows whether step {number} ({tool}) was applied: {error_type}: {message}."
    _cure = "Find out before you repeat it; give the tool a `verify`, or a longer `retry`."


@dataclass(eq=False, repr=False)
class OutputUnavailable(StepFailed):
    """A step was applied, but what it returned cannot be stored or read; it is never run again for that."""

    code = "output_unavailable"
    _says = "Step {number} ({tool}) was applied, but its output is not available: {message}."
    _cure = "Return plain JSON or the annotated type from the tool; the effect itself is done."


@dataclass(eq=False, repr=False)
class ModelRefused(LimpetError):
    """A model does not want to answer."""

    agent: str
    text: str
    code = "model_refused"
    _says = "The model of {agent} refused to answer: {text}"
    _cure = "Look at what it was asked, with app.model_input; say it otherwise, and resume or fork the run."


@dataclass(eq=False, repr=False)
class NoProgress(LimpetError):
    """A model goes round in circles, or does not come to an end."""

    agent: str
    reason: str
    code = "no_progress"
    _says = "{agent} does not come to an end: {reason}."
    _cure = "Look at what it was told; say it otherwise, or allow more turns, and resume or fork the run."


@dataclass(eq=False, repr=False)
class ContextTooSmall(LimpetError):
    """What a model must be told does not fit into its window."""

    needed: int
    window: int
    code = "context_too_small"
    _says = "Instructions and tools alone need about {needed} tokens, and the window has {window}."
    _cure = "Say window= as the model has it, or give the agent fewer tools and shorter instructions."


@dataclass(eq=False, repr=False)
class Stale(LimpetError):
    """A tool goes by a source outside that was read too long ago, or not at all: it did not start."""

    tool: str
    source: str
    code = "stale"
    _says = "{tool} did not start: what is known of {source} does not hold any more."
    _cure = "Read it again, run.read({source}, …), and decide anew."


@dataclass(eq=False, repr=False)
class NotRecorded(LimpetError):
    """A replay has come to a call that its log does not hold: it is not made."""

    tool: str
    effect: str
    code = "not_recorded"
    _says = "The code comes to {tool} (effect {effect}), which is not recorded, and was not called."
    _cure = "Allow it by name, if it may be called: replay(..., allow=['{tool}'])."


@dataclass(eq=False, repr=False)
class NotStubbed(LimpetError):
    """In a fork whose effects are made up, no result of a tool could be."""

    tool: str
    number: int
    reason: str
    code = "not_stubbed"
    _says = "No result of {tool} (step {number}) can be made up: {reason}."
    _cure = 'Fork with effects="ask", or behind this step with a result for it.'


@dataclass(eq=False, repr=False)
class AgentFailed(LimpetError):
    """An agent that was called did not complete."""

    run: str
    agent: str
    outcome: str
    """`failed`, `cancelled`, or `expired` if its deadline passed."""
    error_type: str = ""
    message: str = ""
    step: int | None = None
    """The step of that run whose error it was."""
    error_types: tuple[str, ...] = ()
    """Qualified names of the error's class and all its bases."""
    traceback: str = ""
    """Where it was raised, in that run."""
    code = "agent_failed"
    _says = "{agent} ({run}) did not complete but {outcome}: {error_type} {message}"
    _cure = "Look at that run; resuming this one lets it go on from its failed step."

    def was(self, cls: type[BaseException] | str) -> bool:
        """Whether the error was of this class, or of one with this name: qualified, or the end of one."""
        return is_named((self.error_type, *self.error_types), cls)


@dataclass(eq=False, repr=False)
class HandedOff(LimpetError):
    """A verb after a handoff; it took no effect."""

    run: str
    agent: str
    code = "handed_off"
    _says = "{run} was handed over to {agent} for good: nothing more can be done in it."
    _cure = "Return what `run.handoff` returns, and do nothing after it; to go on, use `run.call`."


@dataclass(eq=False, repr=False)
class NotAllowed(LimpetError):
    """Somebody who was not asked decides; the request is still open."""

    request: str
    by: str
    to: tuple[str, ...]
    code = "not_allowed"
    _says = "Request {request} is for {to}, and {by!r} is none of them; it is still open."
    _cure = "Let one of those whom it is for decide, or add this person to their group: `limpet.open(people=...)`."


@dataclass(eq=False, repr=False)
class ContractError(LimpetError):
    """An input or a result that is not what the agent declares."""

    agent: str
    what: str
    reason: str
    faults: tuple[str, ...] = ()
    """Everything that is wrong, each with its path."""
    code = "contract_error"
    _says = "The {what} of {agent} is not what it declares: {reason}."
    _cure = "Pass, or return, what the agent's annotations say; an input that does not fit starts nothing."


@dataclass(eq=False, repr=False)
class RunFailed(LimpetError):
    """The run has failed."""

    run: str
    error_type: str
    message: str
    step: int | None = None
    error_types: tuple[str, ...] = ()
    code = "run_failed"
    _says = "{run} failed: {error_type}: {message}"
    _cure = "Mend the cause, then resume it, with `limpet resume {run}`: it goes on from the step that failed."


@dataclass(eq=False, repr=False)
class RunCancelled(LimpetError):
    """The run was cancelled."""

    run: str
    reason: str
    code = "run_cancelled"
    _says = "{run} was cancelled: {reason}."
    _cure = "Start a new run; a cancelled one is over."


@dataclass(eq=False, repr=False)
class NotDone(LimpetError):
    """The run has not ended yet."""

    run: str
    status: str
    code = "not_done"
    _says = "{run} has not ended: it is {status}."
    _cure = "Wait longer, or look at what it waits for; it goes on by itself, unless an operator must resume it."


@dataclass(eq=False, repr=False)
class BudgetExceeded(LimpetError):
    """The run may not use more."""

    limit: str
    allowed: float
    wanted: float
    code = "budget_exceeded"
    _says = "The budget allows {limit} = {allowed}; the next step would make it {wanted}."
    _cure = 'Give the agent a larger Budget, or exhausted="ask" so that a person may extend it.'


@dataclass(eq=False, repr=False)
class DeadlineExceeded(LimpetError):
    """The run's deadline has passed."""

    deadline: int
    code = "deadline_exceeded"
    _says = "The run's deadline passed at {deadline} µs of the store's clock."
    _cure = "Give the agent a later deadline, and start again."


@dataclass(eq=False, repr=False)
class InvalidAnswer(LimpetError):
    """An answer that the request does not allow; it was not taken."""

    request: str
    reason: str
    code = "invalid_answer"
    _says = "The answer does not fit request {request}: {reason}."
    _cure = "Look at the request's options or schema, and answer again; a run that failed of it asks anew when resumed."


@dataclass(eq=False, repr=False)
class InvalidBundle(LimpetError):
    """A file that holds no run, or one that was changed."""

    path: str
    reason: str
    code = "invalid_bundle"
    _says = "{path} is not a bundle with a run: {reason}."
    _cure = "Name a file that `limpet export` wrote, with this version of Limpet or an older one."


@dataclass(eq=False, repr=False)
class Suspended(LimpetError):
    """The run is not driven here any more: this call took no effect."""

    run: str
    reason: str
    code = "suspended"
    _says = "{run} is not driven here any more ({reason}): this call took no effect."
    _cure = "Let the function end, also in `finally`; the run goes on from its log when it is claimed again."


@dataclass(eq=False, repr=False)
class NoCall(LimpetError):
    """There is no step here: this is for the code of tools."""

    wanted: str
    code = "no_call"
    _says = "{wanted} is not there: this code is not run by a step that has one."
    _cure = "Call it inside a tool that a step runs; an idempotency key needs a tool with an effect."


@dataclass(eq=False, repr=False)
class NotResumable(LimpetError, AssertionError):
    """An agent did something else when it was resumed: its code depends on more than its run."""

    agent: str
    when: str
    difference: str
    code = "not_resumable"
    _says = "{agent} did something else when it {when}: {difference}."
    _cure = (
        "Keep what lives between turns in run.state.data; take time, chance and ids from run.now(), run.random() and "
        "run.uuid(); leave the rest to tools, and stub those that give something else each time."
    )


@dataclass(eq=False, repr=False)
class TrialStuck(LimpetError):
    """A run in a test waits for what will never come, or takes too long."""

    agent: str
    reason: str
    asks: bool = False
    """Whether it waits for a person."""
    code = "trial_stuck"
    _says = "A run of {agent} came to no end: {reason}."
    _cure = 'Say in `answers` what people say, by tool, by question, or with "*" for all; stub what does not come.'


@dataclass(eq=False, repr=False)
class SecretWithheld(LimpetError):
    """A secret that came from a log, which does not hold it."""

    code = "secret_withheld"
    _says = "This secret came from the log, which says only that there was one."
    _cure = "Read it where it is kept, inside the tool that uses it; or pass a `Secret` to the step as an argument."


@dataclass(eq=False, repr=False)
class KeyMissing(LimpetError):
    """What is stored was encrypted with a key that is not at hand."""

    key: str
    code = "key_missing"
    _says = "It was encrypted with key {key!r}, which is not at hand."
    _cure = "Open the store with the keys that it was made with (keys=, LIMPET_KEYS or LIMPET_KEYS_FILE)."


@dataclass(eq=False, repr=False)
class WrongKeys(LimpetError):
    """The store and the keys that it is opened with do not belong together."""

    reason: str
    code = "wrong_keys"
    _says = "The store cannot be opened with these keys: {reason}."
    _cure = "Name the keys of this very store; whether a store is encrypted is settled when it is made."


@dataclass(eq=False, repr=False)
class BlobDamaged(LimpetError):
    """Stored bytes that are not what their name says."""

    blob: str
    reason: str
    code = "blob_damaged"
    _says = "The blob {blob} is not intact: {reason}."
    _cure = "Restore it from a backup; a blob is named by its content, so any copy will do."


@dataclass(eq=False, repr=False)
class Unsupported(LimpetError):
    """This kind of store cannot do it."""

    what: str
    code = "unsupported"
    _says = "This kind of store has no {what}."
    _cure = "Use a store that has them: its capabilities say so."


@dataclass(eq=False, repr=False)
class ExtraMissing(LimpetError):
    """A part of Limpet that is not installed."""

    extra: str
    code = "extra_missing"
    _says = "This needs the extra {extra!r}, which is not installed."
    _cure = "pip install 'limpet[{extra}]'"


@dataclass(eq=False, repr=False)
class WrongUsage(LimpetError):
    """Words on the command line that say nothing, or too little; nothing was done."""

    reason: str
    command: str
    code = "wrong_usage"
    _says = "{reason}"
    _cure = "See `{command} --help`."


@dataclass(eq=False, repr=False)
class NotAuthenticated(LimpetError):
    """A request over HTTP that carries no token, or one that is not known."""

    code = "not_authenticated"
    _says = "This request carries no token that is known here."
    _cure = "Send the header `Authorization: Bearer TOKEN`, with the token that `limpet serve` was given or printed."


@dataclass(eq=False, repr=False)
class WrongHost(LimpetError):
    """A request over HTTP that names another server as its host."""

    host: str
    code = "wrong_host"
    _says = "This server is not {host!r}."
    _cure = "Ask it under its own name; `limpet serve --allow-host NAME`, or hosts= of `limpet.web.asgi`, adds one."


@dataclass(eq=False, repr=False)
class WrongOrigin(LimpetError):
    """A request over HTTP from a page of another server."""

    origin: str
    code = "wrong_origin"
    _says = "A page of {origin!r} may not ask this server."
    _cure = "Ask it from a server of your own, which keeps the token, and not from a page."


@dataclass(eq=False, repr=False)
class NotServed(LimpetError):
    """A path or a method that is not there."""

    method: str
    path: str
    code = "not_served"
    _says = "There is no {method} {path} here."
    _cure = "See /openapi.json for what there is."


@dataclass(eq=False, repr=False)
class FileFailed(LimpetError):
    """A file that cannot be read or written."""

    path: str
    reason: str
    code = "file_failed"
    _says = "{path} cannot be used: {reason}."
    _cure = "Look whether it is there, whose it is, and whether there is space; then repeat it."


@dataclass(eq=False, repr=False)
class Unexpected(LimpetError):
    """An error that is none of these: of the app's own code, or a mistake of ours."""

    error_type: str
    message: str
    code = "unexpected"
    _says = "This was not to happen: {error_type}: {message}."
    _cure = "Say --debug, or look into the log of the server, to see where it came from."


@dataclass(eq=False, repr=False)
class StaleServer(LimpetError):
    """A database server that lies behind what was seen before: an old primary, or another database."""

    found: str
    seen: str
    code = "stale_server"
    _says = "The server is at {found}, but {seen} was seen before: it is an old primary, or another database."
    _cure = "Point the address at the newest primary; if an old backup was restored on purpose, restart this process."


@dataclass(eq=False, repr=False)
class ConnectionLost(LimpetError):
    """The server is away, or the disk fails: nobody knows whether it was written. The store goes on by itself."""

    reason: str
    code = "connection_lost"
    _says = "The store could not be reached: {reason}."
    _cure = "Repeat it when server and disk are well: what was written before is not written again."


@dataclass(eq=False, repr=False)
class StoreRefused(LimpetError):
    """The database refused a statement; nothing was written, and the store goes on."""

    reason: str
    code = "store_refused"
    _says = "The database refused this, and nothing was written: {reason}."
    _cure = "Mend the cause (privileges, settings, space), then repeat it; nothing has to be reopened."


@dataclass(eq=False, repr=False)
class StoreBusy(LimpetError):
    """Somebody else held the store for too long; nothing was written."""

    reason: str
    code = "store_busy"
    _says = "The store was held by somebody else for too long: {reason}."
    _cure = "Try again; if it lasts, find the process that keeps a transaction open."


@dataclass(eq=False, repr=False)
class StoreUnavailable(LimpetError):
    """The store cannot work now: nothing is reported as done that may not be. Every call tries again."""

    reason: str
    code = "store_unavailable"
    _says = "The store does not take work: {reason}."
    _cure = "Mend the cause (disk, space, connection), then repeat it: what was written before is not written again."


@dataclass(eq=False, repr=False)
class StoreReplaced(StoreUnavailable):
    """The file of the store was deleted or replaced while it was open; the store stopped for good."""

    code = "store_replaced"
    _says = "The store stopped for good, and what was being written may be in no file: {reason}."
    _cure = "Stop every process that uses this store, put the file back or restore a backup, and start them again."
