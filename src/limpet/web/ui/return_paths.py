"""Where a browser returns after a login: the page that it asked for, which a cookie names for ten minutes.

The cookie has a path below the dashboard, never an address, so that it leads nowhere else.
"""

import re
from urllib.parse import quote, unquote

from starlette.requests import Request, cookie_parser
from starlette.responses import Response

__all__ = ["forget_path", "remember_path", "remembered_path"]

LASTS = 600
"""How long a path is remembered, in seconds."""
_PATH = re.compile(r"/[A-Za-z0-9._~%!$&'()*+,;=:@/-]{0,1500}(\?[A-Za-z0-9._~%!$&'()*+,;=:@/?-]{0,500})?")


def remember_path(request: Request, reply: Response, *, cookie: str, root: str) -> Response:
    """Let a reply remember the page that was asked for, if a person asked for it."""
    asked: str = request.scope.get("raw_path", b"").decode("latin-1")
    query: str = request.scope["query_string"].decode("latin-1")
    path = f"{asked.removeprefix(root)}{f'?{query}' if query else ''}"
    is_page = request.headers.get("sec-fetch-dest", "document") == "document" and path != "/stream"
    if request.method == "GET" and is_page and asked.startswith(f"{root}/") and _is_inside(path):
        reply.set_cookie(
            _name(cookie),
            quote(path, safe=""),
            max_age=LASTS,
            path="/",
            secure=cookie.startswith("__Host-"),
            httponly=True,
            samesite="lax",
        )
    return reply


def remembered_path(request: Request, cookie: str) -> str | None:
    """Return the path below the dashboard that a browser asked for before its login."""
    found = cookie_parser(request.headers.get("cookie", "")).get(_name(cookie))
    path = None if found is None else unquote(found)
    return path if path is not None and _is_inside(path) else None


def forget_path(reply: Response, cookie: str) -> None:
    """Let a reply remove the path."""
    reply.delete_cookie(_name(cookie), path="/", secure=cookie.startswith("__Host-"), httponly=True, samesite="lax")


def _is_inside(path: str) -> bool:
    """Return whether a path stays below the dashboard: browsers resolve dots, also encoded ones."""
    parts = unquote(path.partition("?")[0]).split("/")
    return _PATH.fullmatch(path) is not None and not {".", ".."} & set(parts) and "\\" not in unquote(path)


def _name(cookie: str) -> str:
    return f"{cookie}-next"
