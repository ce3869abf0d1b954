"""Hide the user's text in the rows of an encrypted store: goals, labels, contracts, tokens, names and
categories of scores, and digests of requests.

Ids, enums and numbers stay readable, since claiming, lists and filters use them.
"""

from collections.abc import Callable

from msgspec.structs import replace

from limpet.errors import LimpetError, Tampered
from limpet.events import Codec, Packed, canonical
from limpet.stores.rows import ContractRow, DutyRow, RequestRow, RunFilter, RunRow, ScoreFilter, ScoreRow, TokenRow

__all__ = [
    "hide_contract",
    "hide_duty",
    "hide_filter",
    "hide_goal",
    "hide_request",
    "hide_revoker",
    "hide_row",
    "hide_score",
    "hide_score_filter",
    "hide_token",
    "is_readable",
    "reveal_contract",
    "reveal_duty",
    "reveal_request",
    "reveal_row",
    "reveal_score",
    "reveal_token",
]


def hide_row(codec: Codec, row: RunRow) -> RunRow:
    """Return a row as stored."""
    if not codec.is_private:
        return row
    return replace(row, goal=hide_goal(codec, row.id, row.goal), labels=_hide_labels(codec, row.labels))


def hide_goal(codec: Codec, run: str, goal: str) -> str:
    """Return a goal as stored."""
    return codec.hide(goal, f"goal:{run}")


def reveal_row(codec: Codec, row: RunRow) -> RunRow:
    """Return a stored row with its original text. Raises Tampered."""
    if not codec.is_private:
        return row
    try:
        labels = {}
        for hidden, value in row.labels.items():
            name = codec.reveal(hidden, "label")
            labels[name] = codec.reveal(value, f"label:{name}")
        return replace(row, goal=codec.reveal(row.goal, f"goal:{row.id}"), labels=labels)
    except ValueError as error:
        raise Tampered(run=row.id, seq=row.seq, reason=f"the row cannot be read ({error})") from error


def is_readable(codec: Codec, row: RunRow) -> bool:
    """Return whether a stored row can be revealed. A run whose row cannot is not driven, and blocks no others."""
    try:
        reveal_row(codec, row)
    except LimpetError:
        return False
    return True


def hide_request(codec: Codec, row: RequestRow) -> RequestRow:
    """Return a request's row as stored."""
    return replace(row, digest=codec.hide(row.digest, f"request:{row.id}")) if codec.is_private else row


def reveal_request(codec: Codec, row: RequestRow) -> RequestRow:
    """Return a stored request's row with its original text. Raises Tampered."""
    if not codec.is_private:
        return row
    try:
        return replace(row, digest=codec.reveal(row.digest, f"request:{row.id}"))
    except ValueError as error:
        raise Tampered(run=row.run, seq=row.seq, reason=f"the request cannot be read ({error})") from error


def hide_score(codec: Codec, row: ScoreRow) -> ScoreRow:
    """Return a score's row as stored. Equal names and categories look equal, so that they can be found."""
    if not codec.is_private:
        return row
    text = None if row.text is None else _hide_category(codec, row.name, row.text)
    return replace(row, name=_hide_score_name(codec, row.name), text=text)


def reveal_score(codec: Codec, row: ScoreRow) -> ScoreRow:
    """Return a stored score's row with its original text. Raises Tampered."""
    if not codec.is_private:
        return row
    try:
        name = codec.reveal(row.name, "score")
        return replace(row, name=name, text=None if row.text is None else codec.reveal(row.text, f"score:{name}"))
    except ValueError as error:
        raise Tampered(run=row.run, seq=row.seq, reason=f"the score cannot be read ({error})") from error


def hide_score_filter(codec: Codec, where: ScoreFilter) -> ScoreFilter:
    """Return a filter that matches hidden names."""
    if not codec.is_private or where.name is None:
        return where
    return replace(where, name=_hide_score_name(codec, where.name))


def _hide_score_name(codec: Codec, name: str) -> str:
    return codec.hide(name, "score", findable=True)


def _hide_category(codec: Codec, name: str, text: str) -> str:
    return codec.hide(text, f"score:{name}", findable=True)


