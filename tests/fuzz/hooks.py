"""A check of every reply that schemathesis gets: nothing in it is of another tenant."""

import os

import schemathesis

OTHER = os.environ["OTHER_TENANT"]


@schemathesis.check
def shows_only_its_tenant(_: object, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """Fail if a reply contains a text that only the other tenant has, and that was not sent."""
    if OTHER in response.text and OTHER not in str(case.as_transport_kwargs()):
        raise AssertionError(f"a reply has a text of the other tenant: {response.text[:500]}")
