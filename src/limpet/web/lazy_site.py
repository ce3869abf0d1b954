"""The dashboard, which is imported with its first request: servers without browsers do not need templates."""

import asyncio
import os
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from limpet.clock import Clock
from limpet.errors import DefinitionError, ExtraMissing, InvalidLinkKey
from limpet.ids import Ids, RandomIds
from limpet.service.app import App
from limpet.service.decision_links import LinkKeys
from limpet.service.tokens import TENANT
from limpet.web.guard import Places
from limpet.web.oidc import Oidc, OidcClient

__all__ = ["LazySite"]

ROOT = "/ui"


class LazySite:
    """Serves pages under /ui, and passes all other requests on."""

    def __init__(  # noqa: PLR0913 - all by name
        self,
        inside: ASGIApp,
        *,
        apps: Mapping[str, App],
        places: Places,
        clock: Clock,
        stopping: asyncio.Event,
        link_alone: Collection[str] = (),
        oidc: Oidc | None = None,
    ) -> None:
        self._inside, self._apps, self._places, self._clock = inside, apps, places, clock
        self._stopping = stopping
        if isinstance(link_alone, str):
            raise DefinitionError(what="link_alone", reason=f"{link_alone!r} is one name; pass a list of names")
        text = os.environ.get("LIMPET_LINK_KEY", "").strip()
        self._link_keys, self._link_alone = LinkKeys.from_text(text) if text else None, link_alone
        if link_alone and self._link_keys is None:
            raise InvalidLinkKey(reason=f"LIMPET_LINK_KEY is not set, and links of {', '.join(link_alone)} need it")
        if oidc is not None and oidc.tenant not in apps:
            raise DefinitionError(what="oidc", reason=f"this server has no tenant {oidc.tenant!r}")
        self._oidc = None if oidc is None else OidcClient(oidc)
        self._site: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        path = "" if scope["type"] != "http" else scope["path"].removeprefix(scope.get("root_path", ""))
        if path != ROOT and not path.startswith(f"{ROOT}/"):
            await self._inside(scope, receive, send)
            return
        if self._site is None:
            self._site = await asyncio.to_thread(self._load)
        await self._site(scope, receive, send)

    def _load(self) -> ASGIApp:
        try:
            from limpet.web.ui import Site  # noqa: PLC0415 - templates take time to import
        except ImportError as error:
            raise ExtraMissing(extra="server") from error
        ids = RandomIds(self._clock)
        return Site(
            apps=self._apps,
            places=self._places,
            key=_key_of(self._apps[TENANT].address, ids),
            clock=self._clock,
            ids=ids,
            stopping=self._stopping,
            link_keys=self._link_keys,
            link_alone=self._link_alone,
            oidc=self._oidc,
        )


def _key_of(address: str, ids: Ids) -> str:
    """Return the part of a cookie's name that stands for a store: cookies do not know ports, so two servers on one
    machine need cookies of different names. Two folders may have a file of the same name.
    """
    parts = urlsplit(address)
    if parts.scheme == "sqlite":
        address = str(Path(unquote(parts.path[1:])).resolve())
    elif parts.scheme == "memory":
        address = ids.new()
    return sha256(address.encode()).hexdigest()[:8]
