"""Replace parts of the model loop: how the next reply is chosen, what a result looks like, and what the prompt
contains.

python examples/own_parts.py
"""

import asyncio
from typing import Any

import limpet
from limpet.llm.loop import Ask
from limpet.llm.model import Prompt, Reply, ToolCall
from limpet.llm.prompt import ContextChoice, ContextView, choose_context
from limpet.testing import ScriptedModel, calls


@limpet.tool(effect="none")
def read_meter() -> dict[str, Any]:
    """Read the meter."""
    return {"kwh": 1234, "raw": "0" * 2_000}


async def rules_first(run: limpet.Run, prompt: Prompt, ask: Ask) -> Reply:
    """Read the meter before the first model call."""
    if "kwh" not in run.state.facts:
        return Reply(text="The meter first.", calls=(ToolCall(id="rule-1", name="read_meter", args="{}"),))
    return await ask(prompt)


async def only_the_number(run: limpet.Run, call: ToolCall, result: Any) -> Any:
    """Record the reading as a fact, and show the model only the number."""
    if call.name != "read_meter":
        return result
    await run.patch(facts={"kwh": result["kwh"]}, source=call.name)
    return f"{result['kwh']} kWh"


def a_half(view: ContextView) -> ContextChoice:
    """Use half of the space that is available."""
    return choose_context(view._replace(room=view.room // 2))


billing = limpet.llm_agent(
    "billing", model=ScriptedModel(lambda _: "The bill is sent."), instructions="You send bills."
)
reader = limpet.llm_agent(
    "reader",
    model=ScriptedModel("", calls("hand_over_to_billing", input="Bill 1234 kWh.")),
    instructions="You read meters.",
    tools=[read_meter],
    handoffs=[billing],
    choose=rules_first,
    normalise=only_the_number,
    build_context=a_half,
)


async def main() -> None:
    """The model is called once; replies that code chose are in the log like those of the model."""
    async with limpet.open("sqlite:///parts.db", agents=[reader, billing]) as app:
        print(await app.run(reader, "Please read it.", id="meter-1"))
        for made in (await app.state("meter-1")).decisions:
            print(made.chosen, "because", made.because)
        seen = await app.prompt("meter-1", step=2)
        print(seen.is_exact, repr(seen.prompt.messages[-1].text))
        [bill] = await app.runs(agent="billing")
        print(bill.parent, (await app.state(bill.id)).facts)


if __name__ == "__main__":
    asyncio.run(main())
