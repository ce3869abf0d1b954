"""The picture of the demo: drawn from a real run, up to date, and without machine details."""

import getpass
import html
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interfaces.demo.demo_process import env_of

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs" / "demo.svg"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A newly drawn picture."""
    path = tmp_path_factory.mktemp("picture") / "demo.svg"
    words = [sys.executable, "-m", "limpet.demo.picture", str(path)]
    done = subprocess.run(words, env=env_of(path.parent), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return path


def words_of(path: Path) -> str:
    """Return its text without values that differ each time: numbers and worker names."""
    lines = re.findall(r"<text [^>]*>(.*?)</text>", path.read_text(encoding="utf-8"))
    said = " ".join(html.unescape(line).replace("\xa0", " ") for line in lines)
    return re.sub(r"\s+", " ", re.sub(r"…\w+|[0-9.]+", "N", said))


def test_the_picture_matches_the_demo(drawn: Path) -> None:
    """`make picture` draws it."""
    assert words_of(PICTURE) == words_of(drawn)
    assert "kill -N N: exited with -N (SIGKILL)" in words_of(PICTURE)


def test_the_picture_contains_no_machine_details_and_no_links(drawn: Path) -> None:
    """It is also small."""
    for path in (PICTURE, drawn):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"https?://[^\"\s]+", text) == ["http://www.w3.org/2000/svg"]
        assert "url(" not in text.replace("url(#", "")
        assert not re.search(r"/(home|root|tmp|work|usr|Users)\b", text)
        assert not re.search(rf"\b({re.escape(getpass.getuser())}|{re.escape(socket.gethostname())})\b", text)
        assert len(text.encode()) < 60_000
