"""The remote client: the app's methods as requests to a server (`limpet serve`)."""

from limpet.remote.remote_app import RemoteApp
from limpet.remote.remote_server import RemoteServer

__all__ = ["RemoteApp", "RemoteServer"]
