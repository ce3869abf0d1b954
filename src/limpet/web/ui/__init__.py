"""The dashboard: pages for people under /ui, made from the same operations as the API."""

from limpet.web.ui.site import Site

__all__ = ["Site"]
