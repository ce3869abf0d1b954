"""The agent of the demo: it settles a ticket in nine steps; each tool declares whether it may be repeated."""

import http.client
import json
import os
from typing import Any

import limpet
from limpet.demo.service import BUSY

__all__ = ["PLAN", "PORT", "RUN", "VICTIM", "support"]

RUN = "ticket-42"
PLAN = ("ticket", "order", "customer", "policy", "refund", "mail", "crm", "team", "archive")
VICTIM = "mail"
PORT = "LIMPET_DEMO_PORT"
AGAIN = limpet.Retry(5, first="50ms")


def call(path: str, key: str = "", **body: Any) -> dict[str, Any]:
    """Send one request to the service; a busy service has done nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ[PORT]), timeout=60)
    try:
        connection.request("POST", f"/{path}", json.dumps(body), {"Idempotency-Key": key})
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status == BUSY:
        raise limpet.NotApplied("the service is busy")
    return found


@limpet.tool(effect="none", retry=AGAIN)
def fetch(what: str) -> dict[str, Any]:
    """A read: safe to repeat."""
    return call(what)


@limpet.tool(effect="idempotent", risk="external_action", retry=AGAIN)
def refund(order: str, cents: int) -> str:
    """An effect with an idempotency key: the service applies it once per key."""
    return str(call("refund", limpet.idempotency_key(), order=order, cents=cents)["id"])


@limpet.tool(effect="once", retry=AGAIN)
def mail(to: str, text: str) -> str:
    """An effect without a key …"""
    return str(call("mail", to=to, text=text)["id"])


@mail.verify
def was_mailed(to: str, text: str) -> limpet.Done[str] | None:
    """… so this function finds out whether it was applied."""
    found = call("sent", to=to, text=text).get("id")
    return limpet.Done(str(found)) if found else None


@limpet.tool(effect="idempotent", retry=AGAIN)
def note(where: str, text: str) -> str:
    """Create an entry in another system, with a key."""
    return str(call(where, limpet.idempotency_key(), text=text)["id"])


@limpet.agent(version="1", approvals=limpet.Approvals("external_action", to="finance"))
async def support(run: limpet.Run, ticket: str) -> str:
    """Settle a ticket: look it up, decide, refund, notify."""
    await run.patch(goal=f"settle {ticket}", plan=PLAN)
    found: dict[str, dict[str, Any]] = {}
    for what in PLAN[:4]:
        async with run.scope(what):
            found[what] = await run.step(fetch, what)
    order, policy = found["order"], found["policy"]
    await run.patch(facts={"cents": order["cents"], "voucher": policy["voucher"]})
    async with run.scope("refund"):
        outcome = await _refund(run, order, found["ticket"]["text"], policy)
    async with run.scope("mail"):
        voucher = run.state.facts["voucher"]
        text = f"{outcome}{f', and a voucher of {voucher} cents' if voucher else ''}."
        await run.patch(facts={"mail": await run.step(mail, order["email"], text)})
    for where in PLAN[6:]:
        async with run.scope(where):
            await run.step(note, where, outcome)
    return outcome


async def _refund(run: limpet.Run, order: dict[str, Any], complaint: str, policy: dict[str, Any]) -> str:
    """Return the text of the reply to the customer."""
    because = f"{complaint} (policy {policy['number']})"
    how = await run.decide("Refund?", choose=policy["refund"], over=["none", "full"], because=because)
    if how == "none":
        return "Nothing is owed"
    try:
        return f"Refunded: {await run.step(refund, order['id'], order['cents'])}"
    except limpet.Rejected as no:
        return f"Not refunded: {no.because}"
