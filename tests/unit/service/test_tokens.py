"""Access tokens: their form, and the caller that one stands for."""

from collections.abc import AsyncIterator
from typing import Any
from zlib import crc32

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from limpet.clock import FrozenClock, microseconds
from limpet.engine.execution.principal import Principal
from limpet.errors import IdConflict, InvalidArgument, Tampered
from limpet.ids import SeededIds
from limpet.redaction import hide_secrets
from limpet.service.tokens import create_token, find_caller, parse_token, token_id
from limpet.stores import MasterKeys, Store
from limpet.stores.memory import MemoryBackend

ANN = Principal(name="ann", kind="person", groups=("finance",), roles=("operator", "approver"), tenant="main")
BOT = Principal(name="bot", kind="service", roles=("approver",), rights=("approve-by-agent", "raw"), tenant="acme-2")
KEYS = MasterKeys(lambda: bytes(range(32)))


@pytest.fixture(params=[None, KEYS], ids=["plain", "encrypted"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A store in memory, whose clock stands still."""
    async with Store(MemoryBackend(FrozenClock()), keys=request.param) as found:
        yield found


def clock_of(store: Store) -> FrozenClock:
    """Return the clock of a store."""
    clock = store._backend._tables._clock  # type: ignore[attr-defined]
    assert isinstance(clock, FrozenClock)
    return clock


async def new_token(store: Store, who: Principal = ANN, **more: Any) -> str:
    """Return the text of a new token."""
    return (await create_token(store, SeededIds(7), who, **more)).token


@pytest.mark.parametrize("who", [ANN, BOT], ids=lambda who: who.name)
async def test_a_token_stands_for_its_caller(store: Store, who: Principal) -> None:
    text = await new_token(store, who)
    assert await find_caller(store, text) == replace(who, door="http")


async def test_a_token_names_its_tenant_and_id(store: Store) -> None:
    """Both are found without a store, and the id also from the whole text."""
    made = await create_token(store, SeededIds(7), BOT, by="root")
    assert parse_token(made.token) == ("acme-2", made.info.id)
    assert token_id(made.token) == token_id(made.info.id) == made.info.id
    assert (made.info.created_by, made.info.status) == ("root", "valid")


async def test_the_secret_is_not_stored_or_shown(store: Store) -> None:
    """The row has a hash, which is encrypted in an encrypted store; what is printed hides the text."""
    made = await create_token(store, SeededIds(7), ANN)
    secret = made.token.split("_")[3]
    assert len(secret) == 52
    assert secret not in repr(made)
    assert secret not in hide_secrets(f"log in with {made.token}")
    [row] = store._backend.read_tokens(None, 1)
    assert secret not in repr(row)
    assert (row.name == "ann") == (row.roles == ANN.roles) == (not store.codec.is_private)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text + "0",
        lambda text: text.upper(),
        lambda text: f" {text}",
        lambda text: f"{text}\n",
        lambda text: text.replace("lp_main", "lp_MAIN"),
        lambda text: text.replace("lp_main", "lp_main_main"),
        lambda text: text.replace("lp_main", "lp_../x"),
        lambda text: text[:20] + ("a" if text[20] != "a" else "b") + text[21:],
        lambda text: text.replace("_", "\u005f\u0660", 1),
        lambda _: "",
        lambda _: "\ud800" * 90,
        lambda _: "lp_" + "a" * 1_000_000,
        lambda _: "lp____",
    ],
)
async def test_text_that_is_no_token_is_refused_without_a_lookup(store: Store, change: Any) -> None:
    assert parse_token(change(await new_token(store))) is None
    assert await find_caller(store, change(await new_token(store, replace(ANN, name="bob"), command="c"))) is None


async def test_another_secret_with_a_right_checksum_is_refused(store: Store) -> None:
    """Also an unknown id."""
    text = await new_token(store)
    start, id, secret, _ = text.rsplit("_", 3)
    for known, other in ((id, secret[::-1]), (id[::-1], secret)):
        forged = f"{start}_{known}_{other}"
        forged = f"{forged}_{crc32(forged.encode()):08x}"
        assert parse_token(forged) == ("main", known)
        assert await find_caller(store, forged) is None
    assert await find_caller(store, text) is not None


async def test_the_tenant_cannot_be_changed(store: Store) -> None:
    """The hash covers it, so a token of one tenant is not valid under another name."""
    start = (await new_token(store)).rpartition("_")[0].replace("lp_main", "lp_other")
    assert await find_caller(store, f"{start}_{crc32(start.encode()):08x}") is None


async def test_an_expired_token_is_refused(store: Store) -> None:
    """From the time on that was given, by the store's clock."""
    expires = await store.now() + microseconds("1h")
    text = await new_token(store, expires=expires)
    clock_of(store).set(expires - 1)
    assert await find_caller(store, text) is not None
    clock_of(store).set(expires)
    assert await find_caller(store, text) is None


async def test_a_revoked_token_is_refused(store: Store) -> None:
    text = await new_token(store)
    assert await store.revoke_token(token_id(text), "eve")
    assert await find_caller(store, text) is None


async def test_a_repeated_command_creates_one_token(store: Store) -> None:
    """The second one is refused, and says what to do: the text cannot be returned again."""
    text = await new_token(store, command="key-1")
    with pytest.raises(IdConflict, match="another key") as error:
        await create_token(store, SeededIds(8), ANN, command="key-1")
    assert error.value.id == token_id(text)
    await create_token(store, SeededIds(8), ANN, command="key-2")
    assert len(await store.tokens()) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a\nb"),
        ("name", "x" * 201),
        ("kind", "agent"),
        ("roles", ()),
        ("roles", ("root",)),
        ("rights", ("all",)),
        ("rights", ("approve-by-agent",)),
        ("groups", ("",)),
        ("groups", tuple(map(str, range(101)))),
        ("tenant", ""),
        ("tenant", "Main"),
        ("tenant", "a_b"),
        ("tenant", "a" * 41),
    ],
)
async def test_a_caller_that_no_token_can_stand_for_is_refused(store: Store, field: str, value: Any) -> None:
    """Before anything is stored. The error names the argument."""
    with pytest.raises(InvalidArgument) as error:
        await create_token(store, SeededIds(), replace(ANN, **{field: value}))
    assert error.value.path == field
    assert await store.tokens() == []


async def test_a_token_that_expires_in_the_past_is_refused(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="not in the future"):
        await create_token(store, SeededIds(), ANN, expires=await store.now())


async def test_an_encrypted_row_cannot_be_forged() -> None:
    """Roles, groups and digests of other tokens are refused; the token can still be revoked."""
    async with Store(MemoryBackend(FrozenClock()), keys=KEYS) as store:
        text, other = await new_token(store), await new_token(store, BOT, command="other")
        tables = store._backend._tables  # type: ignore[attr-defined]
        mine, theirs = (tables.token_rows[token_id(each)] for each in (text, other))
        for field in ("name", "roles", "rights", "digest"):
            tables.token_rows[mine.id] = replaced(mine, **{field: getattr(theirs, field)})
            with pytest.raises(Tampered):
                await find_caller(store, text)
        assert await store.revoke_token(mine.id, "eve")
