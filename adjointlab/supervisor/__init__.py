"""Supervision of a job by a process outside it, which restarts the job after a crash."""
