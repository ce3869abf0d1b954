"""Which adapter a model is behind, by its name."""

import importlib
from typing import Any

from limpet.errors import DefinitionError
from limpet.llm.model import Model

__all__ = ["model_of"]

CHOICES = (
    'say "openai:gpt-5-mini" (for any server that speaks like OpenAI, with OPENAI_BASE_URL), another "provider:name" '
    'that pydantic-ai knows, such as "anthropic:claude-sonnet-4-5", or give something with `name` and `reply`: an '
    "OpenAIModel, a PydanticAIModel, a ScriptedModel or your own"
)


def model_of(spec: "str | Model") -> Model:
    """A model by its name, or itself. Nothing is imported that is not needed, and nothing asked for a key yet."""
    if isinstance(spec, str):
        provider, _, name = spec.partition(":")
        if provider.strip() and name.strip():
            return _named(provider, name)
    elif isinstance(getattr(spec, "name", None), str) and callable(getattr(spec, "reply", None)):
        return spec
    raise DefinitionError(what=f"The model {spec!r}", reason=CHOICES)


def _named(provider: str, name: str) -> Model:
    if provider == "openai":
        adapter: Any = importlib.import_module("limpet.adapters.openai")
        found: Model = adapter.OpenAIModel(name)
    else:
        adapter = importlib.import_module("limpet.adapters.pydantic_ai")
        found = adapter.PydanticAIModel(f"{provider}:{name}")
    return found
