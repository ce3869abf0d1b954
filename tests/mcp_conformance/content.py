"""Content that the official suite expects: tools, resources and prompts with fixed results."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import mcp_types as t
from mcp import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ToolsListChanged

from limpet.mcp.offer import McpCall, PromptOffer, ResourceOffer, ToolOffer, ToolReply

__all__ = ["EMPTY", "prompts", "resources", "text_result", "tool", "tools"]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
ASKING = "test_input_required_result_prompt"
Run = Callable[[McpCall, t.CallToolRequestParams], Awaitable[ToolReply]]


def tool(name: str, run: Run, schema: Mapping[str, Any] | None = None, **more: Any) -> ToolOffer:
    """Return a tool of the suite."""
    shown = t.Tool(name=name, description=f"Fixture {name}.", input_schema=dict(schema or EMPTY))
    return ToolOffer(name=name, shown=lambda _: shown, run=run, **more)


def text_result(text: str, *, is_error: bool = False) -> t.CallToolResult:
    """Return a result that is one text."""
    return t.CallToolResult(content=[t.TextContent(text=text)], is_error=is_error)


def _fixed(name: str, *content: t.ContentBlock, is_error: bool = False) -> ToolOffer:
    async def run(_: McpCall, __: t.CallToolRequestParams) -> ToolReply:
        return t.CallToolResult(content=list(content), is_error=is_error)

    return tool(name, run)


def _embedded(uri: str, mime: str, text: str) -> t.EmbeddedResource:
    return t.EmbeddedResource(resource=t.TextResourceContents(uri=uri, mime_type=mime, text=text))


async def _with_progress(call: McpCall, _: t.CallToolRequestParams) -> ToolReply:
    for done in (0, 50, 100):
        await call.context.session.report_progress(done, 100)
        await asyncio.sleep(0.05)  # noqa: TID251 - the suite asks for it
    return text_result("done")


async def _with_logging(call: McpCall, _: t.CallToolRequestParams) -> ToolReply:
    for each in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await call.context.session.send_log_message("info", each)
        await asyncio.sleep(0.05)  # noqa: TID251 - the suite asks for it
    return text_result("done")


async def _sampling(call: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
    said = t.SamplingMessage(role="user", content=t.TextContent(text=(wanted.arguments or {})["prompt"]))
    found = await call.context.session.create_message([said], max_tokens=100)
    return text_result(f"LLM response: {found.content}")


def _eliciting(name: str, message: str, schema: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> ToolOffer:
    async def run(call: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
        asked = (wanted.arguments or {}).get("message", message)
        found = await call.context.session.elicit_form(asked, dict(schema), call.context.request_id)
        said = json.dumps(found.content)
        return text_result(f"Elicitation completed: action={found.action}, content={said}")

    return tool(name, run, given)


async def _missing_capability(call: McpCall, _: t.CallToolRequestParams) -> ToolReply:
    known = call.context.session.client_capabilities
    if known is None or known.sampling is None:
        needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(t.MISSING_REQUIRED_CLIENT_CAPABILITY, "Missing required client capability", needed)
    return text_result("sampling is there")


async def _trigger_tools(call: McpCall, _: t.CallToolRequestParams) -> ToolReply:
    call.publish(ToolsListChanged())
    return text_result("changed")


async def _trigger_prompts(call: McpCall, _: t.CallToolRequestParams) -> ToolReply:
    call.publish(PromptsListChanged())
    return text_result("changed")


async def _echo(_: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
    return text_result(json.dumps(wanted.arguments or {}))


SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
TITLED = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
OPTIONS = ["option1", "option2", "option3"]
ENUMS = {
    "untitledSingle": {"type": "string", "enum": OPTIONS},
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option 1", "Option 2", "Option 3"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}
DEFAULTS = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
USER = {"username": {"type": "string"}, "email": {"type": "string"}}


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def tools() -> list[ToolOffer]:
    """Return the tools with plain results."""
    image = t.ImageContent(data=PNG, mime_type="image/png")
    text = {"type": "string"}
    header = {"type": "string", "x-mcp-header": "Region"}
    return [
        _fixed("test_simple_text", t.TextContent(text="This is a simple text response for testing.")),
        _fixed("test_image_content", image),
        _fixed("test_audio_content", t.AudioContent(data=WAV, mime_type="audio/wav")),
        _fixed("test_embedded_resource", _embedded("test://embedded-resource", "text/plain", "This is embedded.")),
        _fixed(
            "test_multiple_content_types",
            t.TextContent(text="Multiple content types test:"),
            image,
            _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ),
        _fixed("test_error_handling", t.TextContent(text="This tool intentionally returns an error"), is_error=True),
        _fixed("test_streaming_elicitation", t.TextContent(text="done")),
        _fixed("test_logging_tool", t.TextContent(text="done")),
        tool("test_tool_with_progress", _with_progress),
        tool("test_tool_with_logging", _with_logging),
        tool("test_sampling", _sampling, _object({"prompt": text}, "prompt")),
        _eliciting("test_elicitation", "", _object(USER, "username", "email"), _object({"message": text}, "message")),
        _eliciting("test_elicitation_sep1034_defaults", "Confirm", _object(DEFAULTS)),
        _eliciting("test_elicitation_sep1330_enums", "Choose", _object(ENUMS)),
        tool("test_missing_capability", _missing_capability),
        tool("test_trigger_tool_change", _trigger_tools),
        tool("test_trigger_prompt_change", _trigger_prompts),
        tool("json_schema_2020_12_tool", _echo, SCHEMA_2020_12),
        tool("test_headers", _echo, _object({"region": header, "text": text})),
    ]


def resources() -> list[ResourceOffer]:
    """Return the resources."""

    def text(mime: str, made: Callable[[Mapping[str, str]], str]) -> Any:
        async def read(_: McpCall, uri: str, values: Mapping[str, str]) -> t.ReadResourceResult:
            content = t.TextResourceContents(uri=uri, mime_type=mime, text=made(values))
            return t.ReadResourceResult(contents=[content])

        return read

    async def binary(_: McpCall, uri: str, __: Mapping[str, str]) -> t.ReadResourceResult:
        return t.ReadResourceResult(contents=[t.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)])

    def data(values: Mapping[str, str]) -> str:
        return json.dumps({"id": values["id"], "templateTest": True, "data": f"Data for ID: {values['id']}"})

    plain, json_type, png = "text/plain", "application/json", "image/png"
    static = text(plain, lambda _: "This is the content of the static text resource.")
    watched = text(plain, lambda _: "This is watched.")
    template = "test://template/{id}/data"
    return [
        ResourceOffer(template="test://static-text", name="text", description="Text.", read=static, mime=plain),
        ResourceOffer(template="test://static-binary", name="binary", description="An image.", read=binary, mime=png),
        ResourceOffer(
            template="test://watched-resource", name="watched", description="Text.", read=watched, mime=plain
        ),
        ResourceOffer(
            template=template, name="template", description="Data by id.", read=text(json_type, data), mime=json_type
        ),
    ]


async def _asking_prompt(call: McpCall, _: Mapping[str, str]) -> list[t.PromptMessage] | t.InputRequiredResult:
    given = (call.context.params or {}).get("inputResponses", {}).get("user_context")
    if given is None:
        schema = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
        params = t.ElicitRequestFormParams(message="What context should the prompt use?", requested_schema=schema)
        return t.InputRequiredResult(input_requests={"user_context": t.ElicitRequest(params=params)})
    said = t.TextContent(text=f"Use this context: {given['content']['context']}")
    return [t.PromptMessage(role="user", content=said)]


def prompts() -> list[PromptOffer]:
    """Return the prompts."""

    def prompt(
        name: str, made: Callable[[Mapping[str, str]], Sequence[t.ContentBlock]], *arguments: str
    ) -> PromptOffer:
        async def messages(_: McpCall, given: Mapping[str, str]) -> list[t.PromptMessage]:
            return [t.PromptMessage(role="user", content=each) for each in made(given)]

        needed = [t.PromptArgument(name=each, description=f"Argument {each}.", required=True) for each in arguments]
        return PromptOffer(
            shown=t.Prompt(name=name, description=f"Fixture {name}.", arguments=needed), messages=messages
        )

    def text(words: str) -> t.TextContent:
        return t.TextContent(text=words)

    return [
        PromptOffer(shown=t.Prompt(name=ASKING, description="Fixture."), messages=_asking_prompt),
        prompt("test_simple_prompt", lambda _: [text("This is a simple prompt for testing.")]),
        prompt(
            "test_prompt_with_arguments",
            lambda given: [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")],
            "arg1",
            "arg2",
        ),
        prompt(
            "test_prompt_with_embedded_resource",
            lambda given: [
                _embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing."),
                text("Please process the embedded resource above."),
            ],
            "resourceUri",
        ),
        prompt(
            "test_prompt_with_image",
            lambda _: [t.ImageContent(data=PNG, mime_type="image/png"), text("Please analyze the image above.")],
        ),
    ]
