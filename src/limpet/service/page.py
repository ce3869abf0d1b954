"""A page of a list: some items, and the cursor of the next ones."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from limpet.errors import InvalidArgument

__all__ = ["MAX_PAGE_BYTES", "Page", "number_of", "own_cursor", "tenant_cursor"]

T = TypeVar("T")
MAX_PAGE_BYTES = 2_000_000
"""Maximum size of a page's items as JSON. A page with one item may be larger."""


class Page(list[T]):
    """Some items of a list. To read on, pass `next` as `cursor` to the same method with the same arguments."""

    def __init__(self, items: Iterable[T] = (), next: str | None = None) -> None:
        super().__init__(items)
        self.next = next
        """Cursor of the next items; None if there are none."""

    @classmethod
    def cut(cls, items: Sequence[T], limit: int, cursor: Callable[[T], Any]) -> "Page[T]":
        """Return the first items: at most `limit`, and not much more than the maximum size.

        If there are more items, `next` is the cursor of the last one that is included.
        """
        size = fitting = 0
        for item in items[:limit]:
            size += len(msgspec.json.encode(item, enc_hook=str))
            if fitting and size > MAX_PAGE_BYTES:
                break
            fitting += 1
        found = items[:fitting]
        return cls(found, str(cursor(found[-1])) if found and len(items) > fitting else None)


def tenant_cursor(cursor: str, tenant: str) -> str:
    """Return a cursor as a tenant's caller gets it. A cursor of a server with one store has no mark."""
    return f"{tenant}~{cursor}" if tenant else cursor


def own_cursor(given: str, tenant: str, path: str = "cursor") -> str:
    """Return the cursor that a tenant's caller got. Raises InvalidArgument for one of another tenant."""
    mark, is_marked, cursor = given.rpartition("~")
    if mark != tenant or bool(is_marked) != bool(tenant):
        raise InvalidArgument(path=path, reason="is not a cursor of your tenant; pass one that you got")
    return cursor


def number_of(cursor: str | None) -> int | None:
    """Return the number that a cursor stands for. Raises InvalidArgument."""
    if cursor is None:
        return None
    if not cursor.isdecimal() or not cursor.isascii() or len(cursor) > 18:
        raise InvalidArgument(path="cursor", reason=f"{cursor!r} is not a cursor; pass `next` of the page before")
    return int(cursor)
