"""Checks of values against a JSON Schema."""

from limpet.engine.definitions.schema_check import faults


def test_multiple_of_is_checked_for_any_number() -> None:
    """Numbers and schemas of any size are checked without an error, since a model may have written them."""
    for value, of in ((6, 3), (0.3, 0.1), (3 * 10**400, 3)):
        assert faults(value, {"multipleOf": of}) == []
    for value, of in ((7, 3), (0.35, 0.1), (10**400, 3), (10**400, 0.5), (1e308, 1e-10), (1, 0)):
        assert faults(value, {"multipleOf": of}) == [f"$ is not a multiple of {of}"]
