"""Secrets: values that code can use and nothing can write down.

A `Secret` shows itself as `[secret]` wherever it is printed, formatted, logged or dumped to JSON. What was loaded from
a log is withheld: it says that there was a secret, and not which. While one lives, nothing that Limpet says repeats it.
"""

import hmac
from typing import Any, Final, Generic, NoReturn, Self, get_origin
from weakref import finalize

from typing_extensions import TypeVar

from limpet.errors import SecretWithheld
from limpet.redaction import forget_secret, remember_secret

__all__ = ["MARK", "Secret", "hidden", "is_secret"]

MARK: Final = "[secret]"
"""What stands for a secret wherever it would be read."""
SCHEMA: Final = {"type": "string", "format": "password", "writeOnly": True}
# Like JSON in events; what is deeper is refused where it is stored.
_DEEPEST = 64
V = TypeVar("V", str, bytes, default=str)
_made = False


class Secret(Generic[V]):
    """A value that is never written down. `reveal()` gives it, where it is used."""

    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: V) -> None:
        if not isinstance(value, str | bytes):
            raise TypeError(f"a Secret holds str or bytes, and not {type(value).__name__}")
        self._keep(value)

    def _keep(self, value: str | bytes | None) -> None:
        global _made  # noqa: PLW0603 - where there never was one, none is looked for
        _made = True
        self._value: Any = value
        if value is not None:
            remember_secret(id(self), value)
            finalize(self, forget_secret, id(self)).atexit = False

    @classmethod
    def loaded(cls, text: object) -> Self:
        """From JSON: withheld, if that is all it says; else somebody typed a new one."""
        if not isinstance(text, str):
            raise TypeError(f"a Secret is text in JSON, and not {type(text).__name__}")
        found = cls.__new__(cls)
        found._keep(None if text == MARK else text)
        return found

    @property
    def is_withheld(self) -> bool:
        """Whether it came from a log, which does not hold it."""
        return self._value is None

    def reveal(self) -> V:
        """What it holds; raises SecretWithheld if it came from a log."""
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
        """In constant time; one that is withheld is like no other."""
        if not isinstance(other, Secret):
            return NotImplemented
        if self._value is None or other._value is None:
            return self is other
        mine, its = self._value, other._value
        return type(mine) is type(its) and hmac.compare_digest(_bytes(mine), _bytes(its))

    def __lt__(self, other: object) -> bool:
        """Secrets have no order, and may be in a set that is sorted."""
        return False if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        """The same for all: it says nothing."""
        return hash(Secret)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret does not leave its process: fetch it again where it is used")

    def __getstate__(self) -> NoReturn:
        self.__reduce__()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """As a field of pydantic's models: a Secret or what it holds; in JSON always the mark."""
        from pydantic_core import core_schema as made  # noqa: PLC0415 - whoever asks has it already

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
        raise ValueError("a Secret holds str or bytes")


def is_secret(hint: Any) -> bool:
    """Whether an annotation says Secret."""
    return hint is Secret or get_origin(hint) is Secret


def hidden(value: Any) -> Any:
    """The same with the mark for every secret in lists and dicts; whatever else is no JSON stays as it is."""
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
