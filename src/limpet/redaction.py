"""Redaction: remove text that looks like a credential, or is the value of a live `Secret`, from output and from the
log.

The patterns find credentials with a known form: prefixes of well-known services, headers, assignments, and URLs with a
password. Each pattern runs in time proportional to the text: repetitions are possessive or bounded, and a pattern that
needs something after the credential cannot start inside another match. Values of live `Secret` objects are found
verbatim.
"""

import re
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from threading import RLock
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

__all__ = [
    "NOTHING",
    "Redaction",
    "add_patterns",
    "forget_secret",
    "hide_secrets",
    "hide_secrets_in",
    "redact",
    "remember_secret",
]

# Parts of patterns. An unquoted value ends at a character that ends a value in text, URLs and code.
_BARE = r"[^\s\"'`&,;<>()\[\]{}|\\]"
_NOT = (
    r"(?!\[secret\]|\[redacted|\*{3}|\.\.\.|=|\$[A-Z_]{2,}\b|\$?\{[A-Za-z_.!:]{0,40}\}|<[A-Za-z _-]{1,40}>|%[sr(]"
    r"|(?:None|True|False|null|true|false|undefined)\b)"
)
_CODE = (
    r"(?!(?:self|cls|os|env|settings|config|cfg|args|options|request|ctx)\.)"
    r"(?![A-Za-z_]{0,40}(?:word|oken|ecret|ey)[,)])"
)
_EQUALS = r"\\{0,8}[\"']?\]?\s{0,3}(?:=>|:=|[=:])\s{0,3}"
_WORD = r"(?:password|passwd|passphrase|pwd)"
_NAME = (
    r"(?:secret|(?<!next)(?<!page)(?<!next[_-])(?<!page[_-])token"
    r"|(?:api|access|secret|private|account|auth|signing|encryption)[_-]?key|credentials?|connection[_-]?string)"
)


def _assigned(name: str, least: int) -> str:
    """Return a pattern for a name, an assignment sign, and a value: quoted, quoted inside quoted text, or bare."""
    opened = rf"(?:\\{{1,8}}\"(?=[^\\\"\n]{{{least}}})|[\"'](?=[^\"'\n]{{{least}}}))"
    quoted = rf"(?P<keep1>{_EQUALS}[bru]{{0,2}}{opened})(?![,;:)\]}}])"
    inside = r"(?:(?<=\\\")[^\"\\\n]++|(?<!\\[\"'])(?<=\")(?:[^\"\\\n]|\\.)++|(?<=')(?:[^'\\\n]|\\.)++)"
    bare = (
        rf"(?P<keep2>\\?[\"']?\]?\s{{0,3}}(?:=>|:=|=)\s{{0,3}}){_NOT}{_CODE}(?!(?<=pwd=)/|[bru]{{1,2}}[\"'])"
        rf"{_BARE}{{{least},}}+(?![(\[])"
    )
    yaml = (
        rf"(?P<keep3>\s{{0,3}}:\s{{1,3}}){_NOT}"
        rf"(?={_BARE}{{0,80}}[0-9])(?={_BARE}{{0,80}}[A-Za-z]){_BARE}{{{max(least, 6)},}}+(?![(\[])"
    )
    return rf"(?i)(?P<keep>{name})(?:{quoted}{_NOT}{inside}|{bare}|{yaml})"


class _Pattern(NamedTuple):
    """The form of one type of credential. Groups whose names start with `keep` are not redacted."""

    what: str
    finds: str
    hints: tuple[str, ...]
    """The pattern is only tried if the text, in lower case, contains one of these."""


