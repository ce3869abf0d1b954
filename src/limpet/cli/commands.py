"""All commands. Each module registers its own with `command_group.command`."""

from limpet.cli import benchmark, conversation, derived, dev, inbox, prompts, queries, replay, serve, storage, tokens
from limpet.cli.command_group import command

__all__ = [
    "benchmark", "command", "conversation", "derived", "dev", "inbox", "prompts", "queries", "replay", "serve",
    "storage", "tokens",
]  # fmt: skip
