"""All commands. Each module registers its own with `command_group.command`."""

from limpet.cli import (
    audit,
    benchmark,
    conversation,
    derived,
    dev,
    inbox,
    prompts,
    queries,
    replay,
    scores,
    serve,
    storage,
    tokens,
)
from limpet.cli.command_group import command

__all__ = [
    "audit", "benchmark", "command", "conversation", "derived", "dev", "inbox", "prompts", "queries", "replay",
    "scores", "serve", "storage", "tokens",
]  # fmt: skip