# A credential does not follow a letter or digit. Long patterns that may fail also do not start inside a possible match.
_L, _LL = r"(?<![A-Za-z0-9])", r"(?<![A-Za-z0-9_-])"
_PATTERNS = (
    _Pattern(
        "private key",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----)[\s\S])*+(?:-----END [A-Z0-9 ]{0,60}-----)?",
        ("private key",),
    ),
    _Pattern("age key", rf"{_L}AGE-SECRET-KEY-1[A-Z0-9]{{40,}}+", ("age-secret-key-1",)),
    _Pattern("anthropic key", rf"{_L}sk-ant-[A-Za-z0-9_-]{{16,}}+", ("sk-ant-",)),
    _Pattern(
        "limpet token", rf"{_L}lp_[a-z0-9-]{{1,40}}_[a-z0-9]{{12}}_[a-z0-9]{{16,}}+(?:_[0-9a-f]{{1,8}})?", ("lp_",)
    ),
    _Pattern("limpet link", rf"{_L}lpd_[A-Za-z0-9_-]{{20,}}+(?:\.[A-Za-z0-9_-]{{1,43}})?", ("lpd_",)),
    _Pattern("openai key", rf"{_L}sk-(?=[A-Za-z_-]{{0,80}}[0-9])[A-Za-z0-9_-]{{20,}}+", ("sk-",)),
    _Pattern(
        "github token", rf"{_L}(?:gh[pousr]_[A-Za-z0-9]{{30,}}+|github_pat_[A-Za-z0-9_]{{22,}}+)", ("gh", "_pat_")
    ),
    _Pattern(
        "gitlab token",
        rf"{_L}gl(?:pat|dt|rt|ft|cbt|ptt|oas|soat|imt|agent)-[A-Za-z0-9_-]{{20,}}+",
        ("gl",),
    ),
    _Pattern(
        "slack token",
        rf"{_L}xox[abceoprs](?:\.xox[abp])?-[A-Za-z0-9-]{{10,}}+|{_L}xapp-[0-9]-[A-Za-z0-9-]{{10,}}+",
        ("xox", "xapp-"),
    ),
    _Pattern(
        "webhook address",
        r"(?P<keep>hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/[0-9]{5,25}/)[A-Za-z0-9/_-]{20,}+",
        ("hooks.slack.com/", "/api/webhooks/"),
    ),
    _Pattern("telegram token", rf"{_L}[0-9]{{8,10}}:AA[A-Za-z0-9_-]{{33}}", (":aa",)),
    _Pattern(
        "stripe key",
        rf"{_L}(?:[sr]k_(?:live|test)_[A-Za-z0-9]{{16,}}+|whsec_[A-Za-z0-9+/=]{{20,}}+)",
        ("k_live_", "k_test_", "whsec_"),
    ),
    _Pattern("aws key", rf"{_L}(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{{16}}(?![A-Za-z0-9])", ("akia", "asia", "abia", "acca")),
    _Pattern(
        "google key",
        rf"{_L}(?:AIza[A-Za-z0-9_-]{{35}}|ya29\.[A-Za-z0-9_-]{{20,}}+|GOCSPX-[A-Za-z0-9_-]{{20,}}+|1//0[A-Za-z0-9_-]{{20,}}+)",
        ("aiza", "ya29.", "gocspx-", "1//0"),
    ),
    _Pattern("npm token", rf"{_L}npm_[A-Za-z0-9]{{30,}}+", ("npm_",)),
    _Pattern("pypi token", rf"{_L}pypi-[A-Za-z0-9_-]{{40,}}+", ("pypi-",)),
    _Pattern("hugging face token", rf"{_L}(?:hf|api_org)_[A-Za-z0-9]{{30,}}+", ("hf_", "api_org_")),
    _Pattern("sendgrid key", rf"{_L}SG\.[A-Za-z0-9_-]{{16,64}}\.[A-Za-z0-9_-]{{16,}}+", ("sg.",)),
    _Pattern("twilio key", rf"{_L}SK[0-9a-f]{{32}}(?![A-Za-z0-9])", ("sk",)),
    _Pattern("mail key", rf"{_L}(?:key-[0-9a-f]{{32}}|[0-9a-f]{{32}}-us[0-9]{{1,2}})(?![A-Za-z0-9])", ("key-", "-us")),
    _Pattern("digitalocean token", rf"{_L}do[opr]_v1_[a-f0-9]{{40,}}+", ("_v1_",)),
    _Pattern("shopify token", rf"{_L}shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{{32}}", ("shp",)),
    _Pattern("square token", rf"{_L}(?:sq0(?:atp|csp)-[A-Za-z0-9_-]{{20,}}+|EAAA[A-Za-z0-9_-]{{60}})", ("sq0", "eaaa")),
    _Pattern("databricks token", rf"{_L}dapi[0-9a-f]{{32}}", ("dapi",)),
    _Pattern("vault token", rf"{_L}hv[sbr]\.[A-Za-z0-9_-]{{24,}}+", ("hvs.", "hvb.", "hvr.")),
    _Pattern(
        "service token",
        rf"{_L}(?:(?:glsa|glc|dckr_pat|lin_api|ntn|gsk|r8|nvapi|pplx|pscale_tkn|xai|fo1|tfp|rdme|sntrys|phc|phx|dp\.pt)"
        r"[_.-](?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_=-]{24,}+|(?:PMAK|NRAK|HRKU)-[A-Za-z0-9-]{24,}+"
        r"|secret_[A-Za-z0-9]{40,}+|[A-Za-z0-9]{3}[0-9]Q~[A-Za-z0-9_~.-]{30,}+)",
        (
            "gl",
            "_pat",
            "lin_api",
            "ntn",
            "gsk",
            "r8",
            "nvapi",
            "pplx",
            "pscale",
            "xai",
            "fo1",
            "tfp",
            "rdme",
            "sntrys",
            "phc",
            "phx",
            "dp.pt",
            "pmak-",
            "nrak-",
            "hrku-",
            "secret_",
            "q~",
        ),
    ),
    _Pattern("jwt", rf"{_LL}eyJ[A-Za-z0-9_-]{{8,}}+\.eyJ[A-Za-z0-9_-]{{4,}}+(?:\.[A-Za-z0-9_-]*+)?", ("eyj",)),
    _Pattern(
        "azure key",
        r"(?P<keep>(?:AccountKey|SharedAccessKey|SharedAccessSignature)=)(?!\[)[A-Za-z0-9+/=%&_.-]{16,}+",
        ("accountkey=", "sharedaccess"),
    ),
    _Pattern(
        "signature",
        r"(?i)(?P<keep>[?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=)(?!\[)[A-Za-z0-9%+/=_.~-]{16,}+",
        ("sig",),
    ),
    _Pattern(
        "password",
        r"(?P<keep>://[^\s/:@?#\"'<>]{0,256}:)(?!\[redacted|\[secret)[^\s/?#\"'<>]{1,256}(?=@)",
        ("://",),
    ),
    _Pattern("token", r"(?P<keep>://)[A-Za-z0-9_-]{20,256}(?=@)", ("://",)),
    _Pattern(
        "authorization",
        r"(?i)(?P<keep>authorization\\?[\"']?\s{0,2}[:=]\s{0,2}\\?[\"']?\s?"
        r"(?:(?:basic|bearer|token|apikey|bot|splunk)\s{1,3}(?=[^\s])|(?=(?:digest|negotiate|ntlm|aws4-hmac-sha256|hawk)\s)"
        rf"|(?={_BARE}{{0,80}}[0-9])(?={_BARE}{{8}})))"
        r"(?!\[redacted|\[secret|[{$<%])(?:(?:digest|negotiate|ntlm|aws4-hmac-sha256|hawk)\s[^\r\n\"']++|[^\s\"'\\,;]++)",
        ("authorization",),
    ),
    _Pattern(
        "bearer token",
        r"(?i)(?P<keep>(?<![a-z0-9])(?:bearer|basic)\s{1,3})(?=[A-Za-z._~+/=-]{0,200}[0-9])[A-Za-z0-9._~+/=-]{16,}+",
        ("bearer", "basic"),
    ),
    _Pattern(
        "cookie",
        r"(?i)(?P<keep>(?<![a-z0-9])(?:set-)?cookie\\?[\"']?\s{0,2}[:=]\s{0,2}\\?[\"']?)(?=[A-Za-z0-9_.-]{1,80}=)"
        r"(?:(?<==)\\{0,4}\"[^\"\\\r\n]*+\\{0,4}\"|[^\r\n\"'\\])++",
        ("cookie",),
    ),
    _Pattern(
        "password",
        r"(?i)(?P<keep>(?<![a-z0-9])(?:identified\s{1,3}by|password)\s{1,3}')(?!\[redacted|\[secret)[^'\n]++(?=')",
        ("identified", "password"),
    ),
    _Pattern(
        "secret",
        rf"(?i)(?P<keep>(?<![^\s\"'])--?(?:[a-z-]{{0,20}}-)?(?:{_WORD}|token|api-?key|secret(?:-key)?)[ =]{{1,2}}"
        rf"[\"']?){_NOT}(?!-){_BARE}{{4,}}+",
        ("-password", "-passwd", "-passphrase", "-pwd", "-token", "key", "-secret"),
    ),
    _Pattern("password", _assigned(_WORD, 1), ("passw", "passphrase", "pwd")),
    _Pattern("secret", _assigned(_NAME, 6), ("secret", "token", "key", "credential", "connection")),
)
_SENSITIVE = rf"(?i){_WORD}$|{_NAME}$|(?:^|-)authorization$|^(?:set-)?cookie$|^x-api-key$"
_HARMLESS = rf"(?!{_NOT})|$"

