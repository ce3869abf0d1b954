"""The page behind the link of a notice: one request, on a phone, and two buttons.

Opening it decides nothing. The person logs in, and decides with their own rights. Only for people whom the operator
names, the link alone is enough: they can approve or reject, and that is recorded as `via=link`.
"""

from collections.abc import Collection, Mapping
from http import HTTPStatus
from math import ceil
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from limpet.clock import Clock
from limpet.errors import (
    AlreadyAnswered,
    InvalidAnswer,
    InvalidArgument,
    InvalidLink,
    LimpetError,
    NotFound,
    TooManyRequests,
    WrongOrigin,
)
from limpet.ids import Ids
from limpet.service.app import App
from limpet.service.decision_links import DecisionLink, LinkKeys
from limpet.service.operation import limpet_errors
from limpet.service.tokens import TENANT, newest_token, principal_of_token
from limpet.web.access_log import note
from limpet.web.callers import BURST, TRIES
from limpet.web.guard import address_of
from limpet.web.limits import Buckets
from limpet.web.replies import status_of
from limpet.web.ui.browser_sessions import BrowserSession
from limpet.web.ui.form_values import json_or_text
from limpet.web.ui.inbox_pages import takes_yes_or_no
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.rendering import render

__all__ = ["DecidePages"]

# Decisions that no person made: the request is gone.
GONE = ("expired", "withdrawn")


class _LinkSession(BrowserSession, frozen=True, kw_only=True):
    """A person who has a link, and has not logged in."""

    made: str
    """Token of the form, which only this server can make."""

    @property
    def form_token(self) -> str:
        """The text that the form on this page contains."""
        return self.made


class DecidePages:
    """Shows the request of a link, and takes the decision."""

    def __init__(
        self, apps: Mapping[str, App], keys: LinkKeys | None, link_alone: Collection[str], clock: Clock, ids: Ids
    ) -> None:
        self._apps, self._keys, self._link_alone, self._ids = apps, keys, frozenset(link_alone), ids
        self._tries = Buckets(clock, rate=TRIES, burst=BURST)

    async def answered(
        self, request: Request, text: str, form: Mapping[str, str], session: BrowserSession | None, root: str
    ) -> tuple[Response, bool]:
        """Return the page of a link, or the reply to its form, and whether the person has to log in first.

        Every refusal is a page, and is in the audit log.
        """
        app, context = self._apps[TENANT], {"root": root, "who": None if session is None else session.who}
        try:
            with limpet_errors("page"):
                link = self._link(request, text)
                if link.tenant not in self._apps:
                    raise InvalidLink(reason="it belongs to another tenant")
                app = self._apps[link.tenant]
                if session is not None and (session.who.tenant or TENANT) != link.tenant:
                    raise InvalidLink(reason="it belongs to another tenant than the one you are logged in to")
                viewer = session or await self._alone(request, app, link, text)
                if viewer is None:
                    return _login_page(link, root), True
                page = PageContext(
                    app=app,
                    session=viewer,
                    request=request,
                    root=root,
                    ids=[text],
                    form=form,
                    new_id=self._ids.new,
                )
                return await self._decided(page, link), False
        except LimpetError as error:
            note(request.scope, code=error.code)
            if app.is_open and error.code != AlreadyAnswered.code:
                app.audit_trail.record_refusal(error.code, address_of(request.scope))
            return _fault_page(error, context), False

    def _link(self, request: Request, text: str) -> DecisionLink:
        """Return the content of a link. Raises InvalidLink, and TooManyRequests for an address that guesses."""
        if self._keys is None:
            raise NotFound(what="page", id="/decide", fix="Set LIMPET_LINK_KEY, and restart the server.")
        try:
            return self._keys.verify(text)
        except InvalidLink:
            self._count(request)
            raise

    def _count(self, request: Request) -> None:
        address = address_of(request.scope)
        if wait := self._tries.take(address):
            raise TooManyRequests(reason=f"{address} tried too many links", seconds=ceil(wait))

    async def _alone(self, request: Request, app: App, link: DecisionLink, text: str) -> BrowserSession | None:
        """Return the person for whom the link alone is enough, with the groups of their newest token; or None."""
        assert self._keys is not None
        if not link.person or link.person not in self._link_alone:
            return None
        row = await newest_token(app.store, link.person, "approver")
        if row is None:
            return None
        who = principal_of_token(row, link.tenant, "link")
        limited = replace(who, roles=("approver",), rights=(), address=address_of(request.scope))
        return _LinkSession(who=limited, text=text, made=self._keys.form_token(link, text))

    async def _decided(self, page: PageContext, link: DecisionLink) -> Response:
        """Show the request, or decide it."""
        assert self._keys is not None
        note(page.request.scope, who=page.session.who.name, tenant=page.session.who.tenant)
        is_post, form = page.request.method == "POST", dict(page.form)
        if is_post and not page.session.has_sent(form.pop("form_token", "")):
            self._count(page.request)
            raise WrongOrigin(origin="a form of another page")
        found = await page.ask("request", request=link.request)
        self._keys.check(link, digest=found["digest"], now=await page.app.store.now())
        if found["decision"]["status"] != "open":
            if is_post:
                page.app.audit_trail.record_refusal(AlreadyAnswered.code, page.session.who.address)
            return _closed_page(page, found, is_late=is_post)
        if not is_post:
            return await _open_page(page, found)
        try:
            await _decide(page, link.request, form)
        except (InvalidAnswer, InvalidArgument) as error:
            return await _open_page(page, found, form=form, fault=f"{error.summary} {error.hint}")
        except AlreadyAnswered:  # between the look and the decision
            return _closed_page(page, await page.ask("request", request=link.request), is_late=True)
        [text] = page.ids
        return page.redirect(f"/decide/{text}")


