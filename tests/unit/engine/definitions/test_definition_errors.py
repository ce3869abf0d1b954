"""Wrong definitions are refused at the definition, with an error that names the option."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import limpet


class CallableObject:
    """An object that can be called, and has no annotations itself."""

    def __call__(self) -> None:
        """Do nothing."""


wrongly: Any = limpet  # as untyped code does
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: wrongly.agent(lambda _: None), r"add parentheses: @limpet\.agent\(\)"),
    (lambda: wrongly.external(lambda: None), r"such as @limpet\.external\(ttl='5m'\)"),
    (wrongly.external, r"such as @limpet\.external\(ttl='5m'\)"),
    (lambda: wrongly.tool(lambda: None), "missing effect"),
    (lambda: wrongly.tool(effect="none")(lambda: None), "use def, or pass name="),
    (lambda: wrongly.tool(effect="none")(partial(print)), "write a function with def"),
    (lambda: wrongly.tool(effect="none", name="shout")(partial(print, "!")), "shout.*a function with def"),
    (lambda: wrongly.tool(effect="none", name="called")(CallableObject()), "called.*a function with def"),
    (lambda: wrongly.agent(name="bound")(partial(print)), "bound.*a function with def"),
    (lambda: wrongly.external(name="bound", ttl="5m")(partial(print)), "bound.*a function with def"),
    (lambda: wrongly.tool(effect="none")(5), "5 is not a function"),
    (lambda: wrongly.agent()(5), "5 is not a function"),
    (lambda: wrongly.agent()(lambda _: None), "use def, or pass name="),
    (lambda: wrongly.external(ttl="5m")(lambda: None), "use def, or pass name="),
    (lambda: wrongly.tool(effect=5), "unknown effect 5"),
    (lambda: wrongly.tool(effect=["none"]), "unknown effect"),
    (lambda: wrongly.tool(effect="none", retry="3"), r"tool\(retry=…\).*must be Retry or int or None"),
    (lambda: wrongly.tool(effect="none", retry=0), "at least 1 attempt"),
    (lambda: wrongly.tool(effect="none", timeout=[5]), r"tool\(timeout=…\)"),
    (lambda: wrongly.tool(effect="none", name=5), r"tool\(name=…\)"),
    (lambda: wrongly.tool(effect="none", name="\ud800"), "surrogate"),
    (lambda: wrongly.tool(effect="none", risk=5), r"tool\(risk=…\)"),
    (lambda: wrongly.tool(effect="none", irreversible="no"), r"tool\(irreversible=…\)"),
    (lambda: wrongly.tool(effect="none", not_applied=ValueError), r"tool\(not_applied=…\).*a tuple"),
    (lambda: wrongly.tool(effect="none", not_applied=("ValueError",)), r"tool\(not_applied=…\)"),
    (lambda: wrongly.tool(effect="none", max_tokens="5"), r"tool\(max_tokens=…\)"),
    (lambda: wrongly.tool(effect="none", max_cost=float("nan")), r"tool\(max_cost=…\)"),
    (lambda: wrongly.tool(effect="none", fresh=["price"]), "'price' is not an @limpet.external"),
    (lambda: wrongly.tool(effect="none", fresh="price"), r"tool\(fresh=…\)"),
    (lambda: wrongly.agent(version=1), r"agent\(version=…\).*must be str"),
    (lambda: wrongly.agent(accepts="1"), r"agent\(accepts=…\).*a list"),
    (lambda: wrongly.agent(steps="9"), r"agent\(steps=…\)"),
    (lambda: wrongly.agent(deadline={}), r"agent\(deadline=…\)"),
    (lambda: wrongly.agent(budget=5), r"agent\(budget=…\).*must be Budget"),
    (lambda: wrongly.agent(approvals="pay"), r"agent\(approvals=…\).*must be Approvals"),
    (lambda: wrongly.agent(escalate=True), r"agent\(escalate=…\).*must be Escalate"),
    (lambda: wrongly.agent(checkpoint="never"), r"agent\(checkpoint=…\).*must be one of 'every_step'"),
    (lambda: wrongly.agent(exclusive="tenant"), r"agent\(exclusive=…\).*must be one of 'session', 'user'"),
    (lambda: wrongly.Budget(max_steps="3"), r"Budget\(max_steps=…\).*must be int"),
    (lambda: wrongly.Budget(max_steps=True), r"Budget\(max_steps=…\)"),
    (lambda: wrongly.Budget(max_cost="1"), r"Budget\(max_cost=…\)"),
    (lambda: wrongly.Budget(exhausted="stop"), r"Budget\(exhausted=…\).*must be one of 'fail', 'ask'"),
    (lambda: wrongly.Retry("3"), r"Retry\(attempts=…\)"),
    (lambda: wrongly.Retry(3, on=[ValueError]), r"Retry\(on=…\)"),
    (lambda: wrongly.Approvals(5), r"Approvals\(risks=…\)"),
    (lambda: wrongly.Approvals("pay", to=[5]), r"Approvals\(to=…\)"),
    (lambda: wrongly.Approvals("pay", expires="1h", escalate="boss"), r"Approvals\(escalate=…\).*a list"),
    (lambda: wrongly.Escalate(retries="yes"), r"Escalate\(retries=…\)"),
    (lambda: wrongly.Escalate(confidence="low"), r"Escalate\(confidence=…\)"),
    (lambda: wrongly.Worker(concurrency="5"), r"Worker\(concurrency=…\)"),
    (lambda: wrongly.Compaction(above="many"), r"Compaction\(above=…\)"),
    (lambda: wrongly.Webhook(5, secret="x" * 40), r"Webhook\(url=…\)"),
    (lambda: wrongly.versioned("2", upgrades={}), r"versioned\(version=…\)"),
    (lambda: wrongly.open("memory:", agents=wrongly.agent), r"open\(agents=…\).*a list"),
    (lambda: wrongly.open("memory:", agents=[print]), r"decorate the function with @limpet\.agent\(\)"),
    (lambda: wrongly.open("memory:", people={"all": "ann"}), r"open\(people=…\)"),
    (lambda: wrongly.open("memory:", worker=4), r"open\(worker=…\)"),
    (lambda: wrongly.open(5), r"open\(url=…\)"),
    (lambda: wrongly.llm_agent("bot", model="gpt-5", instructions="Help."), '"openai:gpt-5-mini"'),
    (lambda: wrongly.llm_agent("bot", model="openai:", instructions="Help."), '"openai:gpt-5-mini"'),
    (lambda: wrongly.llm_agent("bot", model=5, instructions="Help."), '"openai:gpt-5-mini"'),
    (lambda: wrongly.llm_agent("bot", model="openai:gpt-5", instructions=None), r"llm_agent\(instructions=…\)"),
    (
        lambda: wrongly.llm_agent("bot", model="openai:gpt-5", instructions="", max_turns="9"),
        r"llm_agent\(max_turns=…\)",
    ),
]


@pytest.mark.parametrize(("define", "message"), WRONG)
def test_a_wrong_definition_is_refused_at_the_definition(define: Callable[[], Any], message: str) -> None:
    """The error names the option and the expected value."""
    with pytest.raises(limpet.DefinitionError, match=f"(?s){message}"):
        define()


def test_an_empty_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is created for an empty URL; without a URL, LIMPET_URL is used."""
    with pytest.raises(limpet.InvalidArgument):
        limpet.open("")
    monkeypatch.setenv("LIMPET_URL", "memory:")
    assert limpet.open()._settings.url == "memory:"


def test_retry_accepts_a_number_of_attempts() -> None:

    @limpet.tool(effect="none", name="definition_retried", retry=3)
    async def look() -> None: ...

    assert look.traits.retry == limpet.Retry(3)
    assert look.options(retry=5).traits.retry == limpet.Retry(5)


async def test_an_app_that_was_not_opened_is_unavailable() -> None:
    """This applies to the memory store, too."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> None: ...

    app = limpet.open("memory:", agents=[agent])
    with pytest.raises(limpet.StoreUnavailable, match="async with"):
        await app.start(agent)
