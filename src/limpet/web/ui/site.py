"""The dashboard as an application: who sees it, from where forms may come, and which page answers.

Pages take the session's cookie only, and the API takes bearer tokens only, so a page of another site can do nothing
with a browser that is logged in. A form is accepted from a page of this server, with the token of its session.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from limpet.clock import Clock
from limpet.engine.execution.principal import Principal
from limpet.errors import InvalidArgument, LimpetError, NotAuthenticated, NotFound, WrongOrigin
from limpet.ids import Ids
from limpet.service.access import RECHECK
from limpet.service.app import App
from limpet.service.decision_links import LinkKeys
from limpet.service.operation import limpet_errors
from limpet.service.tokens import TENANT
from limpet.web.access_log import note
from limpet.web.event_streams import EventStream, StreamLimits
from limpet.web.guard import Places
from limpet.web.oidc import OidcClient
from limpet.web.replies import status_of
from limpet.web.ui.agent_pages import agent_page, agents_page
from limpet.web.ui.artifact_pages import artifact_page
from limpet.web.ui.batch_pages import confirm_all, confirm_selected, submit_batch
from limpet.web.ui.browser_sessions import STREAM_TRUSTED, BrowserSession, BrowserSessions
from limpet.web.ui.control_forms import submit_control
from limpet.web.ui.decide_pages import DecidePages
from limpet.web.ui.export_pages import export_page
from limpet.web.ui.inbox_pages import inbox_page, request_page, submit_decision
from limpet.web.ui.login_pages import log_in_page, submit_login, submit_logout
from limpet.web.ui.oidc_pages import OidcPages
from limpet.web.ui.operation_pages import operations_page
from limpet.web.ui.page_changes import page_changes
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.rendering import render
from limpet.web.ui.return_paths import remember_path
from limpet.web.ui.run_list import runs_page
from limpet.web.ui.run_pages import compare_page, conversation_page, log_page, run_page, value_page
from limpet.web.ui.score_pages import submit_score
from limpet.web.ui.shared_record_pages import record_page, records_page, submit_new_record, submit_record
from limpet.web.ui.start_pages import start_page, submit_start
from limpet.web.ui.talk_pages import submit_message, talk_page, talks_page

__all__ = ["Site"]

ROOT = "/ui"
# Longest form, in bytes.
LONGEST_FORM = 1024 * 1024
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
STATIC = {
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(("main.js", "live.js", "keys.js", "travel.js", "select.js"), "text/javascript"),
}
OIDC = (("login", "oidc"), ("login", "oidc", "callback"))
Page = Callable[[PageContext], Awaitable[Response]]
# Pages and forms that need a session, by the parts of their path after /ui; `*` is an id.
PAGES: Mapping[tuple[str, tuple[str, ...]], Page] = {
    ("GET", ("runs",)): runs_page,
    ("POST", ("runs",)): confirm_selected,
    ("GET", ("batches",)): confirm_all,
    ("POST", ("batches",)): submit_batch,
    ("GET", ("start",)): start_page,
    ("POST", ("start",)): submit_start,
    ("GET", ("runs", "*")): run_page,
    ("POST", ("runs", "*")): submit_control,
    ("GET", ("runs", "*", "log")): log_page,
    ("GET", ("runs", "*", "artifacts", "*")): artifact_page,
    ("GET", ("runs", "*", "conversation")): conversation_page,
    ("GET", ("runs", "*", "compare")): compare_page,
    ("GET", ("runs", "*", "export")): export_page,
    ("GET", ("runs", "*", "values", "*")): value_page,
    ("GET", ("agents",)): agents_page,
    ("GET", ("agents", "*")): agent_page,
    ("GET", ("conversations",)): talks_page,
    ("GET", ("conversations", "*")): talk_page,
    ("POST", ("conversations", "*")): submit_message,
    ("GET", ("records",)): records_page,
    ("POST", ("records",)): submit_new_record,
    ("GET", ("records", "*")): record_page,
    ("POST", ("records", "*")): submit_record,
    ("POST", ("runs", "*", "scores")): submit_score,
    ("GET", ("operations",)): operations_page,
    ("GET", ("inbox",)): inbox_page,
    ("GET", ("inbox", "*")): request_page,
    ("POST", ("inbox", "*")): submit_decision,
    ("POST", ("logout",)): submit_logout,
}


class Site:
    """Serves the pages."""

    def __init__(  # noqa: PLR0913 - all by name
        self,
        *,
        apps: Mapping[str, App],
        places: Places,
        key: str,
        clock: Clock,
        ids: Ids,
        stopping: asyncio.Event,
        link_keys: LinkKeys | None = None,
        link_alone: Collection[str] = (),
        oidc: OidcClient | None = None,
    ) -> None:
        self._apps, self._places, self._ids, self._stopping = apps, places, ids, stopping
        self._streams = StreamLimits()
        self._sessions = BrowserSessions(apps, key, clock)
        self._decide_pages = DecidePages(apps, link_keys, link_alone, clock, ids)
        self._oidc_pages = None if oidc is None else OidcPages(oidc, apps, ids, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a page."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        request = Request(scope, receive)
        reply = await self._answered(request, tuple(path.removeprefix(ROOT).strip("/").split("/")))
        await reply(scope, receive, _marked(send))

    async def _answered(self, request: Request, parts: tuple[str, ...]) -> Response:
        session = None
        try:
            self._places.check_host(Headers(scope=request.scope))
            with limpet_errors("page"):
                if parts[:1] == ("static",):
                    return _static(parts[1:])
                if request.method not in ("GET", "HEAD"):
                    self._check_source(request)
                session = await self._sessions.find(request.scope, request.headers)
                return await self._page(request, parts, session)
        except LimpetError as error:
            note(request.scope, code=error.code)
            return self._problem(request, error, session)

    async def _page(self, request: Request, parts: tuple[str, ...], session: BrowserSession | None) -> Response:
        if parts[0] in ("login", "decide", ""):
            return await self._open_page(request, parts, session)
        if session is None:
            if request.method in ("GET", "HEAD"):
                return self._remembering(request, RedirectResponse(f"{self._root(request)}/login", 303))
            raise NotAuthenticated
        note(request.scope, who=session.who.name, tenant=session.who.tenant)
        if parts == ("stream",) and request.method == "GET":
            return self._stream(request, session)
        method = "GET" if request.method == "HEAD" else request.method
        page, ids = _found(method, parts)
        if page is None:
            raise NotFound(what="page", id=request.url.path[:200], fix="Go to /ui/runs.")
        form = await _form(request) if method == "POST" else {}
        if method == "POST" and not session.has_sent(form.pop("form_token", "")):
            raise WrongOrigin(origin="a form of another session")
        app = self._apps[session.who.tenant or TENANT]
        reply = await page(
            PageContext(
                app=app,
                session=session,
                request=request,
                root=self._root(request),
                ids=ids,
                form=form,
                new_id=self._ids.new,
            )
        )
        if page is submit_logout:
            self._end_session(request, session, reply)
        return reply

    def _end_session(self, request: Request, session: BrowserSession, reply: Response) -> None:
        """Forget a session that was ended, here and in the browser."""
        self._sessions.forget(session.text)
        name = self._sessions.cookie_name(request.scope, request.headers)
        assert name is not None
        is_secure = name.startswith("__Host-")
        reply.delete_cookie(name, path="/", secure=is_secure, httponly=True, samesite="lax")

    async def _open_page(self, request: Request, parts: tuple[str, ...], session: BrowserSession | None) -> Response:
        """Answer a request that needs no session. Raises NotFound."""
        if parts == ("login",):
            return await self._login(request, session)
        if parts == ("",):
            return RedirectResponse(f"{self._root(request)}/runs", 303)
        if self._oidc_pages is not None and parts in OIDC and request.method == "GET":
            return await self._oidc(request, self._oidc_pages, is_back=len(parts) > 2)
        if parts[0] == "decide" and len(parts) == 2 and request.method in ("GET", "HEAD", "POST"):
            return await self._decision(request, parts[1], session)
        raise NotFound(what="page", id=request.url.path[:200], fix="Go to /ui/runs.")

    async def _decision(self, request: Request, link: str, session: BrowserSession | None) -> Response:
        """Show the request of a link, or decide it."""
        if self._sessions.cookie_name(request.scope, request.headers) is None:
            raise WrongOrigin(origin=request.headers.get("host", ""))
        form = await _form(request) if request.method == "POST" else {}
        root = self._root(request)
        reply, needs_login = await self._decide_pages.answered(request, link, form, session, root)
        return self._remembering(request, reply) if needs_login else reply

    def _remembering(self, request: Request, reply: Response) -> Response:
        """Let the browser come back to a page after its login."""
        name = self._sessions.cookie_name(request.scope, request.headers)
        return reply if name is None else remember_path(request, reply, cookie=name, root=self._root(request))

    def _stream(self, request: Request, session: BrowserSession) -> Response:
        """Tell a page that something has changed."""

        async def recheck() -> Principal | None:
            found = await self._sessions.find(request.scope, request.headers, STREAM_TRUSTED)
            return None if found is None else found.who

        request.scope[RECHECK] = recheck
        app, who = self._apps[session.who.tenant or TENANT], session.who
        items = page_changes(app, who, request.headers.get("last-event-id"))
        return EventStream(items, who, self._streams, self._stopping)

    async def _login(self, request: Request, session: BrowserSession | None) -> Response:
        name, root = self._sessions.cookie_name(request.scope, request.headers), self._root(request)
        if name is None:
            raise WrongOrigin(origin=request.headers.get("host", ""))
        provider = "" if self._oidc_pages is None else self._oidc_pages.provider
        if request.method == "POST":
            form = await _form(request)
            return await submit_login(
                self._apps, self._ids, form, cookie=name, root=root, request=request, provider=provider
            )
        return await log_in_page(self._apps, request, root=root, session=session, provider=provider)

    async def _oidc(self, request: Request, oidc: OidcPages, *, is_back: bool) -> Response:
        """Log in with the identity provider: go there, or come back."""
        name, root = self._sessions.cookie_name(request.scope, request.headers), self._root(request)
        if name is None:
            raise WrongOrigin(origin=request.headers.get("host", ""))
        own = self._places.public_url or f"{request.scope['scheme']}://{request.headers.get('host', '').lower()}"
        here = f"{own}{root}/login/oidc/callback"
        if is_back:
            return await oidc.finish(request, cookie=name, root=root, here=here)
        return await oidc.begin(cookie=name, here=here)

    def _check_source(self, request: Request) -> None:
        """Raise WrongOrigin unless a page of this server sends the request."""
        site, origins = request.headers.get("sec-fetch-site"), request.headers.getlist("origin")
        if site is not None:
            if site != "same-origin":
                raise WrongOrigin(origin=", ".join(origins) or site)
            return
        own = self._places.public_url or f"{request.scope['scheme']}://{request.headers.get('host', '').lower()}"
        if [each.lower() for each in origins] != [own]:
            raise WrongOrigin(origin=", ".join(origins) or "no page")

    def _root(self, request: Request) -> str:
        return f"{request.scope.get('root_path', '')}{ROOT}"

    def _back(self, request: Request) -> str:
        """Return the page from which a form was sent, if it is one of ours."""
        came = urlsplit(request.headers.get("referer", ""))
        is_ours = came.netloc == request.headers.get("host", "") and came.path.startswith(f"{self._root(request)}/")
        return f"{came.path}?{came.query}".rstrip("?") if is_ours and request.method == "POST" else ""

    def _problem(self, request: Request, error: LimpetError, session: BrowserSession | None) -> Response:
        status = status_of(error)
        context = {
            "root": self._root(request),
            "who": None if session is None else session.who,
            "form_token": "" if session is None else session.form_token,
            "title": HTTPStatus(status).phrase,
            "error": error,
            "status": status,
            "back": self._back(request),
        }
        return Response(render("error.html", **context), status, media_type="text/html")


def _found(method: str, parts: tuple[str, ...]) -> tuple[Page | None, list[str]]:
    """Return the page for a path, and the ids in it."""
    for (wanted, pattern), page in PAGES.items():
        if wanted == method and len(pattern) == len(parts):
            pairs = [*zip(pattern, parts, strict=True)]
            if all(each in ("*", part) for each, part in pairs):
                return page, [part for each, part in pairs if each == "*"]
    return None, []


def _static(parts: tuple[str, ...]) -> Response:
    name = "/".join(parts)
    if name not in STATIC:
        raise NotFound(what="file", id=name[:100], fix="Go to /ui/runs.")
    data = files("limpet.web.ui").joinpath("static", name).read_bytes()
    return Response(data, headers={"content-type": STATIC[name], "cache-control": "public, max-age=300"})


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises InvalidArgument for a repeated one, or a form that is too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise InvalidArgument(path="form", reason=f"has the content type {kind!r}")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            raise InvalidArgument(path="form", reason=f"larger than {LONGEST_FORM // 1024} KiB")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=500)
    except ValueError as error:
        raise InvalidArgument(path="form", reason=str(error)) from None
    found = dict(fields)
    if len(found) < len(fields):
        raise InvalidArgument(path="form", reason="has a field twice")
    return found


def _marked(send: Send) -> Send:
    """Return a `send` that adds headers against framing, sniffing, scripts of others and caching."""

    async def mark(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in known]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return mark