# Stored JSON has at most 64 levels, and replies wrap it in a few more. Nothing deeper is stored.
_DEEPEST = 100
# A shorter secret would match everywhere.
_SHORTEST = 6
# Facts about this many keys of at most this length are kept: results have the same keys again and again.
_KEYS, _LONGEST_KEY = 2_048, 100

_known: tuple[tuple[int, tuple[str, ...]], ...] = ()
"""Text forms of live secrets, by owner. Replaced as a whole, since threads and finalizers may read it at any time."""
_forgotten: "deque[int]" = deque()
"""Owners whose secrets were freed. A finalizer can run at any point, so it only appends here and takes no lock."""
_changing = RLock()
_more: list["re.Pattern[str]"] = []


_Hint = tuple[str, int]
"""A hint with the index of its pattern."""
_HINTS: Sequence[_Hint] = [(hint, place) for place, each in enumerate(_PATTERNS) for hint in each.hints]


@cache
def _compiled(place: int) -> tuple["re.Pattern[str]", str]:
    """Compile a pattern on first use. Returns it with the text that replaces its matches."""
    return re.compile(_PATTERNS[place].finds), f"[redacted: {_PATTERNS[place].what}]"


def redact(text: str) -> str:
    """Replace text that looks like a credential with the name of its type, such as `[redacted: jwt]`."""
    return _redacted(text, _HINTS)


