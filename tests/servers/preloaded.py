"""Programs that start in milliseconds: a process that has imported limpet forks another one for each of them.

A program runs as `limpet`, `python FILE`, `python -c CODE` or `python -m MODULE` would: in its own process, with its
own arguments, environment, folder, standard streams and signals. Only the imports are already done. File permissions
apply to it even if root runs the tests. A test of imports, or of the interpreter itself, starts a real process instead.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fcntl import ioctl
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import Self

import typer.main

import limpet

__all__ = ["LIMPET", "ROOT", "PipedProgram", "Program", "run"]

ROOT = Path(__file__).parents[2]
LIMPET = str(Path(sys.executable).with_name("limpet"))
PRELOAD = (
    *("asyncio", "pydantic.main", "rich.console", "rich.progress", "rich.table", "typer._adapters"),
    *("limpet.cli.commands", "limpet.main", "limpet.stores.sqlite", "limpet.sync", "limpet.testing"),
)
# prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE): permissions then also apply to root.
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


class Program:
    """A running program: a context manager with the methods of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        streams: tuple[int, int, int],
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        own_terminal: bool = False,
        also: tuple[str, ...] = (),
    ) -> None:
        """`streams` are the files of standard input, output and error. A program can own its input as a terminal.

        `also` are modules to import before the fork, besides those that all programs need.
        """
        request = [list(words), os.fspath(cwd or Path.cwd()), dict(os.environ if env is None else env), own_terminal]
        self._channel, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_server(also), [json.dumps(request).encode() + b"\n"], [theirs.fileno(), *streams])
        self._answers = self._channel.makefile(encoding="ascii")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code, which is negative if a signal ended the program."""
        if self.returncode is None:
            self._channel.settimeout(timeout)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._channel.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None if the program still runs."""
        ended = self.returncode is not None or select.select([self._channel], [], [], 0)[0]
        return self.wait() if ended else None

    def fileno(self) -> int:
        """Return a file that can be read when the program has ended, for `select`."""
        return self._channel.fileno()

    def send_signal(self, number: int) -> None:
        """Send a signal. The process id stays reserved until `wait` has returned."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class PipedProgram(Program):
    """A program without input, whose output and errors are read from pipes."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stderr: int | None = None,
        also: tuple[str, ...] = (),
    ) -> None:
        """`stderr` is an open file for errors, of a program that may print many."""
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        if stderr is not None:
            os.dup2(stderr, their_err)
        self.stdout, self.stderr = open(out, encoding="utf-8"), open(err, encoding="utf-8")  # noqa: SIM115
        with Path(os.devnull).open("rb") as nothing:
            super().__init__(words, streams=(nothing.fileno(), their_out, their_err), cwd=cwd, env=env, also=also)
        os.close(their_out)
        os.close(their_err)

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()


def run(
    words: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
    stdout: int | None = None,
    also: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return its output. `stdout` is an open file to use for it."""
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(input.encode())
        given.seek(0)
        files = (given.fileno(), out.fileno() if stdout is None else stdout, err.fileno())
        code = Program(words, streams=files, cwd=cwd, env=env, also=also).wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(words), code, out.read().decode(), err.read().decode())


@cache
def _server(also: tuple[str, ...]) -> socket.socket:
    """Start the process that forks, and return the socket for requests. It ends when the socket is closed."""
    ours, theirs = socket.socketpair()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LIMPET_", "PYTHONPATH"))}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), *also],
            env=env,
            pass_fds=[theirs.fileno()],
            preexec_fn=_without_override(),  # noqa: PLW1509 - prctl needs no lock that a thread could hold
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # called before the line above
    return ours


def _without_override() -> Callable[[], None] | None:
    """Return what a child of root must call so that file permissions apply to it; None for other users."""
    if os.geteuid() != 0:
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def _preload(also: Sequence[str]) -> None:
    """Import what programs need, and build the commands of `limpet` once."""
    sys.path.insert(0, str(ROOT))
    for name in (*PRELOAD, *also):
        import_module(name)
    sys.path.remove(str(ROOT))
    for name in dir(limpet):  # a public name is loaded at its first use
        getattr(limpet, name)
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(import_module("limpet.cli.commands").command)
    gc.freeze()


def _serve(requests: socket.socket) -> None:
    """Fork a program for each request. Return in a program when it has ended; the server itself ends in here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the parents of programs
    while True:
        received, files, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        while not received.endswith(b"\n"):
            if not received:
                os._exit(0)
            received += requests.recv(1 << 20)
        if not os.fork():
            requests.close()
            words, cwd, env, own_terminal = json.loads(received)
            _fork_program(socket.socket(fileno=files[0]), files[1:])
            return _become(words, cwd, env, own_terminal=own_terminal)
        for file in files:
            os.close(file)


def _fork_program(channel: socket.socket, streams: list[int]) -> None:
    """Fork the program and return in it. Its parent sends its process id and its exit code, and ends in here."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        channel.close()
        for number, file in enumerate(streams):
            os.dup2(file, number)
        for file in set(streams):
            os.close(file)
        return
    for file in streams:
        os.close(file)
    channel.send(b"%d\n" % pid)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    channel.send(b"%d\n" % (ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))
    channel.recv(1)  # returns when the other side has closed the channel
    os.waitpid(pid, 0)
    os._exit(0)


def _become(words: list[str], cwd: str, env: dict[str, str], *, own_terminal: bool) -> None:
    """Run a program in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if own_terminal:
        os.setsid()
        ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 - for the life of the process
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    path = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
    match words:
        case [program, *_] if program == LIMPET:
            sys.argv, sys.path[:0] = words, [str(Path(LIMPET).parent), *path]
            sys.exit(import_module("limpet.main").main())
        case [_, "-m", name, *rest]:
            sys.argv, sys.path[:0] = [name, *rest], [cwd, *path]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        case [_, "-c", code, *rest]:
            sys.argv, sys.path[:0] = ["-c", *rest], ["", *path]
            sys.modules["__main__"] = module = ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), vars(module))
        case [_, file, *rest]:
            sys.argv, sys.path[:0] = [file, *rest], [str(Path(file).absolute().parent), *path]
            runpy.run_path(str(Path(file).absolute()), run_name="__main__")
        case _:
            raise ValueError(words)


if __name__ == "__main__":
    _preload(sys.argv[2:])
    _serve(socket.socket(fileno=int(sys.argv[1])))
