"""The command line: it translates, and knows nothing that the service does not say."""

from limpet.cli import branching as branching
from limpet.cli.commands import command

__all__ = ["command"]