def hide_contract(codec: Codec, row: ContractRow) -> ContractRow:
    """Return a contract as stored. Equal hashes look equal, so that a contract is not stored again."""
    about = _about_contract(row)
    packed = codec.pack(row.contract, about)
    hash = codec.hide(row.hash, about, findable=True)
    return replace(row, hash=hash, contract=packed.data, codec=packed.codec, key_id=packed.key_id)


def reveal_contract(codec: Codec, row: ContractRow) -> ContractRow:
    """Return a stored contract in its original form. Raises Tampered."""
    about = _about_contract(row)
    try:
        contract = codec.unpack(Packed(row.codec, row.key_id, row.contract), about)
        return replace(row, hash=codec.reveal(row.hash, about), contract=contract, codec="", key_id="")
    except ValueError as error:
        raise Tampered(run=row.agent, seq=0, reason=f"contract {row.version} cannot be read ({error})") from error


def _about_contract(row: ContractRow) -> str:
    """Return what a contract is bound to, in JSON, since names may contain any character."""
    return f"contract:{canonical([row.agent, row.version]).decode()}"


def hide_filter(codec: Codec, where: RunFilter) -> RunFilter:
    """Return a filter that matches hidden labels. It has no text, which cannot be searched in hidden rows."""
    if not codec.is_private:
        return where
    scored = where.scored
    if scored is not None:
        text = None if scored.text is None else _hide_category(codec, scored.name, scored.text)
        scored = scored._replace(name=_hide_score_name(codec, scored.name), text=text)
    return replace(where, labels=_hide_labels(codec, where.labels), text=None, scored=scored)


def _hide_labels(codec: Codec, labels: dict[str, str]) -> dict[str, str]:
    return {
        codec.hide(name, "label", findable=True): codec.hide(value, f"label:{name}", findable=True)
        for name, value in labels.items()
    }


def hide_duty(codec: Codec, row: DutyRow) -> DutyRow:
    """Return a duty's row as it is stored: why it failed may contain anything."""
    return replace(row, error=codec.hide(row.error, f"duty:{row.name}")) if codec.is_private and row.error else row


def reveal_duty(codec: Codec, row: DutyRow) -> DutyRow:
    """Return a duty's row as it was given. It is only shown, so one that cannot be read stops nothing."""
    if not codec.is_private or not row.error:
        return row
    try:
        return replace(row, error=codec.reveal(row.error, f"duty:{row.name}"))
    except (ValueError, LimpetError):
        return replace(row, error="the reason cannot be decrypted")


def hide_token(codec: Codec, row: TokenRow) -> TokenRow:
    """Return a token's row as stored. All that makes a caller is bound to the token's id, and cannot be forged."""
    if not codec.is_private:
        return row
    return _changed_token(row, codec.hide)


def reveal_token(codec: Codec, row: TokenRow) -> TokenRow:
    """Return a stored token's row with its original text. Raises Tampered."""
    if not codec.is_private:
        return row
    try:
        return _changed_token(row, codec.reveal)
    except ValueError as error:
        raise Tampered(run=row.id, seq=0, reason=f"the token cannot be read ({error})") from error


def hide_revoker(codec: Codec, token: str, by: str) -> str:
    """Return who revoked a token as stored. The rest of its row need not be readable."""
    return codec.hide(by, _about_revoker(token))


def _about_revoker(token: str) -> str:
    return f"token revoker:{token}"


def _changed_token(row: TokenRow, change: Callable[[str, str], str]) -> TokenRow:
    def each(texts: tuple[str, ...], what: str) -> tuple[str, ...]:
        return tuple(change(text, f"{what}:{row.id}") for text in texts)

    return replace(
        row,
        name=change(row.name, f"token:{row.id}"),
        groups=each(row.groups, "token group"),
        roles=each(row.roles, "token role"),
        rights=each(row.rights, "token right"),
        digest=change(row.digest.decode("latin-1"), f"token digest:{row.id}").encode("latin-1"),
        created_by=change(row.created_by, f"token creator:{row.id}"),
        revoked_by=change(row.revoked_by, _about_revoker(row.id)) if row.revoked is not None else "",
    )
