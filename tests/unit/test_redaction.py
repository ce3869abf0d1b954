"""Redaction: credentials are found, other text is not changed, and the search is fast."""

import base64
import re
from collections.abc import Iterator
from enum import StrEnum
from urllib.parse import quote

import hypothesis
import pytest
from hypothesis import strategies as st

from limpet import redaction
from limpet.ids import SeededIds
from limpet.redaction import Redaction, add_patterns, hide_secrets, hide_secrets_in, redact
from limpet.secret import Secret
from tests.unit.credentials import EVERY, Credential, letters

every_credential = pytest.mark.parametrize("given", EVERY, ids=lambda given: given.name)
MEGABYTE = 1_000_000


@pytest.fixture
def more() -> Iterator[None]:
    """Remove the patterns that the test has added."""
    before = list(redaction._more)
    yield
    redaction._more[:] = before


@every_credential
def test_a_credential_is_replaced_by_its_kind(given: Credential) -> None:
    """The replacement names the kind of credential."""
    redacted = redact(given.text)
    assert given.hides not in redacted
    assert re.search(r"\[redacted: [a-z ]+\]", redacted)


@every_credential
def test_redacting_twice_changes_nothing(given: Credential) -> None:
    """A text may be redacted when it is recorded, shown and logged."""
    assert redact(redact(given.text)) == redact(given.text)


@every_credential
def test_a_credential_is_found_inside_other_text(given: Credential) -> None:
    """The credential is in a sentence, in quotes, in a list, or among others."""
    for around in ("see {} there", '["{}"]', "({})", "a\n{}\nb"):
        assert given.hides not in redact(around.format(given.text))


def test_several_credentials_are_all_found() -> None:
    redacted = redact("\n".join(each.text for each in EVERY))
    assert [each.name for each in EVERY if each.hides in redacted] == []


@every_credential
def test_credentials_are_found_in_json_values_and_keys(given: Credential) -> None:
    assert given.hides not in str(hide_secrets_in({"a": [{given.text: given.text}], "b": (given.text,)}))


class Text(str):
    """A text that msgspec does not encode."""

    __slots__ = ()


class Name(StrEnum):
    """A text with a name."""

    KEY = "sk-ant-0123456789abcdef0123"


TEXTS = st.one_of(
    st.sampled_from([*(each.text for each in EVERY), *(hint for hint, _ in redaction._HINTS), "password", "\u212aEY"]),
    st.text(max_size=8),
)
ANY_TEXT = st.one_of(TEXTS, TEXTS.map(Text), st.just(Name.KEY), st.tuples(TEXTS, TEXTS).map("".join))
VALUES = st.recursive(
    st.one_of(ANY_TEXT, st.integers(), st.none(), st.floats(), st.binary(max_size=4), st.builds(object)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(ANY_TEXT, st.integers(), st.none(), st.tuples(st.integers())), inner, max_size=4),
    ),
    max_leaves=12,
)


@hypothesis.given(VALUES)
@hypothesis.settings(max_examples=300)
def test_looking_for_hints_in_the_whole_value_hides_the_same(value: object) -> None:
    """Each text is as it would be alone, whatever kinds of objects are beside it."""
    assert repr(hide_secrets_in(value)) == repr(redaction._walk(value, hide_secrets, 0))


HARMLESS = [
    "The secret of a good token is the password that nobody has to remember.",
    "Password: required. Secret: none. Token: see below.",
    "Please enter your password: it must have 8 characters.",
    "Use Bearer authentication; Authorization is described in section 4.2.",
    "max_tokens=4096, llm_tokens: 1200, tokens=12345678, token_type=bearer",
    '{"type": "object", "properties": {"password": {"type": "string"}}, "required": ["password"]}',
    '{"next_token": "eyAabbccddeeff0011", "page_token": "CAUQAA12345678"}',
    "def login(password: str | None = None, token=None, secret=False) -> None: ...",
    "client = Client(api_key=settings.api_key, password=self.password, token=token)",
    "if password == other or token != before: raise ValueError(secret)",
    "password={password} token=$TOKEN secret=<your secret> api_key=*** pwd=${PWD} password=%s",
    "PWD=/root OLDPWD=/tmp KEY=value MONKEY=banana",
    "https://docs.example.org:8080/a/b@2.1?x=1#token and git@github.example:org/repo.git",
    "sqlite:////var/lib/limpet.db postgresql://ann@db.example/agents?sslmode=require",
    "550e8400-e29b-41d4-a716-446655440000 and 6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit 356a192b7913b04c54574d18c28d46e6395428ab, md5 098f6bcd4621d373cade4e832627b4f6",
    "ticket-42:step_3:rotate_token:9f86d081884c7d65",
    "o-1:step_12:send_secret:0123456789abcdef:undo",
    "look/fetch_token#1 retry/rotate_api_key#2/approval#1",
    "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 8).decode(),
    base64.b64encode(b"\x89PNG\r\n\x1a\n" * 200).decode(),
    "task-management-with-a-very-long-name-2024 risk-averse-strategies-for-10-people",
    "sk-folding-cube-spinner-of-the-loading-page",
    "The cookie: a small cake. Cookie crumbs: none.",
    "Basic authentication, basic understanding of cryptography-related-things",
    "gh_actions npm_config_registry hf_transfer pypi-simple glpat xoxo SG.1 AKIA",
    "2024-05-01T12:00:00Z step 6 of 9, 4,900 cents to ann@example.org, +49 30 1234567",
    '{"keys": ["a", "b"], "tokens": 5, "key": "value-1234567890", "author": "ann"}',
    "[secret] [redacted: github token] password=[redacted: password] token: [secret]",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
]


