"""Links to decide one request, which notices contain: a MAC proves what was asked of whom, and until when.

A link is minted while a notice is delivered, and is stored nowhere. It shows nothing of the arguments: their digest is
in it as a MAC, so that values cannot be guessed from it.
"""

import hmac
import re
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import urlsplit

import msgspec

from limpet.clock import SECOND
from limpet.errors import InvalidLink, InvalidLinkKey, LinkExpired, LinkOutdated
from limpet.service.tokens import TENANT, is_tenant

__all__ = ["LINK_LASTS", "DecisionLink", "LinkKeys", "LinkMint", "is_safe_url"]

LINK_LASTS = 7 * 24 * 3600 * SECOND
"""How long a link is valid, in microseconds, unless its request expires earlier."""
MIN_KEY = 32
PREFIX = "lpd_"
# No link is longer; longer text is not examined.
LONGEST = 2000
# Uses of a key. Each MAC begins with one of them, so that none can stand for another.
LINK, ARGUMENTS, FORM = b"limpet link 1\0", b"limpet arguments 1\0", b"limpet form 1\0"
TAG = 16
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_TOKEN = re.compile(rf"{PREFIX}([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]{{43}}")


class DecisionLink(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """The content of a link."""

    tenant: str
    """Tenant whose store has the request."""
    request: str
    """Request id."""
    tag: bytes
    """MAC of the digest of what the request shows."""
    person: str
    """Name of the person to whom the link was sent; empty if the channel is read by several."""
    expires: int
    """When it expires, in microseconds."""
    key: str
    """Id of the key."""


class LinkKeys:
    """The keys of links. The first signs, all verify, so that one can be replaced."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self._first = next(iter(self._keys))

    @classmethod
    def from_text(cls, text: str) -> "LinkKeys":
        """Parse one key, or several as `id:key,id:key`: each of at least 32 bytes, in base64 or hex.

        Raises InvalidLinkKey, which does not repeat the text.
        """
        found: dict[str, bytes] = {}
        words = [each.strip() for each in text.split(",")]
        for place, word in enumerate(words, start=1):
            id, colon, rest = word.rpartition(":")
            key = _key(rest, place)
            if not colon and len(words) > 1:
                raise InvalidLinkKey(reason=f"key {place} of {len(words)} has no id")
            name = id if colon else sha256(b"limpet key id\0" + key).hexdigest()[:8]
            if _ID.fullmatch(name) is None or name in found:
                raise InvalidLinkKey(reason=f"the id of key {place} is repeated, or is not made of A-Z, 0-9, - and _")
            found[name] = key
        return cls(found)

    def sign(self, *, tenant: str, request: str, digest: str, person: str, expires: int) -> str:
        """Return the text of a link."""
        key = self._keys[self._first]
        link = DecisionLink(
            tenant=tenant,
            request=request,
            tag=_mac(key, ARGUMENTS, digest.encode())[:TAG],
            person=person,
            expires=expires,
            key=self._first,
        )
        return _text(link, key)

    def verify(self, text: str) -> DecisionLink:
        """Return the content of a link, which may have expired. Raises InvalidLink."""
        found = _TOKEN.fullmatch(text) if len(text) <= LONGEST else None
        try:
            link = None if found is None else msgspec.msgpack.decode(_decoded(found[1]), type=DecisionLink)
        except (msgspec.DecodeError, Error, ValueError):
            link = None
        if link is None:
            raise InvalidLink(reason="it is incomplete, or was changed")
        key = self._keys.get(link.key)
        if key is None:
            raise InvalidLink(reason="its key is not in use any more")
        # The whole text is compared, so that each link has one spelling.
        if not hmac.compare_digest(_text(link, key), text):
            raise InvalidLink(reason="it is incomplete, or was changed")
        return link

    def check(self, link: DecisionLink, *, digest: str, now: int) -> None:
        """Raise LinkExpired, or LinkOutdated if the request shows something else than when the link was sent."""
        if link.expires <= now:
            raise LinkExpired(expired_at=link.expires)
        if not hmac.compare_digest(_mac(self._keys[link.key], ARGUMENTS, digest.encode())[:TAG], link.tag):
            raise LinkOutdated(request=link.request)

    def derived(self, use: str) -> list[bytes]:
        """Return keys for another use, in the same order. They reveal nothing of the keys of links."""
        return [_mac(key, b"limpet derived 1\0", use.encode()) for key in self._keys.values()]

    def form_token(self, link: DecisionLink, text: str) -> str:
        """Return the text that a form on the page of a link contains."""
        return _mac(self._keys[link.key], FORM, text.encode()).hex()


@dataclass(frozen=True, kw_only=True)
class LinkMint:
    """Makes links for notices of one store."""

    keys: LinkKeys = field(repr=False)
    public_url: str
    """Address of the server that shows the page."""
    tenant: str = TENANT
    """The store's name on that server."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "LinkMint | None":
        """Return the mint that LIMPET_LINK_KEY, LIMPET_PUBLIC_URL and LIMPET_TENANT configure; None without a key or
        an address. Raises InvalidLinkKey.
        """
        text, url = environment.get("LIMPET_LINK_KEY", "").strip(), environment.get("LIMPET_PUBLIC_URL", "").strip()
        keys = LinkKeys.from_text(text) if text else None
        tenant = environment.get("LIMPET_TENANT", "").strip() or TENANT
        if keys is None or not url:
            return None
        if not is_safe_url(url):
            reason = "LIMPET_PUBLIC_URL must be https://host without a path, or http:// on the same machine"
            raise InvalidLinkKey(reason=reason)
        if not is_tenant(tenant):
            raise InvalidLinkKey(reason="LIMPET_TENANT must have 1 to 40 characters of a-z, 0-9 and -")
        return cls(keys=keys, public_url=url.rstrip("/"), tenant=tenant)

    def mint(self, *, request: str, digest: str, person: str, expires: int | None, now: int) -> str:
        """Return the address of the page to decide a request."""
        until = min(now + LINK_LASTS, expires or now + LINK_LASTS)
        text = self.keys.sign(tenant=self.tenant, request=request, digest=digest, person=person, expires=until)
        return f"{self.public_url}/ui/decide/{text}"


def is_safe_url(url: str) -> bool:
    """Return whether browsers may log in at an address: https, or http on the same machine; without a path."""
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    is_whole = (
        bool(parts.hostname) and "@" not in parts.netloc and url.rstrip("/") == f"{parts.scheme}://{parts.netloc}"
    )
    return is_whole and (parts.scheme == "https" or (parts.scheme == "http" and is_local))


def _text(link: DecisionLink, key: bytes) -> str:
    content = msgspec.msgpack.encode(link)
    return f"{PREFIX}{_encoded(content)}.{_encoded(_mac(key, LINK, content))}"


def _mac(key: bytes, use: bytes, data: bytes) -> bytes:
    return hmac.digest(key, use + data, "sha256")


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _key(text: str, place: int) -> bytes:
    """Return a key. Hex is tried first: a key in hex is also valid base64, of another length."""
    try:
        key = bytes.fromhex(text) if re.fullmatch("[0-9a-fA-F]+", text) else _from_base64(text)
    except (Error, ValueError):
        raise InvalidLinkKey(reason=f"key {place} is neither base64 nor hex") from None
    if len(key) < MIN_KEY:
        raise InvalidLinkKey(reason=f"key {place} has {len(key)} bytes; at least {MIN_KEY} are needed")
    return key


def _from_base64(text: str) -> bytes:
    """Return the bytes of base64, with the usual or the URL-safe alphabet, and with or without padding."""
    usual = text.replace("-", "+").replace("_", "/").rstrip("=")
    return b64decode(usual + "=" * (-len(usual) % 4), validate=True)
