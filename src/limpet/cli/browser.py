"""Open a page in the browser of the person at this terminal, if there is one."""

import os
import sys
import webbrowser

__all__ = ["has_display", "open_page"]


def has_display() -> bool:
    """Return whether a browser has a screen to appear on; a browser inside the terminal would hide our output."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_page(link: str) -> bool:
    """Open a page if there is a display; return whether a browser was started."""
    return has_display() and webbrowser.open(link)