def _is_alone(page: PageContext) -> bool:
    """Return whether the person has not logged in: the link alone is enough."""
    return isinstance(page.session, _LinkSession)


async def _decide(page: PageContext, request: str, form: Mapping[str, str]) -> None:
    match form.get("decision", ""):
        case "approve":
            await page.ask("approve", request=request)
        case "reject":
            await page.ask("reject", request=request, because=form.get("because", "").strip())
        case "answer" if not _is_alone(page):
            given = form["option"] if "option" in form else form.get("answer", "").strip()
            await page.ask("answer", request=request, answer=json_or_text(given))
        case other:
            reason = f"{other[:20]!r} is not possible on this page"
            raise InvalidArgument(path="decision", reason=reason, fix="Approve or reject; log in for everything else.")


async def _open_page(
    page: PageContext, found: Mapping[str, Any], *, form: Mapping[str, str] | None = None, fault: str = ""
) -> Response:
    """Show an open request."""
    is_approval = takes_yes_or_no(found)
    choices = found["context"]["choices"] if found["context"] else []
    known = (await page.ask("precedents", request=found["id"]))["items"] if found["tool"] else []
    context = {
        "root": page.root,
        "who": page.session.who,
        "form_token": page.session.form_token,
        "action": f"{page.root}/decide/{page.ids[0]}",
        "request": found,
        "takes_yes_or_no": is_approval,
        "choices": [each for each in choices if not is_approval or each["answer"] in ("approve", "reject")],
        "precedents": len(known),
        "completed": sum(each["status"] == "completed" for each in known),
        "is_alone": _is_alone(page),
        "may_decide": page.may("decide"),
        "form": form or {},
        "fault": fault,
    }
    return Response(render("decide.html", **context), 422 if fault else 200, media_type="text/html")


def _closed_page(page: PageContext, found: Mapping[str, Any], *, is_late: bool) -> Response:
    """Say how a request was decided, and by whom. Only the person who decided it is not told of a conflict."""
    decision, who = found["decision"], page.session.who
    is_own = decision["by"] == who.name and not is_late
    status = 410 if decision["status"] in GONE else 200 if is_own else 409
    context = {
        "root": page.root,
        "who": who,
        "request": found,
        "decision": {**decision, "status": {"used": "approved"}.get(decision["status"], decision["status"])},
        "is_own": is_own,
        "is_late": is_late,
        "is_alone": _is_alone(page),
    }
    return Response(render("decide_closed.html", **context), status, media_type="text/html")


def _login_page(link: DecisionLink, root: str) -> Response:
    """Say that the person has to log in. It tells nothing about the request."""
    return Response(render("decide_login.html", root=root, person=link.person), 401, media_type="text/html")


def _fault_page(error: LimpetError, context: Mapping[str, Any]) -> Response:
    status = status_of(error)
    page = render("decide_fault.html", **context, error=error, status=status, phrase=HTTPStatus(status).phrase)
    headers = {"retry-after": str(error.seconds)} if isinstance(error, TooManyRequests) else {}
    return Response(page, status, headers, media_type="text/html")
