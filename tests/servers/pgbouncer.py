"""A real PgBouncer for a PostgreSQL, in transaction mode: each transaction may use another server connection."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from threading import Event
from typing import Self

from tests.servers import need
from tests.servers.postgres import free_port

__all__ = ["PgBouncer"]

CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server} user=limpet

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 3
server_idle_timeout = 5
"""
"""Few server connections, so that they are shared all the time."""


class PgBouncer:
    """A pooler, as a context manager."""

    def __init__(self, server: int) -> None:
        self._program = need("pgbouncer")
        self._folder = Path(tempfile.mkdtemp(prefix="limpet-pgbouncer-"))
        self._server = server
        self.port = free_port()

    def __enter__(self) -> Self:
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(CONFIGURATION.format(server=self._server, port=self.port))
        user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
        if user is not None:
            shutil.chown(self._folder, user)
        self._folder.chmod(0o755)
        with (self._folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [self._program, "-q", str(settings)], user=user, cwd=self._folder, stdout=log, stderr=log
            )
        self._wait()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        """Wait until it answers."""
        while self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            Event().wait(0.01)
        raise RuntimeError((self._folder / "log").read_text())
