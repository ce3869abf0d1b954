"""MCP resources: list, describe and read them."""

from collections.abc import Mapping, Sequence

import mcp_types as t

from limpet.errors import InvalidArgument, LimpetError
from limpet.mcp.offer import McpCall, ResourceOffer
from limpet.mcp.resource_table import state_uri
from limpet.mcp.tool_results import refusal
from limpet.mcp.uris import LONGEST_URI, matched
from limpet.service.access import not_permitted

__all__ = ["ResourceTable"]

LISTED = 50


class ResourceTable:
    """The resources of a server."""

    def __init__(self, offers: Sequence[ResourceOffer]) -> None:
        self._offers = offers

    async def listed(self, call: McpCall, cursor: str | None) -> t.ListResourcesResult:
        """Return the resources with a fixed URI, then the states of the runs, the newest first, in pages."""
        fixed = [each for each in self._offers if not each.is_template and each.may_use(call.who)]
        if not fixed and not call.may("runs"):
            raise refusal(not_permitted(call.who, "runs", call.operations["runs"].needs))
        found = [] if cursor else [_resource(each) for each in fixed]
        if not call.may("runs"):
            return t.ListResourcesResult(resources=found)
        try:
            given = {"last": LISTED} if cursor is None else {"last": LISTED, "cursor": cursor}
            runs = await call.run("runs", given)
        except LimpetError as error:
            raise refusal(error) from error
        return t.ListResourcesResult(
            resources=[*found, *(_run(each) for each in runs["items"])], next_cursor=runs["next"]
        )

    def templates(self, call: McpCall) -> t.ListResourceTemplatesResult:
        """Return the URI templates that the caller may read."""
        found = [
            t.ResourceTemplate(
                uri_template=each.template, name=each.name, description=each.description, mime_type=each.mime
            )
            for each in self._offers
            if each.is_template and each.may_use(call.who)
        ]
        return t.ListResourceTemplatesResult(resource_templates=found)

    async def read(self, call: McpCall, uri: str) -> t.ReadResourceResult:
        """Return the content of a resource. Raises MCPError."""
        try:
            offer, values = self.find(uri)
            return await offer.read(call, uri, values)
        except LimpetError as error:
            raise refusal(error, uri=uri[:LONGEST_URI]) from error

    def find(self, uri: str) -> tuple[ResourceOffer, Mapping[str, str]]:
        """Return the kind of a resource, and the values in its URI. Raises InvalidArgument."""
        for each in self._offers:
            values = matched(each.template, uri)
            if values is not None:
                return each, values
        known = ", ".join(each.template for each in self._offers)
        raise InvalidArgument(path="uri", reason=f"no resource has the URI {uri[:200]}; known: {known}")


def _resource(offer: ResourceOffer) -> t.Resource:
    return t.Resource(uri=offer.template, name=offer.name, description=offer.description, mime_type=offer.mime)


def _run(row: Mapping[str, str]) -> t.Resource:
    goal = f"{row['status']}: {row['goal']}" if row["goal"] else row["status"]
    return t.Resource(
        uri=state_uri(row["agent"], row["id"]),
        name=row["id"],
        description=goal,
        mime_type="application/json",
        annotations=t.Annotations(last_modified=row["updated"]),
    )
