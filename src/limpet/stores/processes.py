"""Identify this process, so that others on the same machine can detect that it has ended.

A process is identified by the machine's boot id, its pid namespace, its pid and its start time. Only a process in the
same namespace can judge another. Without /proc, this is impossible, and only leases decide.
"""

import os
from pathlib import Path

__all__ = ["CAN_SEE", "has_ended", "is_stopped", "this_process"]

_PROC = Path("/proc")
CAN_SEE = (_PROC / "self/stat").exists()


def this_process() -> str:
    """Return the identity of this process, or "" if it cannot be determined."""
    if not CAN_SEE:
        return ""
    pid = os.getpid()
    return f"{_here()}/{pid}/{_started(pid)}"


def has_ended(process: str) -> bool:
    """Return whether a process of this machine and namespace is known to have ended; False if that is unknown."""
    here, _, rest = process.rpartition("/")[0].rpartition("/")
    if not CAN_SEE or not here or here != _here():
        return False
    pid = int(rest)
    return not _exists(pid) or _started(pid) not in ("", process.rpartition("/")[2])


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal or a debugger; False if that is unknown."""
    return CAN_SEE and _stat(pid)[:1] in (["T"], ["t"])


def _here() -> str:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"


def _exists(pid: int) -> bool:
    """Return whether a process with this pid exists. Asks the kernel, since /proc may hide processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _started(pid: int) -> str:
    """Return the start time of a process, in ticks since boot; `gone` for a zombie, "" if it is hidden."""
    stat = _stat(pid)
    if not stat:
        return ""
    return "gone" if stat[0] in "ZX" else stat[19]


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's stat, from its state on; [] if they are hidden."""
    try:
        _, _, after_name = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except OSError:
        return []
    return after_name.split()
