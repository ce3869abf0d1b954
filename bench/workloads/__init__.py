"""Limpet's own workloads. Each is a function from sizes to figures, and runs in a process of its own."""
