"""Named statements from .sql files: a section starts with `-- name: word`, and `{word}` includes another section."""

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

from limpet.errors import ReadOnlyStore, newer_store, outdated_store

__all__ = ["check_schema", "load", "scripts"]

_SECTION = "-- name: "
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_INCLUDE = re.compile(r"\{(\S+?)\}")


def load(package: str, name: str, **words: str) -> dict[str, str]:
    """Return the statements of a file in a package, by name; `words` adds further includes."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    _, *parts = ("\n" + text).split("\n" + _SECTION)
    named = (part.partition("\n") for part in parts)
    sections = {title.strip(): _COMMENT.sub("", body + "\n").strip() for title, _, body in named} | words
    return {title: _filled(body, sections) for title, body in sections.items()}


def scripts(package: str, folder: str) -> list[Traversable]:
    """Return the numbered scripts of a folder in a package, in order, unread: most stores need none of them."""
    found = (each for each in files(package).joinpath(folder).iterdir() if each.name.endswith(".sql"))
    return sorted(found, key=lambda each: each.name)


def _filled(body: str, sections: dict[str, str]) -> str:
    while _INCLUDE.search(body):
        body = _INCLUDE.sub(lambda match: sections[match[1]], body)
    return body


def check_schema(found: int, newest: int, why: ReadOnlyStore) -> None:
    """Raise if a store that cannot be written here has another schema version than the newest."""
    if found > newest:
        raise newer_store(found, newest)
    if found < newest:
        version = f"the store has schema version {found}, and this version of Limpet needs {newest}"
        raise outdated_store(why, version if found else "no store exists")
