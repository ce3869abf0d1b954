"""Addresses of Temporal: mistakes are named in one line, and TLS is configured as for Temporal's own tools."""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import limpet
from limpet.errors import DefinitionError, EngineUnavailable, InvalidArgument
from limpet.temporal import TemporalAddress, TemporalEngine
from tests.servers.postgres import free_port
from tests.servers.preloaded import LIMPET, ROOT, run
from tests.servers.temporal import TemporalServer
from tests.temporal.agents import many_steps
from tests.temporal.ledger import FOLDER
from tests.temporal.temporal_world import ALSO, TemporalWorld

WRONG = {
    "temporal://": "temporal://HOST:PORT/NAMESPACE",
    "temporal://host/a/b": "temporal://HOST:PORT/NAMESPACE",
    "temporal://host:70000/n": "Port out of range",
    "temporal://host/n?heartbeat=0.5s": "at least 1s",
    "temporal://host/n?beat=5s": "beat is not known",
    "temporal://ann:hunter2@host/n": "TEMPORAL_API_KEY",
    "temporal://host/n#part": "its form is not known",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_mistake_in_an_address_is_named(url: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        limpet.open("sqlite:///x.db", engine=url)
    assert WRONG[url] in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_heartbeat_is_a_duration() -> None:
    with pytest.raises(InvalidArgument, match="'soon'"):
        limpet.open("temporal://host/n?heartbeat=soon", store="sqlite:///x.db")


def test_an_address_has_defaults() -> None:
    assert TemporalAddress.parse("temporal://host") == TemporalAddress(
        host="host:7233", namespace="default", heartbeat=10.0
    )
    assert TemporalAddress.parse("temporal://host:1/mine?heartbeat=2m").heartbeat == 120


def test_an_engine_is_given_once() -> None:
    with pytest.raises(DefinitionError, match="engine"):
        limpet.open("temporal://host", engine="temporal://host", store="sqlite:///x.db")
    with pytest.raises(DefinitionError, match="store"):
        limpet.open("sqlite:///x.db", store="sqlite:///y.db", engine="temporal://host")
    with pytest.raises(DefinitionError, match="server"):
        limpet.open("http://127.0.0.1:8700", engine="temporal://host")
    with pytest.raises(DefinitionError, match="temporal://HOST"):
        limpet.open("sqlite:///x.db", engine="cadence://host")


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['temporalio'] = None\n"
        "import limpet\n"
        "try:\n    limpet.open('temporal://host', store='sqlite:///x.db')\n"
        "except limpet.ExtraMissing as error:\n    print(error)"
    )
    done = run(["python", "-c", code], cwd=tmp_path)
    assert "pip install 'limpet[temporal]'" in done.stdout, done.stderr


@pytest.mark.long
def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    words = [LIMPET, "worker", "tests.temporal.agents:agents", "--engine", "temporal://host/n?beat=5s"]
    env = {**os.environ, FOLDER: str(tmp_path), "LIMPET_URL": f"sqlite:///{tmp_path}/limpet.db"}
    done = run(words, cwd=ROOT, env=env, also=ALSO)
    assert done.returncode == 1
    assert re.fullmatch(r"error: .*beat is not known.*\n", done.stderr), done.stderr


async def test_a_wrong_namespace_is_named(world: TemporalWorld) -> None:
    """The worker says so, with what to do, and without a traceback. Commands commit."""
    engine = f"temporal://{world.server.host}/nowhere"
    found = TemporalEngine(TemporalAddress.parse(engine))
    with pytest.raises(EngineUnavailable, match=r"there is no namespace nowhere .*namespace create -n nowhere"):
        await found.client()
    async with limpet.open(world.store, engine=engine, agents=[many_steps], worker=False) as app:
        await app.start(many_steps, 1, id="nowhere-1")
        assert (await app.info("nowhere-1")).status == "pending"


@pytest.mark.long
async def test_a_worker_waits_for_a_server_that_is_not_there_yet(world: TemporalWorld) -> None:
    """It says so once for each attempt, in one line, and goes on when the server is there."""
    with TemporalServer() as late:
        late.kill()
        world.server = late
        with world.worker() as worker:
            async with world.sender() as app:
                handle = await app.start(many_steps, 1, id="late-server")
                await world.until(lambda: any("trying again" in line for line in worker.log))
                late.start()
                assert await handle.result(timeout="30s") == 1
    assert not any("Traceback" in line for line in worker.log), "".join(worker.log)
    assert len(worker.log) < 10, "".join(worker.log)


# TLS


class Authority:
    """Makes certificates for 127.0.0.1, in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.path = self._write("ca", self._key, self._signed(self._name, self._key, is_authority=True))[0]

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._write(name, key, self._signed(subject, key, is_authority=False))

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime(2020, 1, 1, tzinfo=UTC)
        made = x509.CertificateBuilder(issuer_name=self._name, subject_name=subject, public_key=key.public_key())
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now)
        made = made.not_valid_after(now + timedelta(days=36_500))
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        made = made.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        return made.add_extension(names, critical=False).sign(self._key, hashes.SHA256())

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, made: x509.Certificate) -> tuple[Path, Path]:
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        certificate, secret = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(pem))
        secret.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
        return certificate, secret


@asynccontextmanager
async def behind_tls(target: int, authority: Authority) -> AsyncIterator[int]:
    """Serve a port with TLS that asks for a client's certificate, and return its own port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    pumps: set[asyncio.Task[None]] = set()
    sinks: list[asyncio.StreamWriter] = []

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
            sink.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target)
        sinks.extend((writer, inner_writer))
        pumps.update(asyncio.create_task(each) for each in (pump(reader, inner_writer), pump(inner_reader, writer)))

    port = free_port()
    server = await asyncio.start_server(join, "127.0.0.1", port, ssl=context)
    try:
        yield port
    finally:
        server.close()
        for sink in sinks:
            sink.transport.abort()
        await asyncio.gather(*pumps, *(sink.wait_closed() for sink in sinks), return_exceptions=True)


@pytest.mark.long
async def test_tls_is_configured_by_temporals_own_variables(
    world: TemporalWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that wants a client's certificate drives a run; without it, the reason is told."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client")
    async with behind_tls(world.server.port, authority) as port:
        url = f"temporal://localhost:{port}/default?heartbeat=1s"
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await TemporalEngine(TemporalAddress.parse(url)).client()
        monkeypatch.setenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH", str(authority.path))
        monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_PATH", str(certificate))
        monkeypatch.setenv("TEMPORAL_TLS_CLIENT_KEY_PATH", str(key))
        async with world.app([many_steps], engine=url) as app:
            assert await (await app.start(many_steps, 2, id="tls-1")).result(timeout="20s") == 2
            await world.until_closed("tls-1")


def test_an_api_key_comes_from_the_environment() -> None:
    address = TemporalAddress.parse("temporal://host/mine")
    found = address.connect_options(
        {"TEMPORAL_API_KEY": "k-1", "TEMPORAL_ADDRESS": "other:1", "TEMPORAL_NAMESPACE": "o"}
    )
    assert (found["api_key"], found["target_host"], found["namespace"]) == ("k-1", "host:7233", "mine")
    assert found["tls"]
