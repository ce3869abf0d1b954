"""Use your own model: an object with a name and a method. And call a model in your own loop, within the budget.

python examples/own_model.py
"""

import asyncio
from collections.abc import Callable

import limpet
from limpet.llm.model import Prompt, Reply, ToolCall, Usage


class Parrot:
    """A model without a network: it notes the message as a fact, and repeats it."""

    name = "zoo:parrot"

    async def reply(self, prompt: Prompt, /, *, on_text: Callable[[str], object] | None = None) -> Reply:
        """Return a reply; `on_text` receives the text piece by piece."""
        last = prompt.messages[-1]
        if last.role == "user":
            noted = ToolCall(id="c1", name="note_fact", args='{"key": "heard", "value": "hello"}')
            return Reply(text="I keep that.", calls=(noted,), usage=Usage(input_tokens=90, output_tokens=20))
        for piece in ("hello", " hello"):
            if on_text is not None:
                on_text(piece)
        return Reply(text="hello hello", usage=Usage(input_tokens=120, output_tokens=4))


parrot = limpet.llm_agent(
    "parrot",
    model=Parrot(),
    instructions="Repeat what you hear.",
    prices={"zoo:parrot": (1.0, 4.0)},  # prices per million tokens, input and output
)


@limpet.tool(effect="none", retry=limpet.Retry(5), timeout="1m", max_tokens=1_000)
async def think(prompt: str) -> str:
    """A model call in your own loop, of at most `max_tokens` tokens."""
    limpet.current().partial("an")  # readers of handle.tokens() receive it
    limpet.current().spent(tokens=812, cost=0.004)
    return f"an answer to {prompt}"


@limpet.agent(budget=limpet.Budget(max_llm_tokens=2_000))
async def own_loop(run: limpet.Run, task: str) -> str:
    """Two calls fit into the budget; the third is not made."""
    said = [await run.step(think, f"{task} {number}") for number in range(3)]
    return said[-1]


async def main() -> None:
    """Run both agents, and print what they used."""
    async with limpet.open("sqlite:///models.db", agents=[parrot, own_loop]) as app:
        print(await app.run(parrot, "hello", id="p"))
        state = await app.state("p")
        print(state.facts, state.whole.spent.tokens, f"{state.whole.spent.cost:.6f}")
        try:
            await app.run(own_loop, "task", id="o")
        except limpet.RunFailed as failed:
            print(failed.message)
        print((await app.state("o")).whole.spent.tokens)


if __name__ == "__main__":
    asyncio.run(main())
