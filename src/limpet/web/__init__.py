"""The HTTP interface: queries and commands over a store, for clients with a token."""

from importlib.util import find_spec

from limpet.errors import ExtraMissing

if find_spec("starlette") is None:
    raise ExtraMissing(extra="server")

from limpet.web.api import asgi
from limpet.web.install import install
from limpet.web.oidc import Oidc

__all__ = ["Oidc", "asgi", "install"]
