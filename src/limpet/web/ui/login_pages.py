"""Log in and out: by a link, whose code is used once, or with an access token."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from limpet.ids import Ids
from limpet.service.app import App
from limpet.service.sessions import SESSION_LASTS, NewSession, log_in, log_in_with_token, log_out, login_of
from limpet.service.tokens import parse_token
from limpet.web.access_log import note
from limpet.web.ui.browser_sessions import BrowserSession
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.rendering import render
from limpet.web.ui.return_paths import forget_path, remembered_path

__all__ = ["begun_reply", "log_in_page", "submit_login", "submit_logout"]


async def log_in_page(
    apps: Mapping[str, App],
    request: Request,
    *,
    root: str,
    session: BrowserSession | None,
    provider: str = "",
    fault: str = "",
) -> Response:
    """Show who a link logs in, or how to get one. Opening a link does not use it: a mail program may do that, too."""
    code = request.query_params.get("code", "")
    app = _app_of(apps, code)
    who = None if app is None else await login_of(app.store, code)
    if code and who is None and not fault:
        fault = "This link was used before, or has expired. Make another one."
    context = {
        "root": root,
        "code": code if who is not None else "",
        "name": "" if who is None else who.name,
        "current": None if session is None else session.who.name,
        "provider": provider,
        "fault": fault,
    }
    return Response(render("login.html", **context), 200 if not fault else 403, media_type="text/html")


async def submit_login(  # noqa: PLR0913 - most by name
    apps: Mapping[str, App],
    ids: Ids,
    form: Mapping[str, str],
    *,
    cookie: str,
    root: str,
    request: Request,
    provider: str = "",
) -> Response:
    """Begin a session, with an id of its own."""
    begun = await _begun(apps, ids, form)
    if begun is None:
        fault = "This link was used before, or has expired. Make another one."
        if "token" in form:
            fault = "This token is not valid. `limpet token list` shows those that are."
        return await log_in_page(apps, request, root=root, session=None, provider=provider, fault=fault)
    note(request.scope, who=begun.who.name, tenant=begun.who.tenant)
    return begun_reply(apps[begun.who.tenant], begun, request, cookie=cookie, root=root)


def begun_reply(app: App, begun: NewSession, request: Request, *, cookie: str, root: str) -> Response:
    """Return the reply that begins a session in a browser, and shows the page that it asked for, or the runs."""
    app.audit_trail.record_login(begun.who)
    reply = RedirectResponse(f"{root}{remembered_path(request, cookie) or '/runs'}", 303)
    is_secure = cookie.startswith("__Host-")
    reply.set_cookie(
        cookie,
        begun.token,
        max_age=SESSION_LASTS // 1_000_000,
        path="/",
        secure=is_secure,
        httponly=True,
        samesite="lax",
    )
    forget_path(reply, cookie)
    return reply


async def submit_logout(page: PageContext) -> Response:
    """End the session."""
    await log_out(page.app.store, page.session.text)
    return page.redirect("/login")


async def _begun(apps: Mapping[str, App], ids: Ids, form: Mapping[str, str]) -> NewSession | None:
    for name, begin in (("code", log_in), ("token", log_in_with_token)):
        if text := form.get(name, "").strip():
            app = _app_of(apps, text)
            return None if app is None else await begin(app.store, ids, text)
    return None


def _app_of(apps: Mapping[str, App], text: str) -> App | None:
    """Return the app of the tenant that a code or token names."""
    parsed = parse_token(text)
    app = None if parsed is None else apps.get(parsed.tenant)
    return app if app is not None and app.is_open else None
