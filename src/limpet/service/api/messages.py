"""Conversations: send and read messages, list conversations and sessions."""

from typing import Annotated

from limpet.arguments import checked
from limpet.engine.run.compaction import Summarise, Summariser
from limpet.engine.run.conversation import Message
from limpet.service.api.core import AppCore
from limpet.service.conversations import CompactionInfo, ConversationInfo, Delivery, SessionInfo
from limpet.service.operation import (
    ALL_DOORS,
    MAX_INTEGER,
    By,
    CommandId,
    ConversationId,
    Cursor,
    InDoors,
    Last,
    Param,
    command,
    query,
)
from limpet.service.page import Page
from limpet.service.queries import check_last

__all__ = ["Messages"]


@checked
class Messages(AppCore):
    """Conversations."""

    topic = "Conversations"

    @command(
        "/conversations/{conversation}/messages",
        needs="control",
        doors=ALL_DOORS,
        result=Delivery,
        is_idempotent=False,
        example='chat-7 "and the other one?"',
    )
    async def say(
        self,
        conversation: ConversationId,
        text: Annotated[str, Param(description="Text of the message.", examples=["hello"])],
        /,
        *,
        interrupt: Annotated[bool, Param(description="End the model's turn after its current step.")] = False,
        by: By = None,
        command_id: CommandId = None,
    ) -> str | None:
        """Add a user message to a conversation, and return the id of the run that receives it.

        If no run is active there, the message is stored for the next one, and None is returned. With `interrupt`, an
        LLM agent ends its turn after the steps that are running.
        """
        id, sender = self._command_id(command_id), self._principal(by).sender
        return await self._conversations.say(
            conversation, text, actor=self._actor, interrupt=interrupt, id=id, sender=sender
        )

    @query("/conversations/{conversation}/messages", needs="payloads", is_large=True, example="chat-7 --last 10")
    async def messages(
        self,
        conversation: ConversationId,
        /,
        *,
        whole: Annotated[bool, Param(description="Return summarised messages instead of their summaries.")] = False,
        last: Last = 100,
        cursor: Cursor = None,
    ) -> Page[Message]:
        """List the newest messages of a conversation, in order. The next page has older ones."""
        check_last(last)
        return await self._conversations.messages(conversation, limit=last, cursor=cursor, whole=whole)

    @command(
        "/conversations/{conversation}/compact",
        needs="control",
        example='chat-7 "Ann wants a refund for o-1." --keep 1000',
    )
    async def compact(
        self,
        conversation: ConversationId,
        summary: Annotated[
            str | Summarise | Summariser,
            Param(description="Text of the summary.", examples=["Ann asks."]),
            InDoors(str),
        ],
        /,
        *,
        keep: Annotated[
            int, Param(ge=0, le=MAX_INTEGER, description="The newest tokens that stay.", examples=[1000])
        ] = 2_000,
        by: By = None,
        command_id: CommandId = None,
    ) -> CompactionInfo | None:
        """Let a summary replace the older messages of a conversation, for models and lists. The originals are kept.

        The newest `keep` tokens stay, and a tool call stays with its result. Returns None if nothing is older. In
        Python, `summary` may also be a function that takes a list of messages and returns a text, or
        `limpet.summarise_with(model)`.
        """
        check_last(keep + 1, "keep")
        id, sender = self._command_id(command_id), self._principal(by).sender
        return await self._conversations.compact(
            conversation, summary, keep=keep, actor=self._actor, id=id, sender=sender
        )

    @query("/conversations", needs="look", example="--session ann-1")
    async def conversations(
        self,
        *,
        session: Annotated[str | None, Param(description="Only this session.", examples=["ann-1"])] = None,
        user: Annotated[str | None, Param(description="Only this user.", examples=["ann"])] = None,
        last: Last = 100,
        cursor: Cursor = None,
    ) -> Page[ConversationInfo]:
        """List the newest conversations."""
        check_last(last)
        return await self._conversations.all(session, user, limit=last, cursor=cursor)

    @query("/sessions", needs="look")
    async def sessions(self, *, last: Last = 100, cursor: Cursor = None) -> Page[SessionInfo]:
        """List the sessions of the newest runs and conversations, the newest first."""
        check_last(last)
        return await self._conversations.sessions(limit=last, cursor=cursor)
