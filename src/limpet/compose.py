"""The composition root: open an app or a store by URL, and define LLM agents with a model by name."""

import importlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard
from urllib.parse import unquote, urlsplit

from typing_extensions import TypeVar

from limpet.arguments import defining
from limpet.clock import Clock, Duration, SystemClock, microseconds
from limpet.engine.definitions.agents import Agent, Budget, Exclusive
from limpet.engine.execution.log_redaction import RedactingFilter
from limpet.engine.run.compaction import Compaction, Summariser
from limpet.engine.worker.engine import Engine
from limpet.engine.worker.worker_settings import Worker
from limpet.errors import (
    DefinitionError,
    ExtraMissing,
    NotRemote,
    invalid_url,
)
from limpet.ids import RandomIds, check_id
from limpet.llm.loop import Choose, ask_model
from limpet.llm.loop import llm_agent as build_llm_agent
from limpet.llm.model import Model
from limpet.llm.prompt import MAX_REPLY, BuildContext, choose_context
from limpet.llm.summary import ModelSummariser
from limpet.llm.tools import Normalise, Usable, unchanged_result
from limpet.policy.checkpoint import Strategy
from limpet.policy.escalation import Escalate
from limpet.policy.risk import Approvals
from limpet.redaction import Redaction, add_patterns
from limpet.service.app import App
from limpet.service.notices import Channel
from limpet.service.settings import Settings
from limpet.state.fold import BUILT_IN
from limpet.stores import Backend, Store
from limpet.stores.cipher import MasterKeys
from limpet.stores.memory import MemoryBackend
from limpet.stores.sqlite import HEALING, SqliteBackend

__all__ = ["DEFAULT_URL", "is_engine", "is_server", "llm_agent", "open", "open_engine", "open_store", "summarise_with"]

log = logging.getLogger("limpet")
log.addFilter(RedactingFilter())
In = TypeVar("In", default=str)
Out = TypeVar("Out", default=str)
DEFAULT_URL = "sqlite:///limpet.db"
MAX_CHANNEL_NAME = 50


@defining
def open(  # noqa: PLR0913 - all by name, and few at a time
    url: str | None = None,
    *,
    store: str | None = None,
    engine: str | Engine | None = None,
    agents: Sequence[Agent[Any, Any]] = (),
    worker: bool | Worker = True,
    people: Mapping[str, Sequence[str]] | None = None,
    notify: Mapping[str, Channel] | None = None,
    redact: bool | Sequence[str | re.Pattern[str]] | None = None,
    token: str | None = None,
) -> App:
    """Return an app for a store. With agents, it runs a worker that drives their runs.

    The app opens when it is entered (`async with`) or awaited; until then, nothing is touched.

    - `url`: the store; see `open_store`. With `https://…`, the address of `limpet serve`, the app is a client of that
      server: it needs `worker=False` if it has agents, which then only give results their types. With
      `temporal://host:7233/namespace`, Temporal has the runs driven, and `store` is the store.
    - `store`: the store, if `url` is the address of Temporal. The default is LIMPET_URL.
    - `engine`: the engine that has the runs of this app driven, if `url` is the store: an address of Temporal, an
      engine of your own, or `builtin` for the workers of Limpet. The default is LIMPET_ENGINE, then `builtin`.
    - `agents`: the agents to serve. The worker also claims runs that an earlier process left unfinished.
    - `worker`: a `Worker` with settings, or False for no worker. LIMPET_WORKER=0 also means no worker.
    - `people`: members by group. If given, only the people to whom a request is addressed can decide it.
    - `notify`: channels by name, which are notified of each request: a `Webhook`, a `Slack` or `Email` channel, or a
      function that takes the request. The first three can also be notified of runs. With LIMPET_LINK_KEY and
      LIMPET_PUBLIC_URL, notices of requests have a link to decide.
    - `redact`: True, or LIMPET_REDACT=1, replaces credentials by placeholders before anything is recorded. A list of
      regular expressions adds to the built-in ones.
    - `token`: the access token for a server. The default is LIMPET_TOKEN.
    """
    clock = SystemClock()
    driver, url = _engine_and_store(url, store, engine)
    if is_server(url):
        local = {"worker": None if worker is False else worker, "people": people, "notify": notify, "redact": redact}
        return _remote_app(_resolve_url(url), token, agents, clock, local)
    if token is not None:
        raise DefinitionError(what="open(token=…)", reason="only a server takes a token; pass its https:// address")
    settings = Settings(open_store(url), clock, RandomIds(clock))
    settings.url, settings.engine = _resolve_url(url), driver
    settings.people, settings.channels = people, dict(notify or {})
    settings.links = _links(settings.channels)
    settings.store.redaction = _redaction(redact)
    for name in settings.channels:
        if len(check_id(name)) > MAX_CHANNEL_NAME:
            reason = f"the name has more than {MAX_CHANNEL_NAME} characters"
            raise DefinitionError(what=f"channel {name[:20]}…", reason=reason)
    if worker is False or os.environ.get("LIMPET_WORKER") == "0":
        settings.worker = None
    elif isinstance(worker, Worker):
        settings.worker = worker
    return App(settings, agents)


