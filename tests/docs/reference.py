"""The generated pages of the reference: `python -m tests.docs.reference` writes them, a test compares them."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

import limpet
from limpet import errors
from limpet.cli.commands import command
from limpet.cli.contents import contents_of
from limpet.events import KINDS
from limpet.service import json_views
from limpet.service.access import roles_with
from limpet.service.operation import operations_of
from tests.guarantees import manifest

ROOT = Path(__file__).parents[2]


def events_page() -> str:
    """Return the page of all kinds of events, with their writers and fields."""
    lines = [
        "# Events",
        "",
        "Every kind of event. `make fix` generates this page from the vocabulary. A kind's name and the fields of",
        "a version never change once released; a new field is a new version.",
        "",
        "Who may write: the **creator** of a stream its first event; the **owner**, the worker that holds the run,",
        "under its fence; any process a **command**; the **store** itself; a **speaker** in a conversation.",
        "",
        "| kind | version | written by | meaning | fields |",
        "|---|---|---|---|---|",
    ]
    for kind in KINDS:
        meaning = (kind.body.__doc__ or "").split("\n")[0]
        names = ", ".join(f"`{name}`" for name in kind.body.__struct_fields__)
        lines.append(f"| `{kind.name}` | {kind.version} | {kind.writer.value} | {meaning} | {names} |")
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """Return the page of all errors, with their codes, fields and hints."""
    lines = [
        "# Errors",
        "",
        "Every error that Limpet raises is a `limpet.LimpetError` with a stable `code`, its `facts` by name, a",
        "`summary` and a `hint`: what to type or change. `make fix` generates this page.",
        "",
        "| error | code | when | facts | hint |",
        "|---|---|---|---|---|",
    ]
    for name in errors.__all__:
        error = getattr(errors, name)
        facts = ", ".join(f"`{field.name}`" for field in fields(error))
        meaning = re.sub(r"\s+", " ", error.__doc__ or "")
        lines.append(f"| `{name}` | `{error.code}` | {meaning} | {facts} | {error._hint} |")
    return "\n".join(lines) + "\n"


def json_page() -> str:
    """Return the page of all JSON views."""
    lines = [
        "# JSON",
        "",
        f"The JSON that `--json` prints and every other interface returns, version {json_views.VERSION}. `make fix`",
        "generates this page. A field keeps its name and type; a test fails with the name of one that does not.",
        "",
        "- A list is a page: `items`, and `next`, the `cursor` of the next page or null.",
        "- A time is ISO 8601 in UTC, with microseconds. In the body of an event, times are as stored: microseconds",
        "  since 1970.",
        "- A result above 4 MB is shortened, and has an additional field `truncated` that lists what was cut.",
        "- An error is an object with `code`, `message`, `facts` and `hint`; the command line prints it on stderr.",
        "",
        "| what | form |",
        "|---|---|",
        *(
            f"| {what} | [{json_views.name_of(form)}](#{json_views.name_of(form).lower()}) |"
            for what, form in json_views.VIEWS.items()
        ),
    ]
    for name, form in json_views.forms().items():
        meaning = (form.__doc__ or "").split("\n")[0]
        descriptions = json_views.descriptions_of(form)
        lines += ["", f"## {name}", "", meaning, "", "| field | holds | |", "|---|---|---|"]
        lines += [
            f"| `{field}` | {holds} | {descriptions.get(field, '')} |"
            for field, holds in json_views.fields_of(form).items()
        ]
    return "\n".join(lines) + "\n"


def operations_page(app: type = limpet.App) -> str:
    """Return the page of all operations of an app."""
    lines = [
        "# Operations",
        "",
        "Every query and command, as all interfaces offer it. `make fix` generates this page from the app's methods.",
        "Over HTTP and MCP, a caller needs one of the roles. MCP does not offer commands yet. Over HTTP, `by` is the",
        "caller, and `command_id` follows from the header `Idempotency-Key`.",
    ]
    found = operations_of(app)
    for topic in dict.fromkeys(each.topic for each in found.values()):
        lines += [
            "",
            f"## {topic or 'Start runs'}",
            "",
            "| name | HTTP | roles | parameters | |",
            "|---|---|---|---|---|",
        ]
        for each in (each for each in found.values() if each.topic == topic):
            takes = ", ".join(f"`{name}`" for name in each.parameters)
            address = f"{each.http_method} `/v1{each.path}`"
            roles = ", ".join(roles_with(each.needs))
            lines.append(f"| `{each.name}` | {address} | {roles} | {takes} | {each.summary} |")
    return "\n".join(lines) + "\n"


PUBLIC = {
    "Open": ("open", "open_store", "sync", "App", "Store", "Worker", "Retention", "MasterKeys"),
    "Define agents and tools": (
        "agent", "tool", "external", "llm_agent", "Agent", "Tool", "External", "Model", "Budget", "Approvals",
        "Escalate", "Retry", "Compaction", "Summariser", "summarise_with", "Duration", "versioned",
    ),
    "In agent code": ("Run", "Turn", "State", "Message", "Secret", "ContextSlice"),
    "The working state": (
        "AgentState", "StatePatch", "Fact", "PlanItem", "OpenQuestion", "Artifact", "RiskFlag",
    ),
    "In tools": ("current", "Call", "idempotency_key", "Done", "NotApplied", "Permanent", "RetryAfter", "retry"),
    "Runs and requests": (
        "Handle", "RunInfo", "StepInfo", "EventView", "Request", "Page", "Principal", "Webhook", "Slack", "Email",
        "RunNotice", "is_genuine",
    ),
    "Inspect": ("Moment", "Point", "Diff", "Comparison", "PromptView"),
    "Errors": tuple(errors.__all__),
}  # fmt: skip
"""Public names by topic."""


def python_page() -> str:
    """Return the page of all public names, with the first sentence of each docstring."""
    lines = [
        "# Python API",
        "",
        "Every name that `import limpet` gives. `make fix` generates this page from the docstrings. Errors have a",
        "[page of their own](errors.md).",
    ]
    for topic, names in PUBLIC.items():
        if topic == "Errors":
            continue
        lines += ["", f"## {topic}", "", "| name | |", "|---|---|"]
        for name in names:
            text = re.sub(r"\s+", " ", inspect.getdoc(getattr(limpet, name)) or "")
            if name == "Duration":
                text = 'A duration: seconds, a timedelta, or text such as "500ms", "10s", "2h", "3d".'
            first = re.split(r"(?<=[.])\s", text, maxsplit=1)[0]
            lines.append(f"| `{name}` | {first} |")
    return "\n".join(lines) + "\n"


def contents_file() -> str:
    """Return the list of commands that `limpet --help` prints."""
    group: Any = typer.main.get_command(command)
    return contents_of(group.commands)


PAGES = {
    "src/limpet/cli/contents.txt": contents_file,
    "docs/reference/python.md": python_page,
    "docs/reference/json.md": json_page,
    "docs/reference/events.md": events_page,
    "docs/reference/errors.md": errors_page,
    "docs/guarantees.md": manifest.page,
    "docs/reference/operations.md": operations_page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        (ROOT / path).write_text(page(), encoding="utf-8")
