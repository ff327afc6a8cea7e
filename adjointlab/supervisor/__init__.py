"""Supervision of a job from outside: whatever becomes of its processes, somebody is left to tell it and to go on."""