def _links(channels: Mapping[str, Channel]) -> Any:
    """Return what makes links for notices, if it is configured. Few processes need it, so it is imported here."""
    if "LIMPET_LINK_KEY" not in os.environ:
        return None
    found = importlib.import_module("limpet.service.decision_links").LinkMint.from_environment(os.environ)
    if found is None and channels:
        log.warning("Notices have no links: set LIMPET_LINK_KEY and LIMPET_PUBLIC_URL.")
    return found


def _engine_and_store(
    url: str | None, store: str | None, engine: str | Engine | None
) -> tuple[Engine | None, str | None]:
    """Return the engine of an app, if it has one, and the URL of its store."""
    if is_engine(url):
        if engine is not None:
            raise DefinitionError(what="open(engine=…)", reason="the address that was passed first is one already")
        url, engine = store, url
    elif store is not None:
        raise DefinitionError(what="open(store=…)", reason="pass the store first, and the engine as engine=")
    if is_server(url):
        if engine is not None:
            raise DefinitionError(what="open(engine=…)", reason="a server has an engine of its own; pass its store")
        return None, url
    engine = engine or os.environ.get("LIMPET_ENGINE") or BUILT_IN
    return open_engine(engine) if isinstance(engine, str) else engine, url


def is_engine(url: str | None) -> TypeGuard[str]:
    """Return whether a URL is the address of an engine."""
    return url is not None and url.partition(":")[0].lower() == "temporal"


def open_engine(url: str) -> Engine | None:
    """Return an engine by its address: `temporal://host:7233/namespace`. Nothing is called yet.

    None stands for the workers of Limpet, whose address is `builtin`. TLS and an API key come from Temporal's own
    environment variables, such as TEMPORAL_API_KEY.
    """
    if url == BUILT_IN:
        return None
    if not is_engine(url):
        raise DefinitionError(what="an engine", reason="its address is temporal://HOST:PORT/NAMESPACE, or builtin")
    try:
        temporal = importlib.import_module("limpet.temporal")
    except ImportError as error:
        raise ExtraMissing(extra="temporal") from error
    found: Engine = temporal.TemporalEngine(
        temporal.TemporalAddress.parse(url), public_url=os.environ.get("LIMPET_PUBLIC_URL", "")
    )
    return found


def is_server(url: str | None) -> bool:
    """Return whether a URL, or the default one, is the address of a server."""
    return _resolve_url(url).partition(":")[0].lower() in ("http", "https")


def _remote_app(
    url: str, token: str | None, agents: Sequence[Agent[Any, Any]], clock: Clock, local: Mapping[str, Any]
) -> App:
    """Return a client of a server. Raises NotRemote for options that only an app with a store has."""
    for name, given in local.items():
        if given is not None and (name != "worker" or (agents and os.environ.get("LIMPET_WORKER") != "0")):
            fix = f"Leave {name} out: it belongs to the process that opens the store."
            if name == "worker":
                fix = "Pass worker=False: the agents then only give results their types. Their workers open the store."
            raise NotRemote(what=f"open({name}=…)" if name != "worker" else "a worker", fix=fix)
    try:
        remote = importlib.import_module("limpet.remote")
    except ImportError as error:
        raise ExtraMissing(extra="remote") from error
    patience = os.environ.get("LIMPET_PATIENCE")
    server = remote.RemoteServer(
        url,
        os.environ.get("LIMPET_TOKEN") or None if token is None else token,
        clock,
        microseconds(patience) if patience else None,
    )
    found: App = remote.RemoteApp(server, clock, RandomIds(clock), agents)
    return found


