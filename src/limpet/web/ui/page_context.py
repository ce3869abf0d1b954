"""Everything that a page needs to be made: the app, the person, the request, and how operations are asked."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from limpet.service.access import Permission, may
from limpet.service.app import App
from limpet.service.operation import operations_of
from limpet.web.ui.browser_sessions import BrowserSession
from limpet.web.ui.rendering import render

__all__ = ["OPERATIONS", "PageContext"]

OPERATIONS = operations_of(App)


class PageContext(Struct, frozen=True, kw_only=True):
    """A request for a page by a person who is logged in."""

    app: App
    session: BrowserSession
    request: Request
    root: str
    """Path of the dashboard, without a slash at the end."""
    ids: Sequence[str] = ()
    """Ids in the path."""
    form: Mapping[str, str] = {}
    """Fields of a form, without its token."""
    new_id: Callable[[], str]
    """Makes the id of a form: sending it twice has one effect."""

    async def ask(self, operation: str, /, command_id: str | None = None, **given: Any) -> Any:
        """Run an operation for the person, and return its result as redacted JSON. Raises LimpetError."""
        arguments = {name: value for name, value in given.items() if value not in (None, "")}
        return await OPERATIONS[operation].run(self.app, arguments, who=self.session.who, command_id=command_id)

    def may(self, *needs: Permission) -> bool:
        """Return whether the person has a role with one of these permissions."""
        return may(self.session.who, *needs)

    async def page(self, template: str, *, here: str, title: str, code: int = 200, **more: Any) -> Response:
        """Return a page with the frame that all have."""
        stats = await self.ask("stats") if self.may("look") else {"runs": {}, "requests": 0, "unserved": []}
        now: datetime = await self.app.now()
        context = {
            "root": self.root,
            "who": self.session.who,
            "form_token": self.session.form_token,
            "may": self.may,
            "new_id": self.new_id,
            "is_reply": self.request.method == "POST",
            "here": here,
            "title": title,
            "now": now,
            "stats": stats,
            **more,
        }
        return Response(render(template, **context), code, media_type="text/html")

    def redirect(self, path: str) -> Response:
        """Return to a page, after a form."""
        return RedirectResponse(f"{self.root}{path}", 303)
