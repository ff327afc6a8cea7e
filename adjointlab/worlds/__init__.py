"""Worlds: what executes one SPMD function on P ranks."""
