"""Summaries that a model writes, for `run.compact` and `app.compact`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from limpet.context.window import ranges_of
from limpet.engine.definitions.call_context import current
from limpet.engine.definitions.traits import Traits
from limpet.engine.run.compaction import Summariser
from limpet.engine.run.conversation import Message
from limpet.errors import ContextTooSmall
from limpet.events import Spent
from limpet.llm.loop import MODEL_TIMEOUT, RETRY, cost_of
from limpet.llm.model import Model, Prompt, Reply
from limpet.llm.prompt import digest_of, summary_prompt
from limpet.llm.providers import join_surrogates

__all__ = ["ModelSummariser", "summary_request"]


class ModelSummariser(Summariser):
    """Asks a model for summaries."""

    kind: ClassVar[Literal["model", "read"]] = "model"

    def __init__(
        self,
        model: Callable[[], Model],
        *,
        window: int,
        max_reply: int,
        prices: Mapping[str, tuple[float, float]],
    ) -> None:
        room = window - max_reply - window // 8
        if room < window // 8:
            raise ContextTooSmall(needed=max_reply + window // 4, window=window)
        super().__init__(self._ask, room)
        self._model, self._reply, self._prices = model, max_reply, prices

    async def _ask(self, messages: list[Message]) -> str:
        """Ask the model, and return its text. Raises ValueError if it refuses."""
        return _text(await self._model().reply(self._request(messages)))

    def called_with(self, messages: list[Message]) -> Callable[..., Any]:
        """Return the function that a step calls: it also reports what the model used."""

        async def summary(reference: dict[str, Any]) -> str:
            reply = await self._model().reply(self._request(messages))
            usage, cost = reply.usage, cost_of(reply.usage, self._prices, reference["model"])
            current().spent(tokens=usage.input_tokens + usage.output_tokens, cost=cost)
            return _text(reply)

        return summary

    def traits(self, messages: list[Message]) -> Traits:
        """Return the traits of the step: it reserves the most tokens that the call may use."""
        size = self._request(messages).size
        return Traits(effect="none", retry=RETRY, timeout=MODEL_TIMEOUT, max_spend=Spent(tokens=size + self._reply))

    def reference(self, messages: list[Message]) -> Mapping[str, Any]:
        """Return the reference from which the prompt can be rebuilt."""
        return {
            "model": self._model().name,
            "ranges": [list(each) for each in ranges_of(each.seq for each in messages if not each.is_summary)],
            "room": self.room,
            "reply": self._reply,
            "digest": digest_of(self._request(messages)),
        }

    def _request(self, messages: Sequence[Message]) -> Prompt:
        return summary_request(messages, self.room, self._reply)


def summary_request(messages: Sequence[Message], room: int, reply: int) -> Prompt:
    """Return the prompt that asks for a summary of messages."""
    before = "\n".join(each.text for each in messages if each.is_summary)
    return summary_prompt(before, (_line(each) for each in messages if not each.is_summary), room, reply)


def _line(message: Message) -> str:
    return f"{message.role}: {message.text}{''.join(f' [calls {call}]' for call in message.calls)}"


def _text(reply: Reply) -> str:
    """Return the text of a reply; "" if the model refused, which is not a summary."""
    return "" if reply.finish == "refused" else join_surrogates(reply.text)
