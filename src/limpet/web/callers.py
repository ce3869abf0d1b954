"""Whose token it is: one from the environment, one that the server's own function knows, or one in a tenant's store.

A token is looked up at most once a second, so that a revoked one is refused within a second. An unknown token is
remembered, and each address may try only some, so that guessing reaches no store.
"""

import asyncio
import hmac
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from inspect import isawaitable
from math import ceil
from typing import NamedTuple

from limpet.clock import SECOND, Clock
from limpet.engine.execution.principal import Principal
from limpet.errors import AuthUnavailable, DefinitionError, LimpetError, TooManyRequests
from limpet.service.app import App
from limpet.service.tokens import TENANT, find_caller, parse_token
from limpet.web.limits import Buckets

__all__ = ["ENV", "Auth", "Callers"]

log = logging.getLogger("limpet")

Auth = str | Sequence[str] | Callable[[str], Principal | Awaitable[Principal | None] | None]
"""A token, several tokens, or a function that returns whose token it is, None if it is not valid."""
ENV = Principal(name="env", kind="service", roles=("operator",), door="http")
"""The caller with a token from LIMPET_TOKEN, or one that is passed as text."""
SHORTEST = 20
# How long a known token is trusted, and how long an unknown one is refused, without a lookup; in microseconds.
TRUSTED, REFUSED = SECOND, 5 * SECOND
# How often the use of a token is recorded, in microseconds.
RECORDED = 60 * SECOND
# Tokens that are remembered; the oldest is forgotten.
REMEMBERED = 4096
# Unknown tokens that an address may try: a second, and in a burst.
TRIES, BURST = 10.0, 40.0


class _Seen(NamedTuple):
    """The outcome of a lookup."""

    who: Principal | None
    at: int


class Callers:
    """Finds the caller with a token."""

    def __init__(self, apps: Mapping[str, App], auth: Auth | None, clock: Clock) -> None:
        self._apps, self._clock = apps, clock
        self._function = auth if callable(auth) else None
        self._texts = [] if auth is None or callable(auth) else _hashes([auth] if isinstance(auth, str) else auth)
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
        self._lookups: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._tries = Buckets(clock, rate=TRIES, burst=BURST)
        self._recorded: dict[str, int] = {}
        self._recording: set[asyncio.Task[None]] = set()

    async def find(self, token: str, address: str) -> Principal | None:
        """Return the caller with a token, None if it is not valid. Raises TooManyRequests, and AuthUnavailable."""
        given = _hash(token)
        if sum(hmac.compare_digest(given, each) for each in self._texts):  # constant time: compares with all
            return ENV
        if self._function is None and parse_token(token) is None:
            return None
        seen, now = self._seen.get(given), self._clock.ticks()
        if seen is not None and now - seen.at < (REFUSED if seen.who is None else TRUSTED):
            return seen.who
        is_stranger = seen is None or seen.who is None
        if is_stranger and given not in self._lookups and (wait := self._tries.take(address)):
            raise TooManyRequests(reason=f"{address} tried too many tokens", seconds=ceil(wait))
        found = await self._looked_up(given, token)
        if is_stranger and found is not None:
            self._tries.give_back(address)
        return found

    async def _looked_up(self, given: bytes, token: str) -> Principal | None:
        """Look a token up, once for all requests that have it at the same time."""
        lookup = self._lookups.get(given)
        if lookup is None:
            lookup = self._lookups[given] = asyncio.ensure_future(self._look_up(token))
            lookup.add_done_callback(lambda done: self._remember(given, done))
        return await asyncio.shield(lookup)

    def _remember(self, given: bytes, lookup: "asyncio.Task[Principal | None]") -> None:
        del self._lookups[given]
        if lookup.cancelled() or lookup.exception() is not None:
            return
        self._seen[given] = _Seen(lookup.result(), self._clock.ticks())
        self._seen.move_to_end(given)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    async def _look_up(self, token: str) -> Principal | None:
        try:
            who = await self._asked(token)
        except LimpetError as error:
            log.warning("auth: %s", error)
            raise AuthUnavailable from error  # its text is not for callers that have not authenticated
        except Exception as error:
            log.exception("auth: the function that checks tokens failed")
            raise AuthUnavailable from error
        return who if who is not None and (who.tenant or TENANT) in self._apps else None

    async def _asked(self, token: str) -> Principal | None:
        """Ask the store of the token's tenant, or else the server's own function."""
        parsed = parse_token(token)
        if parsed is not None:
            app = self._apps.get(parsed.tenant)
            who = None if app is None or not app.is_open else await find_caller(app.store, token)
            if who is not None and app is not None:
                self._record_use(app, parsed.id)
            return who
        if self._function is None:
            return None
        found = self._function(token)
        return await found if isawaitable(found) else found

    def _record_use(self, app: App, id: str) -> None:
        """Record that a token is in use, in the background and at most once a minute."""
        now = self._clock.ticks()
        if now - self._recorded.get(id, -RECORDED) < RECORDED:
            return
        self._recorded[id] = now
        task = asyncio.ensure_future(_use(app, id))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)


async def _use(app: App, id: str) -> None:
    try:
        await app.store.use_token(id)
    except LimpetError as error:  # a store that can only be read
        log.warning("auth: the use of token %s was not recorded: %s", id, error)


def _hashes(tokens: Sequence[str]) -> list[bytes]:
    """Return the hashes of some tokens. Raises DefinitionError for one that could be guessed."""
    if not tokens:
        raise DefinitionError(what="auth", reason="no token was given, so no client could authenticate")
    for each in tokens:
        if not each.isascii() or not each.isprintable() or " " in each:
            raise DefinitionError(what="auth", reason="a token may contain only visible ASCII characters")
        if len(each) < SHORTEST:
            reason = f"a token in auth= or LIMPET_TOKEN has {len(each)} characters; use at least {SHORTEST} random ones"
            raise DefinitionError(what="auth", reason=reason)
    return [_hash(each) for each in tokens]


def _hash(token: str) -> bytes:
    return sha256(token.encode(errors="surrogateescape")).digest()
