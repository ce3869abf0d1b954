"""Whether a step needs a person's word before it starts."""

from typing import Any

import pytest

from limpet.errors import InvalidArgument
from limpet.events import Constraints, HumanInTheLoop
from limpet.policy.risk import Approvals, AskPerson, Free, decide
from limpet.state.run import Grant

FINANCE = Approvals("external_action", to="finance", expires="2d", escalate=["boss"])
ASK_FINANCE = AskPerson(to=("finance",), expires=2 * 86400 * 10**6, escalate=("boss",))
IN_THE_LOOP = Constraints(human_in_the_loop=HumanInTheLoop(required_for_risk_levels=("write_local",)))


def decision(risk: str | None = "external_action", **more: Any) -> Free | AskPerson:
    """Whether the tool `refund` may start."""
    given: dict[str, Any] = {"approvals": FINANCE, "constraints": None} | more
    return decide(risk, "refund", **given)


def test_a_risk_that_needs_a_person_is_asked_about() -> None:
    """Whom, how long, and who comes after them."""
    assert decision() == ASK_FINANCE


def test_a_tool_without_a_risk_is_never_asked_about() -> None:
    """Its author saw none."""
    assert decision(None) == Free()


def test_another_risk_is_free() -> None:
    """Only those that were named need a person."""
    assert decision("write_local") == Free()


def test_without_approvals_and_constraints_everything_is_free() -> None:
    """Nobody asked to be asked."""
    assert decision(approvals=None) == Free()


@pytest.mark.parametrize("constraints", [Constraints(), IN_THE_LOOP])
def test_constraints_that_do_not_name_the_risk_change_nothing(constraints: Constraints) -> None:
    """Neither more nor less is asked."""
    assert decision(constraints=constraints) == ASK_FINANCE


def test_constraints_add_to_the_risks_of_the_agent() -> None:
    """The run's own state may demand more, and the agent's people are asked."""
    assert decision("write_local", constraints=IN_THE_LOOP) == ASK_FINANCE


def test_constraints_alone_ask_anyone() -> None:
    """Where the agent names nobody, whoever looks may answer, and may take their time."""
    assert decision("write_local", approvals=None, constraints=IN_THE_LOOP) == AskPerson(
        to=("anyone",), expires=None, escalate=()
    )


@pytest.mark.parametrize(("tool", "risk"), [("refund", None), (None, "external_action")])
def test_a_standing_grant_for_tool_or_risk_frees(tool: str | None, risk: str | None) -> None:
    """And is named, so that the log shows by whose word it started."""
    assert decision(grants=[Grant(grant="g-1", by="ann", standing=True, tool=tool, risk=risk)]) == Free("g-1")


@pytest.mark.parametrize(
    "grant",
    [
        Grant(grant="g-1", by="ann", standing=True, tool="mail"),
        Grant(grant="g-1", by="ann", standing=True, risk="write_local"),
        Grant(grant="g-1", by="ann", standing=True),
        Grant(grant="q-1", by="ann", standing=False),
        Grant(grant="q-1", by="ann", standing=False, tool="refund"),
    ],
)
def test_other_grants_do_not_free(grant: Grant) -> None:
    """Neither one for something else, nor an approval of one single action."""
    assert decision(grants=[grant]) == ASK_FINANCE


def test_the_first_grant_that_fits_is_used() -> None:
    """Those that do not fit are passed over."""
    grants = [Grant(grant=f"g-{n}", by="ann", standing=True, tool=tool) for n, tool in enumerate(["mail", "refund"])]
    assert decision(grants=grants) == Free("g-1")


def test_what_is_free_uses_no_grant() -> None:
    """A permission that is not needed is not named."""
    assert decision(None, grants=[Grant(grant="g-1", by="ann", standing=True, tool="refund")]) == Free()


@pytest.mark.parametrize(("to", "expected"), [("finance", ("finance",)), (["a", "b"], ("a", "b"))])
def test_one_or_several_may_be_asked(to: Any, expected: tuple[str, ...]) -> None:
    """A name is one name, and not its letters."""
    assert Approvals("r", to=to).to == expected


def test_an_expiry_that_cannot_be_read_is_refused_at_once() -> None:
    """When the agent is defined, and not when the first request expires."""
    with pytest.raises(InvalidArgument):
        Approvals("r", expires="soon")
