"""New ids, and the rule for ids that users choose.

Randomness is passed in, like time: no other module of Limpet makes ids.
"""

import random
import re
import secrets
from typing import Protocol

from limpet.clock import Clock
from limpet.errors import InvalidArgument

__all__ = ["ALPHABET", "Ids", "RandomIds", "SeededIds", "check_id", "encode_bits"]

LONGEST_ID = 200
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:@+=-]{{0,{LONGEST_ID - 1}}}")
_ID_FIX = f"Use 1 to {LONGEST_ID} letters, digits or ._:@+=- and start with a letter or digit."
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""The characters of new ids, each for 5 bits: digits and lower-case letters that are not mistaken for others."""
_PAIRS = [first + second for first in ALPHABET for second in ALPHABET]


def check_id(id: object) -> str:
    """Return the id if it is valid for a run, a conversation, a worker or a command. Raises InvalidArgument."""
    if not isinstance(id, str) or _ID.fullmatch(id) is None:
        raise InvalidArgument(path="id", reason=repr(str(id)[:300]), fix=_ID_FIX)
    return str.__str__(id)  # msgspec encodes no subclass of str


def encode_bits(bits: int, length: int) -> str:
    """Return the lowest bits of an integer as text of this length: 5 bits for each character."""
    return "".join(ALPHABET[(bits >> 5 * place) & 31] for place in reversed(range(length)))


class Ids(Protocol):
    """A source of new ids and random bits."""

    def new(self) -> str:
        """Return a new id, which sorts after the ids of earlier milliseconds."""

    def bits(self, count: int) -> int:
        """Return a random integer of `count` bits."""


class RandomIds:
    """Ids of 26 lower-case characters: 48 bits of time in milliseconds, then 80 random bits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def new(self) -> str:
        """Return a new id, which sorts after the ids of earlier milliseconds."""
        return _text((self._clock.now() // 1000) << 80 | self.bits(80))

    def bits(self, count: int) -> int:
        """Return a random integer of `count` bits."""
        return secrets.randbits(count)


class SeededIds:
    """The same sequence of ids for the same seed, for tests."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._count = 0

    def new(self) -> str:
        """Return the next id of this seed."""
        self._count += 1
        return _text(self._count << 80 | self.bits(80))

    def bits(self, count: int) -> int:
        """Return the next `count` bits of this seed."""
        return self._random.getrandbits(count)


def _text(number: int) -> str:
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])
