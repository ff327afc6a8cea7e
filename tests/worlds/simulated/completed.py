"""Runs on simulated ranks that are to complete."""

from adjointlab.worlds.simulated.world import SimulatedWorld

__all__ = ["values"]

_WORLD = SimulatedWorld()


def values(body, ranks=4, seed=0):
    """Return what ``body(comm)`` returns on each rank."""
    run = _WORLD.run(lambda context, _: body(context.comm), ranks=ranks, seed=seed)
    assert run.completed, (run.findings, run.outcomes)
    return run.values
