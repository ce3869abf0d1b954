"""The command line: it translates, and knows nothing that the service does not say."""

from limpet.cli import across as across
from limpet.cli import acting as acting
from limpet.cli import benching as benching
from limpet.cli import branching as branching
from limpet.cli import commands as commands
from limpet.cli import deciding as deciding
from limpet.cli import keeping as keeping
from limpet.cli import looking as looking
from limpet.cli import serving as serving
from limpet.cli import starting as starting
from limpet.cli import talk as talk
from limpet.cli.door import command

__all__ = ["command"]
