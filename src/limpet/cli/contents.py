"""The list of commands that `limpet --help` prints, read from a file: loading all commands takes ten times as long.

`make fix` writes the file.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["FILE", "TOPICS", "contents_of", "read_contents"]

FILE = Path(__file__).with_name("contents.txt")
# Commands by topic, in the order in which a newcomer needs them.
TOPICS = {
    "Getting started": ("demo", "init", "dev"),
    "Servers": ("worker", "serve", "mcp"),
    "Inspect runs": ("runs", "show", "steps", "log", "state", "diff", "compare", "context", "artifact", "prompt"),
    "Control runs": ("start", "resume", "pause", "cancel", "signal"),
    "Decide requests": ("inbox", "answer", "approve", "reject", "grants", "revoke"),
    "Score runs": ("score", "unscore", "scores"),
    "Replay and fork": ("replay", "fork"),
    "Conversations": ("say", "messages", "conversations", "sessions", "compact"),
    "Shared records": ("records", "record", "record-changes", "patch-record"),
    "Search all runs": ("search", "decisions", "errors", "calls", "agents", "workers", "stats", "activity"),
    "Manage tokens": ("token",),
    "Audit": ("audit",),
    "Maintain the store": ("doctor", "verify", "export", "load", "import", "prune", "bench"),
}
_ENDS = re.compile(r"[.:;]\s|\.?$")


def contents_of(commands: Mapping[str, Any]) -> str:
    """Return the text of the file: the commands by topic, each with the first sentence of its help."""
    known = {name for names in TOPICS.values() for name in names}
    lines = []
    for topic, listed in TOPICS.items():
        more = [name for name, each in commands.items() if name not in known and each.rich_help_panel == topic]
        lines.append(topic)
        lines += [f"  {name} {_ENDS.split(commands[name].help or '')[0]}" for name in (*listed, *more)]
    return "\n".join(lines) + "\n"


def read_contents() -> dict[str, list[tuple[str, str]]]:
    """Return the name and the summary of each command, by topic."""
    found = dict[str, list[tuple[str, str]]]()
    lines = list[tuple[str, str]]()
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            name, _, summary = line.strip().partition(" ")
            lines.append((name, summary))
        else:
            lines = found[line] = []
    return found
