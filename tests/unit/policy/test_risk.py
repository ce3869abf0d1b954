"""Risks: whether a step needs approval before it starts."""

from typing import Any

import pytest

from limpet.errors import InvalidArgument
from limpet.events import Constraints
from limpet.policy.risk import Approvals, AskPerson, Free, decide
from limpet.state.run import Grant

FINANCE = Approvals("external_action", to="finance", expires="2d", escalate=["boss"])
ASK_FINANCE = AskPerson(to=("finance",), expires=2 * 86400 * 10**6, escalate=("boss",))
IN_THE_LOOP = Constraints(human_in_the_loop={"required_for_risk_levels": ["write_local"]})


def decision(risk: str | None = "external_action", **more: Any) -> Free | AskPerson:
    """Return whether the tool `refund` may start."""
    given: dict[str, Any] = {"approvals": FINANCE, "constraints": None} | more
    return decide(risk, "refund", **given)


def test_a_listed_risk_needs_approval() -> None:
    """The decision has the addressees, the expiry and the escalation."""
    assert decision() == ASK_FINANCE


def test_a_tool_without_a_risk_needs_no_approval() -> None:
    assert decision(None) == Free()


def test_an_unlisted_risk_needs_no_approval() -> None:
    assert decision("write_local") == Free()


def test_without_approvals_and_constraints_no_approval_is_needed() -> None:
    assert decision(approvals=None) == Free()


@pytest.mark.parametrize("constraints", [Constraints(), IN_THE_LOOP])
def test_constraints_without_the_risk_change_nothing(constraints: Constraints) -> None:
    assert decision(constraints=constraints) == ASK_FINANCE


def test_constraints_add_to_the_risks_of_the_agent() -> None:
    """The agent's own people are asked."""
    assert decision("write_local", constraints=IN_THE_LOOP) == ASK_FINANCE


def test_constraints_of_an_agent_without_approvals_ask_anyone() -> None:
    """The request has no expiry."""
    assert decision("write_local", approvals=None, constraints=IN_THE_LOOP) == AskPerson(
        to=("anyone",), expires=None, escalate=()
    )


@pytest.mark.parametrize(("tool", "risk"), [("refund", None), (None, "external_action")])
def test_a_standing_grant_for_the_tool_or_risk_replaces_approval(tool: str | None, risk: str | None) -> None:
    """The decision names the grant, so that the log shows it."""
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
def test_other_grants_do_not_replace_approval(grant: Grant) -> None:
    """The grants are for another tool or risk, or approvals of a single action."""
    assert decision(grants=[grant]) == ASK_FINANCE


def test_the_first_matching_grant_is_used() -> None:
    grants = [Grant(grant=f"g-{n}", by="ann", standing=True, tool=tool) for n, tool in enumerate(["mail", "refund"])]
    assert decision(grants=grants) == Free("g-1")


def test_a_step_that_needs_no_approval_uses_no_grant() -> None:
    assert decision(None, grants=[Grant(grant="g-1", by="ann", standing=True, tool="refund")]) == Free()


@pytest.mark.parametrize(("to", "expected"), [("finance", ("finance",)), (["a", "b"], ("a", "b"))])
def test_approvals_accept_one_name_or_several(to: Any, expected: tuple[str, ...]) -> None:
    """A single name is not split into letters."""
    assert Approvals("r", to=to).to == expected


def test_an_invalid_expiry_is_refused_at_the_definition() -> None:
    """The error comes at the agent's definition, not when the first request expires."""
    with pytest.raises(InvalidArgument):
        Approvals("r", expires="soon")
