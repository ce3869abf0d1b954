"""Create a model adapter from a name such as "openai:gpt-5-mini"."""

import importlib
from typing import Any

from limpet.arguments import brief
from limpet.errors import DefinitionError
from limpet.llm.model import Model

__all__ = ["check_model", "model_of"]

CHOICES = (
    'pass "openai:gpt-5-mini" (any compatible server, with OPENAI_BASE_URL), another "provider:name" that pydantic-ai '
    'supports, such as "anthropic:claude-sonnet-4-5", or an object with `name` and `reply`: an OpenAIModel, a '
    "PydanticAIModel, a ScriptedModel or your own"
)


def check_model(spec: object) -> None:
    """Raise DefinitionError unless this is the name of a model, or a model."""
    if isinstance(spec, str):
        fits = all(part.strip() for part in spec.partition(":"))
    else:
        fits = isinstance(getattr(spec, "name", None), str) and callable(getattr(spec, "reply", None))
    if not fits:
        raise DefinitionError(what=f"the model {brief(spec)}", reason=CHOICES)


def model_of(spec: "str | Model") -> Model:
    """Return a model by name, or the given model. Imports only what is needed, and does not need a key yet."""
    check_model(spec)
    if not isinstance(spec, str):
        return spec
    provider, _, name = spec.partition(":")
    return _named(provider, name)


def _named(provider: str, name: str) -> Model:
    if provider == "openai":
        adapter: Any = importlib.import_module("limpet.adapters.openai")
        found: Model = adapter.OpenAIModel(name)
    else:
        adapter = importlib.import_module("limpet.adapters.pydantic_ai")
        found = adapter.PydanticAIModel(f"{provider}:{name}")
    return found
