"""The generated pages of the reference: `python -m tests.docs.reference` writes them, a test compares them."""

import re
from dataclasses import fields
from pathlib import Path

from limpet import errors
from limpet.events import KINDS
from tests.guarantees import manifest

ROOT = Path(__file__).parents[2]


def events_page() -> str:
    """Every kind of event, with who may write it and what it says."""
    lines = [
        "# Events",
        "",
        "Every kind of event, made from the vocabulary (`make fix` writes this page). A kind's name and the fields of",
        "a version never change once released; a new field is a new version.",
        "",
        "Who may write: the **creator** of a stream its first event; the **owner**, the worker that has the run, under",
        "its fence; a **command** may come from any process; the **store** itself; a **speaker** in a conversation.",
        "",
        "| kind | version | written by | says | fields |",
        "|---|---|---|---|---|",
    ]
    for kind in KINDS:
        says = (kind.body.__doc__ or "").split("\n")[0]
        names = ", ".join(f"`{name}`" for name in kind.body.__struct_fields__)
        lines.append(f"| `{kind.name}` | {kind.version} | {kind.writer.value} | {says} | {names} |")
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """Every error, with its code, its facts and its cure."""
    lines = [
        "# Errors",
        "",
        "Everything that Limpet raises is a `limpet.LimpetError` with a stable `code`, its `facts` by name, and the",
        "`cure` (`make fix` writes this page).",
        "",
        "| error | code | when | facts | cure |",
        "|---|---|---|---|---|",
    ]
    for name in errors.__all__:
        error = getattr(errors, name)
        facts = ", ".join(f"`{field.name}`" for field in fields(error))
        says = re.sub(r"\s+", " ", error.__doc__ or "")
        lines.append(f"| `{name}` | `{error.code}` | {says} | {facts} | {error._cure} |")
    return "\n".join(lines) + "\n"


PAGES = {
    "docs/reference/events.md": events_page,
    "docs/reference/errors.md": errors_page,
    "docs/guarantees.md": manifest.page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        (ROOT / path).write_text(page(), encoding="utf-8")
