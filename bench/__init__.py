"""Measurements, beside bare loops and peers."""
