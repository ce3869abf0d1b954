"""Adapters for other libraries and protocols, one module each."""