@pytest.mark.parametrize("text", HARMLESS, ids=lambda text: text[:30])
def test_text_without_credentials_is_not_changed(text: str) -> None:
    """Prose, code, ids, hashes, images and idempotency keys are not credentials."""
    assert redact(text) == text


def test_limpets_own_ids_are_not_changed() -> None:
    ids = SeededIds(7)
    text = " ".join(ids.new() for _ in range(2000))
    assert redact(text) == text


PIECES = [
    "eyJ", "-eyJ", "eyJaaaaaaaa.", "://", "://a:", f"://{'a' * 50}:", "password=", 'password="',
    'password\\"', "token: ", "-----BEGIN PRIVATE" + " KEY-----", "-----BEGIN A", "sk-", "-sk-a", "authorization: ",
    "authorization:bearer ",
    "cookie: a", "bearer a", "SG.aaaaaaaaaaaaaaaaaaaa.", "0123456789abcdef", "a-us", "--a-a-a-token", "ghp_", "-", " ",
    '"', "\\", "A", "key", "private_key\\", "pwd'", "identified by ", "?sig=", "@", "://u:p@", "12345678:AA",
    "glsa_aaa_", "secret_", "xoxb-", "credential", "connection_string ", "\n", "secret='", "é", "a.b.c.",
    'cookie: a="', 'a="',
]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES, ids=repr)
def test_long_repeated_text_is_searched_in_linear_time(piece: str) -> None:
    """A search in quadratic time would not end within a test."""
    assert isinstance(redact(piece * (MEGABYTE // 4 // len(piece)) + "!"), str)


@pytest.mark.parametrize("piece", ["eyJ", "-eyJ", "password=", "://a:", "".join(PIECES)], ids=lambda piece: piece[:9])
def test_a_megabyte_is_searched_in_linear_time(piece: str) -> None:
    """A search in quadratic time would take a day."""
    assert isinstance(redact(piece * (MEGABYTE // len(piece)) + "!"), str)


def test_the_value_of_a_live_secret_is_redacted() -> None:
    """The value is found verbatim, in JSON, in a URL and in base64; after the Secret is deleted, it is not."""
    value = 'corréct "horse" & staple'
    forms = [value, '{"a": "corréct \\"horse\\" & staple"}', quote(value), base64.b64encode(value.encode()).decode()]
    secret = Secret(value)
    for form in forms:
        assert hide_secrets(f"it was {form}!") != f"it was {form}!"
        assert "staple" not in hide_secrets(form)
    assert hide_secrets(f"{secret}") == "[secret]"
    del secret
    assert [hide_secrets(form) for form in forms] == forms


def test_a_very_short_secret_is_not_redacted() -> None:
    secret = Secret("an")
    assert hide_secrets("an answer") == "an answer"
    assert secret.reveal() == "an"


def test_values_under_secret_names_are_redacted() -> None:
    given = {"password": "x1", "db": {"apiToken": "abcdef", "Authorization": "abcdefgh"}, "token": "END", "n": 3}
    assert hide_secrets_in(given) == {
        "password": "[redacted: password]",
        "db": {"apiToken": "[redacted: secret]", "Authorization": "[redacted: secret]"},
        "token": "END",
        "n": 3,
    }


def test_keys_that_are_equal_after_redaction_are_all_kept() -> None:
    key = "gh" + "p_"
    found = hide_secrets_in({key + letters(1, 36): 1, key + letters(2, 36): 2, key + letters(3, 36): 3})
    assert list(found.values()) == [1, 2, 3]


def test_deeply_nested_values_are_redacted() -> None:
    """This applies to a cyclic list, too."""
    ring: list[object] = []
    ring.append(ring)
    assert hide_secrets_in(ring)


def test_redaction_of_results_is_off_by_default() -> None:
    """Results are recorded unchanged by default."""
    given = {"password": "hunter22", "a": [EVERY[0].text]}
    assert Redaction().value(given) is given
    assert Redaction(patterns=True).value(given)["password"] == "[redacted: password]"
    assert Redaction().text(EVERY[0].text) == EVERY[0].text


@pytest.mark.usefixtures("more")
def test_patterns_can_be_added() -> None:
    """They apply in the whole process."""
    before = len(redaction._more)  # other tests may have added some
    add_patterns([r"ACME-\d{4}", re.compile("acme-[a-z]+", re.IGNORECASE)])
    add_patterns([r"ACME-\d{4}"])
    assert hide_secrets("ACME-1234 and ACME-xyz") == "[redacted] and [redacted]"
    assert len(redaction._more) == before + 2
