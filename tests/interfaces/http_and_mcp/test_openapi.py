"""The description of the API: everything in it is described, and every reply is documented."""

from collections.abc import Iterator
from typing import Any

import limpet
from limpet.service.operation import operations_of
from limpet.web.openapi import OF_ALL, OF_COMMANDS, document
from limpet.web.replies import STATUS

OPERATIONS = [each for each in operations_of(limpet.App).values() if "http" in each.doors]
DOCUMENT = document(OPERATIONS)


def described() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every operation, parameter and property, with its place."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            place = f"{method} {path}"
            yield place, operation
            yield from ((f"{place} {each['name']}", each) for each in operation["parameters"])
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            yield from ((f"{place} {name}", each) for name, each in body.get("properties", {}).items())
    for name, schema in DOCUMENT["components"]["schemas"].items():
        yield name, schema
        yield from ((f"{name}.{field}", each) for field, each in schema.get("properties", {}).items())


def test_everything_has_a_description() -> None:
    """Each operation, parameter and property says what it is."""
    assert [place for place, each in described() if not each.get("description")] == []


def test_every_part_of_a_path_has_an_example() -> None:
    """Generators of documentation, and of requests, use them."""
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            parts = [each for each in operation["parameters"] if each["in"] == "path"]
            assert all("examples" in each["schema"] for each in parts), path


def test_every_status_of_a_problem_is_documented() -> None:
    """A query has no body, so some are only of commands. An unexpected error is the server's fault."""
    assert {*STATUS.values()} - {500} <= {*OF_ALL, *OF_COMMANDS}
    for methods in DOCUMENT["paths"].values():
        for method, operation in methods.items():
            wanted = {*OF_ALL, *OF_COMMANDS} if method == "post" else {*OF_ALL}
            assert {int(status) for status in operation["responses"]} - {200, 201} == wanted


def test_names_of_operations_are_unique() -> None:
    """Generators make functions of them."""
    names = [each["operationId"] for methods in DOCUMENT["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names)) == len(OPERATIONS)
