"""Names and docstrings follow CONTRIBUTING: one word for one concept, and plain sentences."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import limpet
from tests.docs.reference import PUBLIC

SOURCE = Path(limpet.__file__).parent
ROOT = SOURCE.parents[1]
# Modules of these folders implement or test the same things as their siblings, so names repeat on purpose.
PARALLEL = {"stores/sqlite", "stores/postgres", "stores/conformance", "engines/scenarios"}
# Concepts that have a module in several packages, under one name.
CONCEPTS = {
    "app", "artifacts", "audit", "benchmark", "conversation", "duties", "inbox", "prompts", "queries", "steps",
    "replay", "run", "scores", "server", "snapshots", "storage", "tokens", "tools", "verify", "views", "watch",
    "worker",
}  # fmt: skip
# The blocking twins of asynchronous classes, and event bodies, which are always written `b.StepFailed`.
TWINS = {"sync.py", "events/bodies.py"}
VAGUE = r"\b(somebody|nobody|whoever)\b"


def modules() -> list[str]:
    """Return the path of each module of the package."""
    return sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))


def repeated(paths: list[str]) -> set[str]:
    """Return the basenames that occur more than once."""
    stems = [Path(path).stem for path in paths]
    return {stem for stem in stems if stems.count(stem) > 1 and not stem.startswith("__")}


def test_a_basename_is_unique_within_a_package() -> None:
    """Parallel implementations aside."""
    packages = defaultdict(list)
    for path in modules():
        folder = str(Path(path).parent)
        packages[folder if folder in PARALLEL else Path(path).parts[0]].append(path)
    assert {name: found for name, paths in packages.items() if (found := repeated(paths))} == {}


def test_a_basename_repeats_across_packages_only_for_one_concept() -> None:
    """A new repetition is either the same concept, and listed above, or needs another name."""
    paths = [path for path in modules() if str(Path(path).parent) not in PARALLEL]
    assert repeated(paths) == CONCEPTS


def test_a_public_class_name_is_used_once() -> None:
    """A reader who searches for a class finds one."""
    places = defaultdict(list)
    for path in modules():
        for name in re.findall(r"^class ([^\W_]\w*)", (SOURCE / path).read_text(encoding="utf-8"), re.MULTILINE):
            if path not in TWINS:
                places[name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_public_names_are_the_documented_ones() -> None:
    """`dir(limpet)` shows what users need, and docs/reference/python.md lists all of it."""
    documented = [name for names in PUBLIC.values() for name in names]
    assert sorted(documented) == sorted(set(documented))
    assert sorted(dir(limpet)) == sorted([*documented, "__version__"])


def test_a_docstring_names_its_subject() -> None:
    """A docstring does not begin with "What …", which hides its subject."""
    found = [
        f"{path}:{node.lineno}"
        for path in modules()
        if re.search(r"[\"']\s*What", text := (SOURCE / path).read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if re.match(r"What(ever)?\b", node.value.value.lstrip())
    ]
    assert found == []


def test_sentences_name_their_actors() -> None:
    """Over the package, the docs and the README, under 20 lines speak of somebody, nobody or whoever."""
    texts = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in texts
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(VAGUE, line, re.IGNORECASE)
    ]
    assert len(lines) < 20, "\n".join(lines)
