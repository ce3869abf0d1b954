"""An encrypted store: the file contains no plain text of a run, and keys are rotated without rewriting it."""

import asyncio
import base64
import os
from pathlib import Path

import limpet
from limpet.events import bodies as b
from limpet.events import inline

KEY_FILE = Path("limpet.keys")


def new_master_key() -> str:
    """Return 32 random bytes, as a key file needs them."""
    return base64.b64encode(os.urandom(32)).decode()


async def main() -> None:
    """Write with one master key, rotate to another, and read with the new one alone."""
    KEY_FILE.write_text(new_master_key() + "\n")
    keys = limpet.MasterKeys.from_file(KEY_FILE)
    async with limpet.open_store("sqlite:///secret.db", keys=keys) as store:
        body = b.RunCreated(agent="support", agent_version="1", input=inline({"card": "4242 4242 4242 4242"}))
        await store.create("ticket-42", body, actor="example")
        KEY_FILE.write_text(f"{new_master_key()}\n{KEY_FILE.read_text()}")  # the new key first
        await store.rotate_keys()
    KEY_FILE.write_text(KEY_FILE.read_text().splitlines()[0])  # the old key is no longer needed
    async with limpet.open_store("sqlite:///secret.db", keys=keys) as store:
        [event] = await store.read("ticket-42")
        created = store.decode(event)
        assert isinstance(created, b.RunCreated)
        print("decrypted:", created.input.value())
    print("readable in the file:", b"4242 4242" in Path("secret.db").read_bytes())


if __name__ == "__main__":
    asyncio.run(main())
