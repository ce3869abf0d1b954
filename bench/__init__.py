"""Measurements, compared with bare loops and peers."""
