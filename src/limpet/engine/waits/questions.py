"""`run.ask`: questions to a person, with a yes or no, one of some options, or a typed answer."""

from collections.abc import Coroutine, Sequence
from typing import Any, TypedDict

from limpet.arguments import brief, check
from limpet.clock import Duration, microseconds
from limpet.engine.definitions.types import TypeCodec, codec_of
from limpet.engine.execution.execution import Execution
from limpet.engine.replay.history import Record
from limpet.engine.waits.waits import Waits
from limpet.errors import Expired, InvalidAnswer, InvalidArgument, InvalidValue
from limpet.events import bodies as b

__all__ = ["QuestionOptions", "Questions"]

AFTER_EXPIRY = (
    "Pass default= or a longer expires= to `run.ask`, or catch limpet.Expired. "
    "`limpet resume` on the failed run asks again."
)


class QuestionOptions(TypedDict, total=False):
    """Options of `run.ask`."""

    answer: Any
    options: Sequence[str]
    to: str | Sequence[str]
    expires: Duration | None
    escalate: Sequence[str]
    default: Any
    name: str | None


class Questions:
    """The questions of one execution."""

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._x = execution
        self._waits = waits

    def ask(self, question: str, how: QuestionOptions) -> Coroutine[Any, Any, Any]:
        """Assign the question's name in the log, and return a coroutine that waits for the answer."""
        if unknown := set(how) - set(QuestionOptions.__annotations__):
            raise TypeError(f"ask() got unknown arguments: {', '.join(sorted(unknown))}")
        check("answer", how.get("answer", Any), type)
        wanted = codec_of(how["answer"]) if "answer" in how else codec_of(str if "options" in how else bool)
        name = self._x.take_name(how.get("name") or "ask")
        record = self._x.find(name, b.RequestOpened)
        opened = self._request(name, question, how, wanted) if record is None else None
        return self._wait(name, record, opened, wanted)

    def _request(self, name: str, question: str, how: QuestionOptions, wanted: TypeCodec) -> b.RequestOpened:
        x = self._x
        to = how.get("to", "anyone")
        expires = None
        if (period := how.get("expires")) is not None:
            expires = x.kit.now() + microseconds(period)
            if x.deadline is not None and expires > x.deadline:
                raise InvalidArgument(path="expires", reason="later than the run's deadline")
        options = [*how["options"]] if "options" in how else None
        if options is not None and "default" in how and how["default"] not in options:
            raise InvalidArgument(
                path="default", reason=f"{brief(how['default'])} is not one of options={brief(options)}"
            )
        if how.get("escalate") and expires is None:
            raise InvalidArgument(path="escalate", reason="needs expires=")
        return b.RequestOpened(
            request=x.kit.ids.new(),
            name=name,
            kind="ask",
            question=x.kit.store.redaction.text(question),
            to=(to,) if isinstance(to, str) else tuple(to),
            schema=None if options is not None else x.recorder.shown(wanted.schema()),
            options=None if options is None else x.recorder.shown(options),
            default=x.recorder.shown(wanted.dump(how["default"])) if "default" in how else None,
            expires=expires,
            escalate=tuple(how.get("escalate", ())),
        )

    async def _wait(self, name: str, record: Record | None, opened: b.RequestOpened | None, wanted: TypeCodec) -> Any:
        x = self._x
        await x.gate.wait_until_open()
        if opened is not None:
            await x.check_new(name)
        request = opened if record is None else record.opened
        assert isinstance(request, b.RequestOpened)
        decided = await self._waits.request(record, request)
        if decided.answer is None:
            if request.default is not None:
                return wanted.load(await x.recorder.unpack(request.default))
            expired_at = decided.expires or 0
            raise x.attribute_error(Expired(request=decided.request, expired_at=expired_at, fix=AFTER_EXPIRY), name)
        try:
            return wanted.load(_value_of(decided.answer, await x.recorder.unpack(decided.answer.answer)))
        except InvalidValue as error:
            raise x.attribute_error(InvalidAnswer(request=decided.request, reason=error.at("answer")), name) from error


def _value_of(answer: b.RequestAnswered, value: Any) -> Any:
    """Return the answer; an approval means True, a rejection False."""
    return value if answer.decision == "answered" else answer.decision == "approved"
