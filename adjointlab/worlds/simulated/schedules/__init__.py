"""Schedules of simulated runs: which strategies there are, one a file, and what they are as data."""