@defining
def llm_agent(  # noqa: PLR0913 - keyword-only
    name: str,
    *,
    model: str | Model,
    instructions: str,
    input: type[In] = str,  # type: ignore[assignment]
    output: type[Out] = str,  # type: ignore[assignment]
    tools: Sequence[Usable] = (),
    handoffs: Sequence[Agent[Any, Out]] = (),
    records: Sequence[str] = (),
    builtin: bool | Sequence[str] = True,
    compact: Compaction | None = None,
    window: int = 100_000,
    max_reply: int = 4_000,
    max_turns: int = 100,
    prices: Mapping[str, tuple[float, float]] | None = None,
    choose: Choose = ask_model,
    normalise: Normalise = unchanged_result,
    build_context: BuildContext = choose_context,
    version: str = "1",
    accepts: Sequence[str] = (),
    steps: int | None = None,
    deadline: Duration | None = None,
    budget: Budget | None = None,
    approvals: Approvals | None = None,
    escalate: Escalate | None = None,
    checkpoint: Strategy = "every_step",
    exclusive: Exclusive | None = None,
    max_age: Duration | None = None,
    concurrency: int | None = None,
    data: Callable[[], Any] | None = None,
) -> Agent[In, Out]:
    """Define an agent that a model drives. Each model call is a step, and each choice is recorded as a decision.

    - `model`: "openai:gpt-5-mini" (any compatible endpoint, with OPENAI_BASE_URL), "provider:name" for other providers,
      or an object with a method `reply`. It is created at the first call.
    - `instructions`: the system prompt.
    - `input`, `output`: types of the input and the result. The default is text.
    - `tools`: what the model may call: tools, other agents, external sources, MCP servers.
    - `handoffs`: agents to which the model may transfer the task permanently.
    - `records`: names of the shared records that the model may read and patch.
    - `builtin`: the built-in tools that the model may call: all (True), none (False), or a list of names.
    - `compact`: when to summarise old messages. None derives it from `window`.
    - `window`: size of the model's context window, in tokens.
    - `max_reply`: maximum length of a reply, in tokens.
    - `max_turns`: maximum number of turns (a reply, and the calls that it requests) before the run fails.
    - `prices`: price of a million input and output tokens, by model name.
    - `choose`, `normalise`, `build_context`: hooks that replace how the next reply is chosen, how a tool's result is
      shown to the model, and what the prompt contains.

    The other options are those of `@agent`.
    """
    found = _model_of(model)
    options: dict[str, Any] = {
        "version": version,
        "accepts": accepts,
        "steps": steps,
        "deadline": deadline,
        "budget": budget,
        "approvals": approvals,
        "escalate": escalate,
        "checkpoint": checkpoint,
        "exclusive": exclusive,
        "max_age": max_age,
        "concurrency": concurrency,
        "data": data,
    }
    return build_llm_agent(
        name,
        model=found,
        instructions=instructions,
        input=input,
        output=output,
        tools=tools,
        handoffs=handoffs,
        records=records,
        builtin=builtin,
        compact=compact,
        window=window,
        max_reply=max_reply,
        max_turns=max_turns,
        prices=prices,
        choose=choose,
        normalise=normalise,
        build_context=build_context,
        **options,
    )


@defining
def summarise_with(
    model: str | Model,
    *,
    window: int = 100_000,
    max_reply: int = MAX_REPLY,
    prices: Mapping[str, tuple[float, float]] | None = None,
) -> Summariser:
    """Return a summariser that asks a model, for `run.compact` and `app.compact`.

    The parameters are those of `llm_agent`. In a run, the model call is a step, and its tokens and cost count.
    """
    return ModelSummariser(_model_of(model), window=window, max_reply=max_reply, prices=prices or {})


def _model_of(model: str | Model) -> Callable[[], Model]:
    """Return a function that creates the model at its first call. Raises DefinitionError for an invalid one."""
    models = importlib.import_module("limpet.adapters.models")
    models.check_model(model)
    return cache(lambda: models.model_of(model))


def open_store(
    url: str | None = None,
    *,
    clock: Clock | None = None,
    keys: MasterKeys | None = None,
    compress: bool = False,
    patience: Duration | None = None,
) -> Store:
    """Return a store, which opens when it is entered; until then, nothing is touched.

    - `url`: `sqlite:///file.db` (four slashes for an absolute path), `postgresql://…` or `memory:`. The default is
      LIMPET_URL, then `sqlite:///limpet.db`.
    - `clock`: the clock of the store; None for its default.
    - `keys`: master keys, to encrypt the store. The default is LIMPET_KEYS (the keys) or LIMPET_KEYS_FILE (a file).
    - `compress`: whether to compress payloads.
    - `patience`: how long calls wait for a store that is unreachable or busy. The default is LIMPET_PATIENCE, then
      20 s, and one minute for a lock of SQLite.
    """
    if patience is None:
        patience = os.environ.get("LIMPET_PATIENCE") or None
    backend = _backend(_resolve_url(url), clock, patience)
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


def _resolve_url(url: str | None) -> str:
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
