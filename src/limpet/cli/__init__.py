"""The command line. Each module registers its commands with `commands.command`."""

from limpet.cli import benchmark as benchmark
from limpet.cli import conversation as conversation
from limpet.cli import derived as derived
from limpet.cli import dev as dev
from limpet.cli import inbox as inbox
from limpet.cli import prompts as prompts
from limpet.cli import queries as queries
from limpet.cli import replay as replay
from limpet.cli import serve as serve
from limpet.cli import storage as storage
from limpet.cli.command_group import command

__all__ = ["command"]
