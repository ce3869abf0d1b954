"""Secrets: values that code can use, but that are never recorded.

A `Secret` appears as `[secret]` wherever it is printed, formatted, logged or dumped to JSON. A secret that was loaded
from a log is withheld: the log records that it existed, not its value. While a secret is alive, no output of Limpet
contains its value.
"""

import hmac
from typing import Any, Final, Generic, NoReturn, Self, get_origin
from weakref import finalize

from typing_extensions import TypeVar

from limpet.errors import SecretWithheld
from limpet.redaction import forget_secret, remember_secret

__all__ = ["MARK", "Secret", "hidden", "is_secret"]

MARK: Final = "[secret]"
"""Text that replaces a secret in output and in the log."""
SCHEMA: Final = {"type": "string", "format": "password", "writeOnly": True}
# The limit of JSON in events; deeper values are refused when they are stored.
_DEEPEST = 64
V = TypeVar("V", str, bytes, default=str)
_made = False


class Secret(Generic[V]):
    """A value that is never recorded. `reveal()` returns it where it is used."""

    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: V) -> None:
        if not isinstance(value, str | bytes):
            raise TypeError(f"a Secret must be str or bytes, not {type(value).__name__}")
        self._keep(value)

    def _keep(self, value: str | bytes | None) -> None:
        global _made  # noqa: PLW0603 - until the first, `hidden` skips its search
        _made = True
        self._value: Any = value
        if value is not None:
            remember_secret(id(self), value)
            finalize(self, forget_secret, id(self)).atexit = False

    @classmethod
    def loaded(cls, text: object) -> Self:
        """Load a secret from JSON: withheld if the text is the mark, else with the text as a new value."""
        if not isinstance(text, str):
            raise TypeError(f"a Secret must be a string in JSON, not {type(text).__name__}")
        found = cls.__new__(cls)
        found._keep(None if text == MARK else text)
        return found

    @property
    def is_withheld(self) -> bool:
        """Whether the secret was loaded from a log, which does not store its value."""
        return self._value is None

    def reveal(self) -> V:
        """Return the value. Raises SecretWithheld if the secret was loaded from a log."""
        if self._value is None:
            raise SecretWithheld
        value: V = self._value
        return value

    def __repr__(self) -> str:
        return MARK

    def __str__(self) -> str:
        return MARK

    def __format__(self, spec: str) -> str:
        return format(MARK, spec)

    def __eq__(self, other: object) -> bool:
        """Compare in constant time. A withheld secret is equal only to itself."""
        if not isinstance(other, Secret):
            return NotImplemented
        if self._value is None or other._value is None:
            return self is other
        mine, its = self._value, other._value
        return type(mine) is type(its) and hmac.compare_digest(_bytes(mine), _bytes(its))

    def __lt__(self, other: object) -> bool:
        """Return False: secrets have no order, but a set that contains them may be sorted."""
        return False if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        """Return the same hash for all secrets, so that it reveals nothing."""
        return hash(Secret)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled; load it again in the process that uses it")

    def __getstate__(self) -> NoReturn:
        self.__reduce__()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Return the pydantic schema of a field: it takes a Secret or its value, and gives the mark in JSON."""
        from pydantic_core import core_schema as made  # noqa: PLC0415 - an optional dependency

        return made.json_or_python_schema(
            json_schema=made.no_info_after_validator_function(cls.loaded, made.str_schema(strict=True)),
            python_schema=made.no_info_plain_validator_function(cls._taken),
            serialization=made.plain_serializer_function_ser_schema(str, when_used="json"),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        return dict(SCHEMA)

    @classmethod
    def _taken(cls, value: object) -> "Secret[Any]":
        if isinstance(value, Secret):
            return value
        if isinstance(value, str | bytes):
            return cls(value)  # type: ignore[arg-type]
        raise ValueError("a Secret must be str or bytes")


def is_secret(hint: Any) -> bool:
    """Return whether an annotation is Secret."""
    return hint is Secret or get_origin(hint) is Secret


def hidden(value: Any) -> Any:
    """Return a copy with the mark in place of every secret in lists and dicts. Other objects stay unchanged."""
    return _hidden(value, 0) if _made else value


def _hidden(value: Any, depth: int) -> Any:
    if isinstance(value, Secret):
        return MARK
    if depth > _DEEPEST:
        return value
    if type(value) is dict:
        return {_hidden(key, _DEEPEST): _hidden(each, depth + 1) for key, each in value.items()}
    if type(value) is list:
        return [_hidden(each, depth + 1) for each in value]
    return value


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
