"""The composition root: open an app or a store by URL, and define LLM agents with a model by name."""

import importlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from typing_extensions import TypeVar

from limpet.arguments import defining
from limpet.clock import Clock, Duration, SystemClock
from limpet.engine.definitions.agents import Agent, Budget
from limpet.engine.execution.log_redaction import RedactingFilter
from limpet.engine.worker.worker import Worker
from limpet.errors import (
    DefinitionError,
    ExtraMissing,
    invalid_url,
)
from limpet.ids import RandomIds, check_id
from limpet.llm.loop import Choose, Compaction, ask_model
from limpet.llm.loop import llm_agent as build_llm_agent
from limpet.llm.model import Model
from limpet.llm.prompt import BuildContext, choose_context
from limpet.llm.tools import Normalise, Usable, unchanged_result
from limpet.policy.risk import Approvals
from limpet.redaction import Redaction, add_patterns
from limpet.service.app import App
from limpet.service.settings import Channel, Settings
from limpet.stores import Backend, Store
from limpet.stores.cipher import MasterKeys
from limpet.stores.memory import MemoryBackend
from limpet.stores.sqlite import HEALING, SqliteBackend

__all__ = ["DEFAULT_URL", "llm_agent", "open", "open_store"]

logging.getLogger("limpet").addFilter(RedactingFilter())
In = TypeVar("In", default=str)
Out = TypeVar("Out", default=str)
DEFAULT_URL = "sqlite:///limpet.db"
LONGEST_CHANNEL = 50


@defining
def open(
    url: str | None = None,
    *,
    agents: Sequence[Agent[Any, Any]] = (),
    worker: bool | Worker = True,
    people: Mapping[str, Sequence[str]] | None = None,
    notify: Mapping[str, Channel] | None = None,
    redact: bool | Sequence[str | re.Pattern[str]] | None = None,
) -> App:
    """An app over a store: with agents it drives their runs, and goes on with what an earlier process left behind.

    `worker=False` or LIMPET_WORKER=0 forbids that. With `people`, groups and who is in them, only those whom a request
    is for can decide it. `notify` names channels that are told of each request: a `Webhook`, or a function that takes
    the request. With `redact`, or LIMPET_REDACT=1, what looks like a credential is not even recorded; a list says what
    else does. Nothing is touched until it is entered or awaited. See `open_store` for the address.
    """
    clock = SystemClock()
    settings = Settings(open_store(url), clock, RandomIds(clock))
    settings.url = _address(url)
    settings.people, settings.channels = people, dict(notify or {})
    settings.store.redaction = _redaction(redact)
    for name in settings.channels:
        if len(check_id(name)) > LONGEST_CHANNEL:
            raise DefinitionError(what="A channel", reason=f"{name[:20]}… is too long a name")
    if worker is False or os.environ.get("LIMPET_WORKER") == "0":
        settings.worker = None
    elif isinstance(worker, Worker):
        settings.worker = worker
    return App(settings, agents)


@defining
def llm_agent(  # noqa: PLR0913 - all by name, and few at a time
    name: str,
    *,
    model: str | Model,
    instructions: str,
    input: type[In] = str,  # type: ignore[assignment]
    output: type[Out] = str,  # type: ignore[assignment]
    tools: Sequence[Usable] = (),
    handoffs: Sequence[Agent[Any, Out]] = (),
    version: str = "1",
    budget: Budget | None = None,
    approvals: Approvals | None = None,
    compact: Compaction | None = None,
    window: int = 100_000,
    max_reply: int = 4_000,
    max_turns: int = 100,
    prices: Mapping[str, tuple[float, float]] | None = None,
    deadline: Duration | None = None,
    choose: Choose = ask_model,
    normalise: Normalise = unchanged_result,
    build_context: BuildContext = choose_context,
) -> Agent[In, Out]:
    """An agent that a model drives with some tools: each call of it is a step, each choice a decision.

    `model` is "openai:gpt-5-mini" (any compatible endpoint, by OPENAI_BASE_URL), "provider:name" for every other one,
    or an object with a method `reply`. It is looked up when it is first asked. `prices` are those of a million tokens
    in and out, by the model's name. The model may call `tools`, and hand the task over for good to one of `handoffs`.
    `choose`, `normalise` and `build_context` replace how the next reply is chosen, how a tool's result is shown to the
    model, and what the prompt contains.
    """
    models = importlib.import_module("limpet.adapters.models")
    models.check_model(model)
    found = cache(lambda: models.model_of(model))
    more: dict[str, Any] = {
        "compact": compact,
        "window": window,
        "max_reply": max_reply,
        "max_turns": max_turns,
        "prices": prices,
        "deadline": deadline,
        "handoffs": handoffs,
        "choose": choose,
        "normalise": normalise,
        "build_context": build_context,
    }
    return build_llm_agent(
        name,
        model=found,
        instructions=instructions,
        input=input,
        output=output,
        tools=tools,
        version=version,
        budget=budget,
        approvals=approvals,
        **more,
    )


def open_store(
    url: str | None = None,
    *,
    clock: Clock | None = None,
    keys: MasterKeys | None = None,
    compress: bool = False,
    patience: Duration | None = None,
) -> Store:
    """A store by its address: `sqlite:///file.db` (four slashes for an absolute path), `postgresql://…` or `memory:`.

    Without one, LIMPET_URL says which, else it is `sqlite:///limpet.db`. With `keys` it is encrypted;
    LIMPET_KEYS (the keys themselves) or LIMPET_KEYS_FILE (a file with them) may say so too. `patience`, or
    LIMPET_PATIENCE, is how long calls wait for a store that is away or busy: 20 s, and a minute for a lock of SQLite.
    Nothing is touched until it is entered.
    """
    if patience is None:
        patience = os.environ.get("LIMPET_PATIENCE") or None
    backend = _backend(_address(url), clock, patience)
    return Store(backend, keys=keys or _keys(), compress=compress, patience=patience)


def _redaction(redact: bool | Sequence[str | re.Pattern[str]] | None) -> Redaction:
    if redact is None:
        return Redaction(patterns=os.environ.get("LIMPET_REDACT", "0") not in ("", "0"))
    if not isinstance(redact, bool):
        add_patterns([redact] if isinstance(redact, str) else redact)
    return Redaction(patterns=redact is not False)


def _keys() -> MasterKeys | None:
    if "LIMPET_KEYS" in os.environ:
        return MasterKeys.from_env("LIMPET_KEYS")
    if "LIMPET_KEYS_FILE" in os.environ:
        return MasterKeys.from_file(os.environ["LIMPET_KEYS_FILE"])
    return None


def _address(url: str | None) -> str:
    return url if url is not None else os.environ.get("LIMPET_URL") or DEFAULT_URL


def _backend(url: str, clock: Clock | None, patience: Duration | None) -> Backend:
    parts = urlsplit(url)
    if parts.scheme == "memory" and not parts.netloc and not parts.path:
        return MemoryBackend(clock)
    if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1 and not parts.query:
        healing = os.environ.get("LIMPET_HEALING") or HEALING
        return SqliteBackend(unquote(parts.path[1:]), clock, patience=patience, healing=healing)
    if parts.scheme in ("postgresql", "postgres"):
        return _postgres(url, clock, patience)
    raise invalid_url(f"{parts.scheme}:…" if parts.password else url)


def _postgres(url: str, clock: Clock | None, patience: Duration | None) -> Backend:
    try:
        found = importlib.import_module("limpet.stores.postgres")
    except ImportError as error:
        raise ExtraMissing(extra="postgres") from error
    backend: Backend = found.PostgresBackend(url, clock, patience=patience)
    return backend
