"""A fresh process loads only the modules that it uses, which is most of the time until the first step.

Each test starts a process and looks at the modules that are loaded when it ends.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import limpet

# Parts of Limpet that a program without them does not load, and what they are made of.
OPTIONAL = {
    "anthropic", "click", "cryptography", "fastapi", "httpx", "jsonschema", "mcp", "openai", "psycopg", "pydantic",
    "pydantic_ai", "pydantic_core", "pygments", "rich", "starlette", "uvicorn", "zstandard",
}  # fmt: skip
FIRST_STEP = """
import asyncio, limpet
@limpet.tool(effect="none")
async def cold_start_greet(name: str) -> str:
    return "hello " + name
@limpet.agent()
async def cold_start_hello(run: limpet.Run, name: str) -> str:
    return await run.step(cold_start_greet, name)
"""
ASYNC = """
async def main() -> None:
    async with limpet.open("sqlite:///cold.db", agents=[cold_start_hello]) as app:
        assert await app.run(cold_start_hello, "Ada") == "hello Ada"
asyncio.run(main())
"""
BLOCKING = """
with limpet.sync.open("sqlite:///cold.db", agents=[cold_start_hello]) as app:
    assert app.run(cold_start_hello, "Ada") == "hello Ada"
"""
HELP = """
import sys
from limpet.main import main
sys.argv = ["limpet", "--help"]
try:
    main()
except SystemExit as done:
    assert done.code == 0
"""
MODULES = "\nimport sys; print(); print(*sys.modules)"


def loaded(code: str, folder: Path) -> set[str]:
    """Return the modules that a fresh process has loaded after it ran some code, without those of an empty program."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COV_CORE")}
    empty, done = (
        subprocess.run(
            [sys.executable, "-I", "-c", each + MODULES],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        .stdout.splitlines()[-1]
        .split()
        for each in ("", code)
    )
    return {*done} - {*empty}


@pytest.mark.parametrize(
    ("code", "most"),
    [
        pytest.param("import limpet", 45, id="import"),
        pytest.param(FIRST_STEP + ASYNC, 435, id="first step"),
        pytest.param(FIRST_STEP + BLOCKING, 435, id="first step, blocking"),
        pytest.param(HELP, 175, id="help"),
    ],
)
def test_a_fresh_process_loads_no_optional_part(code: str, most: int, tmp_path: Path) -> None:
    """Nor many modules of any kind: each costs about a millisecond."""
    found = loaded(code, tmp_path)
    assert sorted(OPTIONAL & {name.partition(".")[0] for name in found}) == []
    assert len(found) <= most


def test_importing_limpet_loads_none_of_its_packages(tmp_path: Path) -> None:
    """A name loads its module, at its first use."""
    assert {name for name in loaded("import limpet", tmp_path) if name.startswith("limpet")} == {"limpet"}
    assert "limpet.compose" not in loaded("import limpet; limpet.NotFound", tmp_path)


def test_the_help_loads_neither_the_engine_nor_a_store(tmp_path: Path) -> None:
    found = {name.split(".")[1] for name in loaded(HELP, tmp_path) if name.startswith("limpet.")}
    assert found <= {"cli", "errors", "main", "redaction", "service", "times"}


def test_type_checkers_and_programs_get_the_same_names() -> None:
    """The names under TYPE_CHECKING are those that are loaded at run time, each from the same module."""
    tree = ast.parse(Path(limpet.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        name.asname: each.module
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for name in each.names
        if name.asname == name.name
    }
    assert typed.pop("sync") == "limpet"
    assert typed == vars(limpet)["_MODULES"]
    assert sorted([*typed, "__version__", "sync"]) == dir(limpet)


def test_an_unknown_name_is_an_attribute_error_that_suggests_a_known_one() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NotFuond'") as error:
        limpet.NotFuond  # type: ignore[attr-defined] # noqa: B018
    assert error.value.name == "NotFuond"
    assert error.value.obj is limpet
