"""The shop for a worker that parks runs at once: `limpet worker tests.interfaces.cli.parked_shop:app`."""

import limpet
from tests.interfaces.cli.shop import both
from tests.servers.parking import parking

app = parking(limpet.open(agents=both, worker=False))
