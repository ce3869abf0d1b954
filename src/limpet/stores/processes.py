"""Which process this is, so that others on the same machine can see that it has ended.

A process is known by the machine's boot, its pid namespace, its pid and the moment it started; only a process in the
same namespace may judge. Where there is no /proc, nobody can tell, and leases alone decide.
"""

import os
from pathlib import Path

__all__ = ["CAN_SEE", "has_ended", "is_stopped", "this_process"]

_PROC = Path("/proc")
CAN_SEE = (_PROC / "self/stat").exists()


def this_process() -> str:
    """What identifies this process; nothing where it cannot be known."""
    if not CAN_SEE:
        return ""
    pid = os.getpid()
    return f"{_here()}/{pid}/{_started(pid)}"


def has_ended(process: str) -> bool:
    """Whether a process of this machine and namespace is known to have ended; false where nobody can tell."""
    here, _, rest = process.rpartition("/")[0].rpartition("/")
    if not CAN_SEE or not here or here != _here():
        return False
    pid = int(rest)
    return not _exists(pid) or _started(pid) not in ("", process.rpartition("/")[2])


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger; false where nobody can tell."""
    return CAN_SEE and _stat(pid)[:1] in (["T"], ["t"])


def _here() -> str:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"


def _exists(pid: int) -> bool:
    """Whether a process has this number: /proc may hide those of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; `gone` if it is but a name of the dead, nothing if it is hidden."""
    stat = _stat(pid)
    if not stat:
        return ""
    return "gone" if stat[0] in "ZX" else stat[19]


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on; nothing if they are hidden."""
    try:
        _, _, after_name = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except OSError:
        return []
    return after_name.split()
