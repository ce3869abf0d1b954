"""Base class of views, the results of operations, so that FastAPI, pydantic and the like accept them as they do
dataclasses.
"""

from typing import Any

from msgspec import Struct, convert, to_builtins

__all__ = ["View"]


class View(Struct, frozen=True, kw_only=True):
    """A result of an operation. `vars(view)` is its JSON."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The view as JSON, for encoders that know no structs."""
        found: dict[str, Any] = to_builtins(self)
        return found

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        """Describe the class to pydantic, for fields of models and results of routes."""
        from pydantic_core import core_schema  # noqa: PLC0415 - pydantic asks, so it is there

        return core_schema.no_info_plain_validator_function(
            lambda given: given if isinstance(given, cls) else convert(given, cls),
            serialization=core_schema.plain_serializer_function_ser_schema(to_builtins),
        )

    @property
    def __pydantic_serializer__(self) -> Any:
        """The serializer that pydantic uses where a schema allows any object."""
        from pydantic_core import SchemaSerializer  # noqa: PLC0415 - pydantic asks, so it is there

        return SchemaSerializer(type(self).__get_pydantic_core_schema__())

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, Any]:
        """Return a JSON Schema without the fields: those of the API are in its OpenAPI document."""
        return {"type": "object", "title": cls.__name__}
