"""The door itself: all commands hang on it, and whatever goes wrong behind it is told here, and nowhere else."""

import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec
import typer
from typer.core import TyperGroup

from limpet.cli.output import clean
from limpet.errors import FileFailed, InvalidArgument, LimpetError, Unexpected, WrongUsage
from limpet.redaction import hide_secrets
from limpet.service.json_views import error_json

__all__ = ["DEBUG", "command", "example", "failed", "let_go", "listening", "tell_error"]

_ENDS = re.compile(r"[.:;]\s|\.?$")
# What there is, in the order in which one comes to need it.
SHELVES = {
    "To begin": ("demo", "init", "dev", "worker", "serve", "mcp", "doctor", "bench"),
    "Look at runs": ("runs", "show", "log", "state", "diff", "compare", "context", "artifact", "prompt"),
    "Steer them": ("start", "resume", "pause", "cancel", "signal"),
    "Decide for them": ("inbox", "answer", "approve", "reject"),
    "Try again": ("replay", "fork"),
    "What was said": ("hide_secrets", "messages", "conversations", "sessions"),
    "Across all runs": ("search", "decisions", "errors", "calls", "agents", "workers", "stats"),
    "Keep them": ("verify", "export", "load", "prune"),
}


class CommandGroup(TyperGroup):
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
    cls=CommandGroup,
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


DEBUG = "LIMPET_DEBUG"
# What the parser raises: it has no public name.
UsageError: Any = typer.BadParameter.__mro__[1]


@dataclass(frozen=True)
class Manners:
    """How errors are to be told."""

    json: bool = False
    debug: bool = False


PLAIN = Manners()
_manners = ContextVar("limpet_manners", default=PLAIN)


@contextmanager
def listening(words: Sequence[str]) -> Iterator[list[str]]:
    """What was typed, but for --debug, which may stand anywhere; errors inside are told as it was wished."""
    cut = words.index("--") if "--" in words else len(words)
    before, after = list(words[:cut]), words[cut:]
    debug = "--debug" in before or os.environ.get(DEBUG, "0") not in ("", "0")
    token = _manners.set(Manners(json="--json" in before, debug=debug))
    try:
        yield [*(word for word in before if word != "--debug"), *after]
    finally:
        _manners.reset(token)


def failed(error: BaseException) -> int:
    """Say what went wrong; the exit code."""
    if _manners.get().debug:
        typer.echo(hide_secrets("".join(traceback.format_exception(error))), err=True)
    known = _known(error)
    tell_error(known)
    let_go()
    return 2 if isinstance(known, WrongUsage | InvalidArgument) else 1


def tell_error(error: LimpetError) -> None:
    """An error on stderr."""
    told = error_json(error)
    if _manners.get().json:
        typer.echo(msgspec.json.encode(told, enc_hook=str).decode(), err=True)
    else:
        typer.echo(clean(f"error: {told['message']} {told['hint']} [{told['code']}]"), err=True)


def _known(error: BaseException) -> LimpetError:
    if isinstance(error, LimpetError):
        return error
    if isinstance(error, UsageError):
        return _wrong_usage(error)
    if isinstance(error, OSError):
        return FileFailed(path=str(error.filename or "The output"), reason=error.strerror or str(error))
    return Unexpected(error_type=type(error).__qualname__, message=str(error))


def _wrong_usage(error: Any) -> WrongUsage:
    is_ours = isinstance(error, typer.BadParameter) and error.param is None and error.param_hint is None
    reason = error.message if is_ours else error.format_message()
    path = error.ctx.command_path if error.ctx is not None else "limpet"
    return WrongUsage(reason=reason if reason.endswith((".", "?")) else f"{reason}.", command=path)


def let_go() -> None:
    """What nobody takes any more (a full disk, a closed pipe) is not tried again at the end of the process."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
