"""Apps whose runs leave memory as soon as they only wait."""

import limpet

__all__ = ["parking"]


def parking(app: limpet.App) -> limpet.App:
    """Let the worker of an app that is not open yet park its runs at once, not after a second."""
    app._settings.linger = 0
    return app
