"""Links to decide a request: keys, and each field of a link is protected."""

import json
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import limpet
from limpet.engine.execution.views import Request
from limpet.errors import DefinitionError, InvalidLink, InvalidLinkKey, LinkExpired, LinkOutdated
from limpet.redaction import hide_secrets
from limpet.service.decision_links import LINK_LASTS, LinkKeys, LinkMint
from limpet.service.notices import RequestNotice

KEY, OTHER = "7b" * 32, "5f" * 32
FIELDS: dict[str, Any] = {
    "tenant": "main",
    "request": "01j9x",
    "digest": "d" * 64,
    "person": "bob",
    "expires": 2_000_000,
}


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        KEY.upper(),
        b64encode(bytes.fromhex(KEY)).decode(),
        urlsafe_b64encode(bytes.fromhex(KEY)).decode().rstrip("="),
    ],
)
def test_a_key_is_hex_or_base64(text: str) -> None:
    """All of these are the same key."""
    assert LinkKeys.from_text(text).verify(LinkKeys.from_text(KEY).sign(**FIELDS)).request == "01j9x"


@pytest.mark.parametrize(
    "text",
    ["", "short", "ab" * 31, "?" * 64, f"{KEY},{KEY}", f"a:{KEY},a:{KEY}", f"a:{KEY},b", f"a b:{KEY}", f":{KEY}", "a:"],
)
def test_a_malformed_key_is_an_error_that_does_not_repeat_it(text: str) -> None:
    with pytest.raises(InvalidLinkKey) as raised:
        LinkKeys.from_text(text)
    assert raised.value.code == "invalid_link_key"
    assert KEY not in str(raised.value)


def test_each_field_is_protected() -> None:
    """A link whose content was changed is refused, and so is each changed character."""
    keys = LinkKeys.from_text(KEY)
    text = keys.sign(**FIELDS)
    content, dot, mac = text.removeprefix("lpd_").partition(".")
    fields = msgspec.msgpack.decode(urlsafe_b64decode(content + "=" * (-len(content) % 4)))
    for place, value in enumerate(fields):
        other = {str: "eve", int: 9_000_000, bytes: bytes(16)}[type(value)]
        changed = msgspec.msgpack.encode([*fields[:place], other, *fields[place + 1 :]])
        with pytest.raises(InvalidLink):
            keys.verify(f"lpd_{urlsafe_b64encode(changed).decode().rstrip('=')}{dot}{mac}")
    for place in range(len(text)):
        with pytest.raises(InvalidLink):
            keys.verify(f"{text[:place]}{'A' if text[place] != 'A' else 'B'}{text[place + 1 :]}")
    for wrong in (
        "",
        "lpd_.",
        text[:-1],
        f"{text}A",
        f"{text}=",
        f" {text}",
        "lpd_" + "A" * 3000,
        text.partition(".")[0],
    ):
        with pytest.raises(InvalidLink):
            keys.verify(wrong)
    assert keys.verify(text).person == "bob"


def test_keys_are_rotated() -> None:
    """The first signs and all verify; after its removal, links of a key are refused."""
    old, new = f"a:{KEY}", f"b:{OTHER}"
    sent = LinkKeys.from_text(old).sign(**FIELDS)
    both = LinkKeys.from_text(f"{new},{old}")
    assert (both.verify(sent).key, both.verify(both.sign(**FIELDS)).key) == ("a", "b")
    with pytest.raises(InvalidLink, match="not in use"):
        LinkKeys.from_text(new).verify(sent)
    with pytest.raises(InvalidLink):
        LinkKeys.from_text(f"a:{OTHER}").verify(sent)


def test_a_link_expires_and_is_bound_to_the_arguments() -> None:
    keys = LinkKeys.from_text(KEY)
    link = keys.verify(keys.sign(**FIELDS))
    keys.check(link, digest="d" * 64, now=1_999_999)
    with pytest.raises(LinkExpired):
        keys.check(link, digest="d" * 64, now=2_000_000)
    with pytest.raises(LinkOutdated):
        keys.check(link, digest="e" * 64, now=1)
    other = LinkKeys.from_text(OTHER)
    texts = [keys.sign(**FIELDS), keys.sign(**{**FIELDS, "person": "eve"})]
    tokens = {keys.form_token(link, text) for text in texts}
    tokens.add(other.form_token(other.verify(other.sign(**FIELDS)), texts[0]))
    assert len(tokens) == 3


def test_the_environment_configures_links() -> None:
    """A key and the server's address; without one of them, notices have no link."""
    url = {"LIMPET_PUBLIC_URL": "https://runs.example.com/"}
    assert LinkMint.from_environment({"LIMPET_LINK_KEY": KEY}) is None
    assert LinkMint.from_environment(url) is None
    mint = LinkMint.from_environment({"LIMPET_LINK_KEY": KEY, "LIMPET_TENANT": "acme", **url})
    assert mint is not None
    address = mint.mint(request="q", digest="d", person="", expires=None, now=5)
    assert address.startswith("https://runs.example.com/ui/decide/lpd_")
    assert KEY not in repr(mint)
    link = mint.keys.verify(address.rpartition("/")[2])
    assert (link.tenant, link.expires) == ("acme", 5 + LINK_LASTS)
    early = mint.mint(request="q", digest="d", person="", expires=9, now=5)
    assert mint.keys.verify(early.rpartition("/")[2]).expires == 9
    assert hide_secrets(f"GET {address} 200") == "GET https://runs.example.com/ui/decide/[redacted: limpet link] 200"


@pytest.mark.parametrize(
    "wrong",
    [
        {"LIMPET_PUBLIC_URL": "http://runs.example.com"},
        {"LIMPET_PUBLIC_URL": "https://runs.example.com/path"},
        {"LIMPET_PUBLIC_URL": "https://user@runs.example.com"},
        {"LIMPET_PUBLIC_URL": "runs.example.com"},
        {"LIMPET_TENANT": "Not A Tenant"},
        {"LIMPET_LINK_KEY": "short"},
    ],
)
def test_a_wrong_setting_is_an_error_at_start(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidLinkKey):
        LinkMint.from_environment({"LIMPET_LINK_KEY": KEY, "LIMPET_PUBLIC_URL": "https://runs.example.com", **wrong})


def test_channels_send_the_link_beside_what_is_redacted() -> None:
    """A webhook as a property, Slack and e-mail as a line; neither changes it."""
    link = f"https://runs.example.com/ui/decide/{LinkKeys.from_text(KEY).sign(**FIELDS)}"
    token = "ghp_" + "a1" * 20
    request = Request(
        id="q", run="r", kind="ask", question=f"{token}?", to=("bob",), opened=datetime(2026, 11, 17, tzinfo=UTC)
    )
    notice = RequestNotice.of(request, link)
    url, mail = "https://hooks.example.org/x", "b@example.org"
    webhook = limpet.Webhook(url, secret="s" * 16, person="bob")
    sent = [
        json.loads(webhook._body(notice))["link"],
        json.loads(limpet.Slack(url, person="bob")._body(notice))["text"],
        limpet.Email("smtp.example.org", sender=mail, to=[mail], person="bob")._message(notice, "key").get_content(),
    ]
    assert all(link in each for each in sent)
    assert token not in "".join(sent)
    assert "link" not in json.loads(webhook._body(request))
    assert (link in repr(notice), notice.question) == (False, request.question)
    with pytest.raises(DefinitionError):
        limpet.Email("smtp.example.org", sender=mail, to=[mail, "c@example.org"], person="bob")
    with pytest.raises(DefinitionError):
        limpet.Slack(url, person="b\nob")
