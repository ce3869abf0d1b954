"""URIs of resources: match one against a template, and fill in a template. A value is one part of a path."""

import re
from collections.abc import Mapping
from functools import cache
from urllib.parse import parse_qsl, quote, unquote

__all__ = ["LONGEST_URI", "filled", "matched"]

LONGEST_URI = 2_000
"""Longest URI that is examined, in characters."""
_QUERY = re.compile(r"\{\?([\w,]+)\}$")
# A value has no separator of paths and no control character, also after decoding, and is no step to another folder.
_VALUE = re.compile(r"(?!\.{1,2}$)[^\x00-\x1f\x7f/\\?#%]{1,300}")


def matched(template: str, uri: str) -> dict[str, str] | None:
    """Return the values of a template's variables in a URI, None if it does not match.

    `{name}` is one part of the path, and `{?one,two}` at the end are optional parameters of the query.
    """
    if len(uri) > LONGEST_URI:
        return None
    pattern, optional = _compiled(template)
    path, mark, query = uri.partition("?")
    found = pattern.fullmatch(path)
    if found is None or (mark and not optional):
        return None
    values = {name: unquote(value) for name, value in found.groupdict().items()}
    given = parse_qsl(query, keep_blank_values=True)
    more = dict(given)
    if len(more) != len(given) or not more.keys() <= optional:
        return None
    is_safe = all(_VALUE.fullmatch(each) for each in values.values())
    return {**values, **more} if is_safe else None


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return the URI of a template with values for the variables in its path."""
    path = _QUERY.sub("", template)
    return re.sub(r"\{(\w+)\}", lambda name: quote(values[name[1]], safe=""), path)


@cache
def _compiled(template: str) -> tuple[re.Pattern[str], frozenset[str]]:
    query = _QUERY.search(template)
    path = re.escape(_QUERY.sub("", template))
    optional = frozenset(query[1].split(",")) if query else frozenset[str]()
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/?#]+)", path)), optional
