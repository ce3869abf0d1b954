"""Job 7: pytest."""
import httpx
import pytest
import limpet
from limpet import testing
from job1_support import Order, Outcome, Ticket, fetch_order, refund, send_mail, support

async def test_refund_is_retried_and_paid_once() -> None:
    async with testing.app(support) as app:                                    # memory store, frozen clock, no sleeping
        app.stub(fetch_order, Order(id="o1", total=900, email="a@b"))
        app.stub(refund, httpx.ConnectTimeout("x"), "R-1")
        app.stub(send_mail, None)
        handle = await app.start(support, Ticket(order="o1", text=""))
        await app.settle()                                                     # until every run waits or has ended
        [request] = await app.inbox()
        await app.crash()                                                      # new process, same store
        await app.approve(request, by="finance")
        assert await handle.result() == Outcome(refunded=900, receipt="R-1")
        assert app.calls(refund) == [{"order": "o1", "cents": 900}] * 2

async def test_an_unanswered_approval_expires() -> None:
    async with testing.app(support) as app:
        app.stub(fetch_order, Order(id="o1", total=900, email="a@b"))
        handle = await app.start(support, Ticket(order="o1", text=""))
        await app.settle()
        await app.advance("2d")                                                # the approval expires
        with pytest.raises(limpet.RunFailed) as e:
            await handle.result()
        assert e.value.facts["error_type"] == "limpet.Expired"

def bank_counts() -> dict[str, int]:                                           # what the outside world saw, from its own process
    return {"refund": 1}

async def test_survives_a_kill_at_any_point() -> None:
    report = await testing.crash_everywhere(support, Ticket(order="o1", text=""), answers={"*": True}, effects=bank_counts)
    assert not report.lost and not report.doubled
