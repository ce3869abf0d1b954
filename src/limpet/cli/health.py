"""What `limpet doctor` looks for in an app's code."""

from collections.abc import Iterator

from limpet.engine.tools import registered_tools

__all__ = ["without_risk"]


def without_risk() -> Iterator[str]:
    """Effects that nobody is ever asked about, because their tools say no risk."""
    for tool in sorted(registered_tools(), key=lambda each: each.name):
        if tool.traits.effect != "none" and tool.traits.risk is None:
            yield f"{tool.name} has the effect {tool.traits.effect!r} and no risk: nobody is asked before it runs"
