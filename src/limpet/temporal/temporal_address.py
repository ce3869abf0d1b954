"""The address of a Temporal namespace: `temporal://host:7233/namespace?heartbeat=10s`."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct
from temporalio.envconfig import ClientConfig

from limpet.clock import SECOND, microseconds
from limpet.errors import DefinitionError

__all__ = ["TemporalAddress"]

PORT = 7233
HEARTBEAT = "10s"
NAMESPACE = "default"


class TemporalAddress(Struct, frozen=True, kw_only=True):
    """Where Temporal is, and how soon it gives up on a worker."""

    host: str
    """Host and port."""
    namespace: str
    heartbeat: float
    """Seconds without a heartbeat after which another worker is asked to drive a run."""

    @classmethod
    def parse(cls, url: str) -> "TemporalAddress":
        """Return the parts of a URL. Raises DefinitionError, without the URL if that contains a password."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            port = parts.port or PORT
            heartbeat = microseconds(options.pop("heartbeat", HEARTBEAT)) / SECOND
        except (ValueError, TypeError) as error:
            raise _invalid(str(error)) from None
        namespace = parts.path.strip("/") or NAMESPACE
        if parts.username is not None or parts.password is not None:
            raise _invalid("it takes no user or password; set TEMPORAL_API_KEY, or TEMPORAL_TLS_CLIENT_CERT_PATH")
        if not parts.hostname or "/" in namespace or parts.fragment or options:
            known = ", ".join(options) or "its form"
            raise _invalid(f"{known} is not known; it is temporal://HOST:PORT/NAMESPACE?heartbeat=10s")
        if heartbeat < 1:
            raise _invalid("the heartbeat is at least 1s")
        return cls(host=f"{parts.hostname}:{port}", namespace=namespace, heartbeat=heartbeat)

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"temporal://{self.host}/{self.namespace}"

    def connect_options(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments with which a client connects.

        TLS and the API key come from Temporal's own environment variables or configuration file, such as
        TEMPORAL_API_KEY and TEMPORAL_TLS_CLIENT_CERT_PATH.
        """
        found = ClientConfig.load_client_connect_config(override_env_vars=dict(environment))
        return {**found, "target_host": self.host, "namespace": self.namespace}


def _invalid(reason: str) -> DefinitionError:
    return DefinitionError(what="the address of Temporal", reason=reason)
