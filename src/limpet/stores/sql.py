"""Named statements from .sql files: a section begins with `-- name: word`, and `{word}` stands for another section."""

import re
from importlib.resources import files

__all__ = ["load"]

_SECTION = re.compile(r"^-- name: (\S+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_INCLUDE = re.compile(r"\{(\S+?)\}")


def load(package: str, name: str) -> dict[str, str]:
    """The statements of a file in a package, by name."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    sections = {title: _COMMENT.sub("", body).strip() for title, body in _SECTION.findall(text)}
    return {title: _INCLUDE.sub(lambda match: sections[match[1]], body) for title, body in sections.items()}
