"""How a command says that something went wrong: one line with the cure, or JSON; a traceback only for --debug."""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec
import typer

from limpet.cli.output import clean
from limpet.errors import FileFailed, InvalidArgument, InvalidDuration, LimpetError, Unexpected, WrongUsage
from limpet.redaction import say
from limpet.service.json_views import error_json

__all__ = ["DEBUG", "failed", "let_go", "listening", "tell_error"]

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
        typer.echo(say("".join(traceback.format_exception(error))), err=True)
    known = _known(error)
    tell_error(known)
    let_go()
    return 2 if isinstance(known, WrongUsage | InvalidArgument | InvalidDuration) else 1


def tell_error(error: LimpetError) -> None:
    """An error on stderr."""
    told = error_json(error)
    if _manners.get().json:
        typer.echo(msgspec.json.encode(told, enc_hook=str).decode(), err=True)
    else:
        typer.echo(clean(f"error: {told['message']} {told['cure']} [{told['code']}]"), err=True)


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
