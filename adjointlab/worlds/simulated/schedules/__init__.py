"""Strategies that schedule simulated runs, one per file, and the recording and replay of their decisions."""