def _redacted(text: str, hints: Sequence[_Hint]) -> str:
    """Redact a text that contains no other hints than these."""
    for place in _places(text, hints):
        pattern, instead = _compiled(place)
        text = pattern.sub(lambda found, instead=instead: _kept(found) + instead, text)  # type: ignore[misc]
    for pattern in _more:
        text = pattern.sub("[redacted]", text)
    return text


def _places(text: str, hints: Sequence[_Hint] = _HINTS) -> list[int]:
    """Return the indexes of the patterns that may match a text."""
    lower = text.lower()
    return sorted({place for hint, place in hints if hint in lower})


def _kept(found: "re.Match[str]") -> str:
    return "".join(part for part in found.groupdict().values() if part)


def hide_secrets(text: str) -> str:
    """Return a text for output: without credentials by form, and without the values of live secrets."""
    return _hidden(text, _HINTS)


def _hidden(text: str, hints: Sequence[_Hint]) -> str:
    """Hide the secrets in a text that contains no other hints than these."""
    if _forgotten:
        _change()
    for _, forms in _known:
        for form in forms:
            if form in text:
                text = text.replace(form, "[secret]")
    return _redacted(text, hints)


def hide_secrets_in(value: Any) -> Any:
    """Apply `hide_secrets` to all text in a JSON value, and redact values whose keys name a secret.

    Returns the value itself if it cannot contain any. A key that names a secret contains a hint, too.
    """
    hints = _hints_in(value)
    if not hints and not _known and not _more:
        return value
    return _walk(value, partial(_hidden, hints=hints), 0)


def _hints_in(value: Any) -> Sequence[_Hint]:
    """Return the hints that a JSON value contains; all of them for a value that is not JSON."""
    try:
        lower = msgspec.json.encode(value, enc_hook=_text).decode().lower()
    except Exception:  # noqa: BLE001 - objects of any kind may be inside
        return _HINTS
    return [each for each in _HINTS if each[0] in lower]


