"""Checks: one small question each, answered for one case."""
