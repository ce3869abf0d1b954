"""The door itself: all commands hang on it, and whatever goes wrong behind it is told here, and nowhere else."""

import re
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from limpet.cli.error_output import failed, let_go, listening

__all__ = ["command", "example"]


_ENDS = re.compile(r"[.:;]\s|\.?$")
# What there is, in the order in which one comes to need it.
SHELVES = {
    "To begin": ("demo", "init", "dev", "worker", "serve", "mcp", "doctor", "bench"),
    "Look at runs": ("runs", "show", "log", "state", "diff", "compare", "context", "artifact", "asked"),
    "Steer them": ("start", "resume", "pause", "cancel", "signal"),
    "Decide for them": ("inbox", "answer", "approve", "reject"),
    "Try again": ("replay", "fork"),
    "What was said": ("say", "messages", "conversations", "sessions"),
    "Across all runs": ("search", "decisions", "errors", "calls", "agents", "workers", "stats"),
    "Keep them": ("verify", "export", "load", "prune"),
}


class Door(TyperGroup):
    """Every command ends here: 0 done, 1 an error, 2 wrong usage, 130 Ctrl-C, 141 nobody reads on."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's own name
        """Every command with the beginning of what it says, next to those that one needs with it."""
        widest = max(map(len, self.commands))
        for title, names in SHELVES.items():
            lines = [(name.ljust(widest), _ENDS.split(self.commands[name].help or "")[0]) for name in names]
            with formatter.section(title):
                formatter.write_dl(lines)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What was typed; nothing at all is answered with the help."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; where nobody reads on, it ends without a word, as by SIGPIPE."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            let_go()
            raise typer.Exit(128 + 13) from None

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run a command, and end the process as it ended."""
        extra["standalone_mode"] = False
        with listening(sys.argv[1:] if args is None else args) as words:
            try:
                code = super().main(words, prog_name, **extra)
            except Exception as error:  # noqa: BLE001 - nothing is behind this door but the user's shell
                code = failed(error)
        sys.exit(code if isinstance(code, int) else 0)


command = typer.Typer(
    cls=Door,
    help="Durable runs of AI agents: drive them, look at them, decide for them.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@command.callback(invoke_without_command=True)
def _limpet(
    version: bool = typer.Option(False, "--version", help="Say which version this is."),
    debug: bool = typer.Option(False, "--debug", help="Show where an error came from. Also LIMPET_DEBUG=1."),  # noqa: ARG001 - see `listening`
) -> None:
    if version:
        from limpet import __version__  # noqa: PLC0415 - it takes long to look up

        typer.echo(f"limpet {__version__}")
        raise typer.Exit


def example(*lines: str) -> str:
    """What to type, for the end of a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
