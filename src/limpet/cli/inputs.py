"""What is typed as a value: JSON, a file, a pair. What cannot be read is wrong usage, and nothing is done."""

import sys
from pathlib import Path
from typing import Any

import typer

from limpet.errors import InvalidValue
from limpet.redaction import say
from limpet.service.json_body import LARGEST, read_json

__all__ = ["input_of", "json_object", "json_or_text", "number_of", "pair_of"]

# What begins so was meant to be JSON.
BEGINNINGS = ("{", "[", '"')
SHOWN = 60


def input_of(text: str, what: str = "The input") -> Any:
    """JSON or else text; from a file with @FILE, from standard input with -."""
    if text == "-":
        return json_or_text(_decoded(sys.stdin.buffer.read(LARGEST + 1), what), what)
    if text.startswith("@"):
        with Path(text[1:]).open("rb") as file:
            return json_or_text(_decoded(file.read(LARGEST + 1), what), what)
    return json_or_text(text, what)


def json_or_text(text: str, what: str = "The value") -> Any:
    """JSON; what does not look like it is text."""
    try:
        return read_json(text, what)
    except InvalidValue as error:
        if len(text) > LARGEST or text.lstrip().startswith(BEGINNINGS):
            raise typer.BadParameter(f"{what} cannot be read: {error.reason}") from error
        return text


def json_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object that was typed."""
    try:
        found = read_json(text, what)
    except InvalidValue as error:
        raise typer.BadParameter(f"{what} cannot be read: {error.reason}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{what} is no JSON object: {say(text)[:SHOWN]!r}")
    return found


def pair_of(text: str) -> tuple[str, str]:
    """`name=value`."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def number_of(text: str) -> int:
    """The number of a step."""
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is not the number of a step")
    return int(text)


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{what} cannot be read: it is no UTF-8 text") from error
