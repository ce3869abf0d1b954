"""The page of typical mistakes is true: each example prints exactly its message, and each correction works.

`python -m tests.docs.test_mistakes` writes the messages of today to the page.
"""

import os
import re
import shlex
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import limpet
from tests.docs.test_repository import ROOT
from tests.servers import preloaded

PAGE = ROOT / "docs" / "mistakes.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
NOTICE = re.compile(r"limpet: |run r-1: |\S*support\.py:\d+: RuntimeWarning: ")
"""Start of a line on stderr that is no exception."""
ERROR = re.compile(r"limpet\.\w+: |error: ")
"""Start of an error; Python prints the causes of an exception before it."""
PUBLIC = [getattr(limpet, name) for name in dir(limpet)]
CODES = {each.code for each in PUBLIC if isinstance(each, type) and issubclass(each, limpet.LimpetError)}
NOT_INSTALLED = ("psycopg",)
"""Optional dependencies that the examples do not find."""


@dataclass(frozen=True)
class Mistake:
    """A section of the page."""

    title: str
    code: str
    """Python program, after the definitions of the page; may be empty."""
    commands: str
    message: str
    correction: str
    """Python program that works; may be empty."""


def mistakes() -> list[Mistake]:
    """Return the sections of the page."""
    before, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    [(_, definitions)] = BLOCK.findall(before)
    return [mistake(definitions, *section.split("\n", 1)) for section in sections]


def mistake(definitions: str, title: str, text: str) -> Mistake:
    """Return a section. A Python program before the message is the mistake, and one after it the correction."""
    found = BLOCK.findall(text)
    [at] = [index for index, (language, _) in enumerate(found) if language == "text"]
    wrong = dict(found[:at])
    correction = "".join(f"{definitions}\n\n{code}" for _, code in found[at + 1 :])
    return Mistake(
        title, f"{definitions}\n\n{wrong.get('python', '')}", wrong.get("bash", ""), found[at][1], correction
    )


def printed(code: str, commands: str, folder: Path) -> tuple[int, str]:
    """Run a program and then commands, as a user without privileges. Return the exit code and the messages."""
    (folder / "support.py").write_text(code, encoding="utf-8")
    programs = {"python": sys.executable, "limpet": preloaded.LIMPET}
    missing = folder / "missing"
    missing.mkdir()
    for name in NOT_INSTALLED:
        (missing / f"{name}.py").write_text("raise ImportError", encoding="utf-8")
    env = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
        "PYTHONPATH": str(missing),
        "COLUMNS": "2000",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
    }
    said = ""
    for line in ["python support.py", *commands.splitlines()]:
        match shlex.split(line):
            case ["chmod", "a-w", file]:
                (folder / file).chmod(0o444)
            case words:
                done = preloaded.run([programs[words[0]], *words[1:]], cwd=folder, env=env)
                said += done.stderr
    lines = said.replace(str(folder.resolve()), "/srv/app").splitlines()
    errors = [line for line in lines if ERROR.match(line)]
    return done.returncode, "\n".join([*filter(NOTICE.match, lines), *errors[-1:]])


def unwrapped(message: str) -> str:
    """Return a message of the page with one line per message: a line that continues is indented."""
    return re.sub(r"\n  ", " ", message).strip()


def wrapped(message: str) -> str:
    """Return messages as the page shows them."""
    wrap = textwrap.TextWrapper(118, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    return "".join(f"{wrap.fill(line)}\n" for line in message.splitlines())


@pytest.mark.parametrize("each", mistakes(), ids=lambda each: each.title)
def test_a_mistake_prints_the_message_of_the_page(each: Mistake, tmp_path: Path) -> None:
    """The message is exactly that of the page, and each code in it is that of an error."""
    _, message = printed(each.code, each.commands, tmp_path)
    assert message == unwrapped(each.message)
    assert set(re.findall(r"\[([a-z_]+)\]$", message, re.MULTILINE)) <= CODES


@pytest.mark.parametrize("each", [each for each in mistakes() if each.correction], ids=lambda each: each.title)
def test_a_correction_works(each: Mistake, tmp_path: Path) -> None:
    """The corrected program ends without a message."""
    assert printed(each.correction, "", tmp_path) == (0, "")


def test_the_page_has_many_mistakes_with_a_message_each() -> None:
    """There are at least twenty, and no title occurs twice."""
    found = mistakes()
    assert len({each.title for each in found}) == len(found) >= 20
    assert all(each.message.strip() for each in found)


def write() -> None:
    """Write the messages of today to the page."""
    text = PAGE.read_text(encoding="utf-8")
    for each in mistakes():
        with TemporaryDirectory() as folder:
            _, message = printed(each.code, each.commands, Path(folder))
        before, title, after = text.partition(f"\n## {each.title}\n")
        shown = f"```text\n{wrapped(message)}```"
        _, old, _ = re.split(r"(^```text\n.*?^```)", after, maxsplit=1, flags=re.DOTALL | re.MULTILINE)
        text = before + title + after.replace(old, shown, 1)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
