"""Prompts: what people ask about runs, with the data that a model needs for the answer, marked as data."""

from collections.abc import Mapping, Sequence
from typing import Any

import mcp_types as t

from limpet.errors import InvalidArgument, LimpetError
from limpet.mcp.offer import McpCall, PromptOffer
from limpet.mcp.tool_results import DATA, MARK, fitted, json_text, refusal
from limpet.service.access import may
from limpet.service.operation import Operation

__all__ = ["PromptTable", "operation_prompts"]

# Largest data of a prompt, in bytes.
MAX_DATA = 20_000
RUN = t.PromptArgument(name="run", description="Run id.", required=True)
EXPLAIN = (
    "Explain this run to me: what it was asked to do, what it did and decided and why, and where it is now. Name the "
    "steps that matter, and say what you do not know."
)
FAILED = (
    "Say why this run failed: the step and its error, what led to it, and whether its effects were applied. Then say "
    "how to go on: resume, fork from a step, or a change in the code. Do nothing of that without my word."
)
WAITING = (
    "List what waits for me, the oldest first: the run, what it asks, what it would do with which arguments, and what "
    "happens if I do not decide. Do not decide anything: I do that myself."
)
CONTINUE = (
    "Continue this task where the run left it. Do not repeat what was done. Begin with what is open in its plan and "
    "its questions, and say what you do first."
)


class PromptTable:
    """The prompts of a server."""

    def __init__(self, offers: Sequence[PromptOffer]) -> None:
        self._offers = {each.shown.name: each for each in offers}

    def listed(self, call: McpCall) -> t.ListPromptsResult:
        """Return the prompts that a caller may use."""
        return t.ListPromptsResult(prompts=[each.shown for each in self._offers.values() if each.may_use(call.who)])

    async def get(
        self, call: McpCall, name: str, given: Mapping[str, str]
    ) -> t.GetPromptResult | t.InputRequiredResult:
        """Return the messages of a prompt. Raises MCPError."""
        offer = self._offers.get(name)
        try:
            if offer is None:
                raise InvalidArgument(path="name", reason=f"there is no {name[:100]}, but {', '.join(self._offers)}")
            _check(offer.shown, given)
            found = await offer.messages(call, given)
            if isinstance(found, t.InputRequiredResult):
                return found
            return t.GetPromptResult(description=offer.shown.description, messages=list(found))
        except LimpetError as error:
            raise refusal(error) from error


def operation_prompts(operations: Mapping[str, Operation]) -> list[PromptOffer]:
    """Return the prompts about runs, which need the permissions of the operations that they read."""
    table: Sequence[tuple[str, str, str, str, str]] = (
        ("explain_run", "Explain this run", EXPLAIN, "show", "limpet://runs/{run}"),
        ("why_failed", "Why did it fail?", FAILED, "show", "limpet://runs/{run}"),
        ("what_waits_for_me", "What waits for me?", WAITING, "inbox", "limpet://inbox"),
        ("continue_task", "Continue this task", CONTINUE, "context", "limpet://runs/{run}/context"),
    )
    return [_offer(name, title, text, operations[reads], uri) for name, title, text, reads, uri in table]


def _offer(name: str, title: str, text: str, operation: Operation, uri: str) -> PromptOffer:
    has_run = "{run}" in uri

    async def messages(call: McpCall, given: Mapping[str, str]) -> Sequence[t.PromptMessage]:
        arguments: dict[str, Any] = {"run": given["run"]} if has_run else {}
        found = fitted(await call.run(operation.name, arguments), MAX_DATA)
        data = t.TextResourceContents(
            uri=uri.format_map(given), mime_type="application/json", text=json_text(found), _meta=MARK
        )
        return [
            t.PromptMessage(role="user", content=t.TextContent(text=f"{text}\n\n{DATA}")),
            t.PromptMessage(role="user", content=t.EmbeddedResource(resource=data)),
        ]

    shown = t.Prompt(name=name, title=title, description=text.partition(": ")[0], arguments=[RUN] if has_run else None)
    return PromptOffer(shown=shown, messages=messages, may_use=lambda who: may(who, *operation.needs))


def _check(prompt: t.Prompt, given: Mapping[str, str]) -> None:
    known = {each.name: each for each in prompt.arguments or ()}
    for name in given.keys() - known.keys():
        raise InvalidArgument(path=name, reason=f"unknown argument; {prompt.name} takes {', '.join(known) or 'none'}")
    for name, each in known.items():
        if each.required and not given.get(name):
            raise InvalidArgument(path=name, reason="is required")
