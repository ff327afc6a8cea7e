"""The simulated world: ranks are threads of one process, and exactly one of them runs at a time."""
