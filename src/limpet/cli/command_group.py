"""The command group: registers commands, formats the help, and turns every error into a message and an exit code."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
import typer
from msgspec import Struct
from typer.core import TyperGroup

from limpet.cli.contents import read_contents
from limpet.errors import FileFailed, InvalidArgument, LimpetError, Unexpected, WrongUsage
from limpet.redaction import hide_secrets
from limpet.service.json_values import error_json

__all__ = ["DEBUG", "command", "discard_output", "error_options", "example", "failed", "print_error"]


class CommandGroup(TyperGroup):
    """Runs a command and exits: 0 done, 1 an error, 2 wrong usage, 130 Ctrl-C, 141 a closed pipe."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's own name
        """List the commands by topic, each with the first sentence of its help."""
        contents = read_contents()
        widest = max(len(name) for lines in contents.values() for name, _ in lines)
        for topic, lines in contents.items():
            with formatter.section(topic):
                formatter.write_dl([(name.ljust(widest), summary) for name, summary in lines])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; without any, print the help and exit with 2."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; if the reader of its output is gone, exit silently, as after SIGPIPE."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(128 + 13) from None

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run a command, and exit with its code."""
        extra["standalone_mode"] = False
        with error_options(sys.argv[1:] if args is None else args) as words:
            try:
                code = super().main(words, prog_name, **extra)
            except Exception as error:  # noqa: BLE001 - the last handler before the user's shell
                code = failed(error)
        sys.exit(code if isinstance(code, int) else 0)


command = typer.Typer(
    cls=CommandGroup,
    help="Run AI agents durably: execute, inspect, steer and approve their runs.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@command.callback(invoke_without_command=True)
def _limpet(
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks. Same as LIMPET_DEBUG=1."),  # noqa: ARG001 - see `error_options`
) -> None:
    if version:
        from limpet import __version__  # noqa: PLC0415 - slow to import

        typer.echo(f"limpet {__version__}")
        raise typer.Exit


def example(*lines: str) -> str:
    """Format examples for the end of a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


DEBUG = "LIMPET_DEBUG"
# The base class of usage errors has no public name.
UsageError: Any = typer.BadParameter.__mro__[1]


class ErrorFormat(Struct, frozen=True):
    """How errors are printed."""

    json: bool = False
    debug: bool = False


DEFAULT_FORMAT = ErrorFormat()
_error_format = ContextVar("limpet_error_format", default=DEFAULT_FORMAT)


@contextmanager
def error_options(words: Sequence[str]) -> Iterator[list[str]]:
    """Take --debug out of the arguments, wherever it is, and print errors inside as --json and --debug ask."""
    cut = words.index("--") if "--" in words else len(words)
    before, after = list(words[:cut]), words[cut:]
    debug = "--debug" in before or os.environ.get(DEBUG, "0") not in ("", "0")
    token = _error_format.set(ErrorFormat(json="--json" in before, debug=debug))
    unless_configured = logging.NullHandler()
    if "--json" in before:  # Otherwise Python prints warnings to stderr, which has nothing but one error then.
        logging.getLogger("limpet").addHandler(unless_configured)
    try:
        yield [*(word for word in before if word != "--debug"), *after]
    finally:
        logging.getLogger("limpet").removeHandler(unless_configured)
        _error_format.reset(token)


def failed(error: BaseException) -> int:
    """Print an error, and return the exit code."""
    if _error_format.get().debug:
        typer.echo(hide_secrets("".join(traceback.format_exception(error))), err=True)
    known = _known(error)
    print_error(known)
    discard_output()
    return 2 if isinstance(known, WrongUsage | InvalidArgument) else 1


def print_error(error: LimpetError) -> None:
    """Print an error on stderr."""
    from limpet.cli.output import clean  # noqa: PLC0415 - loads the operations, which the help does not need

    shown = error_json(error)
    if _error_format.get().json:
        typer.echo(msgspec.json.encode(shown, enc_hook=str).decode(), err=True)
    else:
        typer.echo(clean(f"error: {shown['message']} {shown['hint']} [{shown['code']}]"), err=True)


def _known(error: BaseException) -> LimpetError:
    if isinstance(error, LimpetError):
        return error
    if isinstance(error, UsageError):
        return _wrong_usage(error)
    if isinstance(error, OSError):
        return FileFailed(path=str(error.filename or "the output"), reason=error.strerror or str(error))
    return Unexpected(error_type=type(error).__qualname__, message=str(error))


def _wrong_usage(error: Any) -> WrongUsage:
    is_ours = isinstance(error, typer.BadParameter) and error.param is None and error.param_hint is None
    reason = error.message if is_ours else error.format_message()
    path = error.ctx.command_path if error.ctx is not None else "limpet"
    return WrongUsage(reason=reason if reason.endswith((".", "?")) else f"{reason}.", command=path)


def discard_output() -> None:
    """Discard output that cannot be written (a full disk, a closed pipe), so that exiting does not try it again."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