def _text(unknown: object) -> str | None:
    """Return the text of an object that msgspec does not encode."""
    return str.__str__(unknown) if isinstance(unknown, str) else None


def remember_secret(owner: int, value: str | bytes) -> None:
    """Redact a value until its owner is forgotten: verbatim, and as escaped in JSON, URLs, base64 and hex.

    Values shorter than 6 characters are ignored.
    """
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    text = data.decode("utf-8", "replace")
    if len(text) < _SHORTEST:
        return
    escaped = msgspec.json.encode(text).decode()[1:-1]
    forms = {text, escaped, repr(text)[1:-1], quote(data, safe=""), b64encode(data).decode().rstrip("="), data.hex()}
    _change((owner, tuple(sorted(forms, key=len, reverse=True))))


def forget_secret(owner: int) -> None:
    """Stop redacting the value of an owner that no longer exists."""
    _forgotten.append(owner)


def _change(*new: tuple[int, tuple[str, ...]]) -> None:
    """Remove forgotten owners, and add new ones."""
    global _known  # noqa: PLW0603
    with _changing:
        gone = {_forgotten.popleft() for _ in range(len(_forgotten))}
        _known = (*(each for each in _known if each[0] not in gone), *new)


def add_patterns(patterns: Iterable[str | re.Pattern[str]]) -> None:
    """Also redact matches of these patterns, from now on and everywhere in this process."""
    known = {each.pattern for each in _more}
    found = [re.compile(each) if isinstance(each, str) else each for each in patterns]
    _more.extend(each for each in found if each.pattern not in known)


class Redaction:
    """Redaction of recorded data, which is off or uses the patterns."""

    def __init__(self, *, patterns: bool = False) -> None:
        self.is_on = patterns

    def text(self, text: str) -> str:
        """Return a text as recorded."""
        return redact(text) if self.is_on else text

    def texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return texts as recorded."""
        return tuple(self.text(each) for each in texts)

    def value(self, value: Any) -> Any:
        """Return a JSON value as recorded."""
        return _walk(value, redact, 0) if self.is_on else value


NOTHING = Redaction()
"""Records everything unchanged."""


def _walk(value: Any, change: Callable[[str], str], depth: int) -> Any:
    if isinstance(value, str):
        return change(value)
    if depth > _DEEPEST:
        return value
    if isinstance(value, dict):
        return _members(value, change, depth + 1)
    if type(value) is list or type(value) is tuple:
        return type(value)(_walk(each, change, depth + 1) for each in value)
    return value


def _members(members: dict[Any, Any], change: Callable[[str], str], depth: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in members.items():
        if not isinstance(key, str):
            found[key] = _walk(value, change, depth)
            continue
        about = _about(key)
        name = _free(change(key) if about.may_match or _known or _more else key, found)
        instead = _secret(key, about, value) if about.names_secret and isinstance(value, str) else None
        found[name] = instead or _walk(value, change, depth)
    return found


def _free(name: str, taken: dict[Any, Any]) -> str:
    """Return a name that is not taken, since two keys may be equal after redaction."""
    number, free = 2, name
    while free in taken:
        number, free = number + 1, f"{name} ({number})"
    return free


class _Key(NamedTuple):
    """Facts about a key of an object."""

    may_match: bool
    """Whether a pattern may match the key itself."""
    names_secret: bool
    is_password: bool


def _about(key: str) -> _Key:
    """Return the facts about a key. Those about short keys are kept."""
    return _about_short(key) if len(key) <= _LONGEST_KEY else _about_any(key)


def _about_any(key: str) -> _Key:
    return _Key(
        may_match=bool(_places(key)),
        names_secret=re.search(_SENSITIVE, key) is not None,
        is_password=re.search(rf"(?i){_WORD}$", key) is not None,
    )


_about_short = lru_cache(_KEYS)(_about_any)


def _secret(key: str, about: _Key, value: str) -> str | None:
    """Return the replacement of a value whose key names a secret, or None if the value is harmless."""
    if len(value) < (1 if about.is_password else _SHORTEST) or re.match(_HARMLESS, value) is not None:
        return None
    if value.startswith("/") and key.lower().endswith("pwd"):
        return None  # The working directory of a shell.
    return f"[redacted: {'password' if about.is_password else 'secret'}]"
