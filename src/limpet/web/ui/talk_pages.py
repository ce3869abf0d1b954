"""Sessions and conversations, of all runs."""

from urllib.parse import quote

from starlette.responses import Response

from limpet.web.ui.page_context import PageContext
from limpet.web.ui.run_list import with_shown

__all__ = ["submit_message", "talk_page", "talks_page"]

ON_A_PAGE = 50


async def talks_page(page: PageContext) -> Response:
    """List the conversations and the sessions, those with the newest message first."""
    query = page.request.query_params
    session, user = query.get("session", ""), query.get("user", "")
    found = await page.ask("conversations", session=session, user=user, last=ON_A_PAGE, cursor=query.get("cursor"))
    sessions = await page.ask("sessions", last=ON_A_PAGE)
    return await page.page(
        "talks.html",
        here="talks",
        title="Conversations",
        conversations=found["items"],
        next=found["next"],
        sessions=sessions["items"],
        session=session,
        user=user,
    )


async def talk_page(page: PageContext) -> Response:
    """Show one conversation, and the runs that took part in it."""
    [talk] = page.ids
    whole = "whole" in page.request.query_params
    messages = await page.ask(
        "messages", conversation=talk, whole=whole, last=200, cursor=page.request.query_params.get("cursor")
    )
    runs = await page.ask("runs", conversation=talk, last=ON_A_PAGE)
    return await page.page(
        "talk.html",
        here="talks",
        title=talk,
        talk=talk,
        whole=whole,
        messages=messages,
        runs=[with_shown(each) for each in runs["items"]],
    )


async def submit_message(page: PageContext) -> Response:
    """Add a message to a conversation, and show it."""
    [talk] = page.ids
    await page.ask("say", conversation=talk, text=page.form.get("text", ""), command_id=page.form.get("command_id"))
    return page.redirect(f"/conversations/{quote(talk, safe='')}")
