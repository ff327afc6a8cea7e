"""A plain pair of functions under the lab: a prefix sum over the workers, and its adjoint, the suffix sum."""

import numpy as np

import adjointlab as al
from adjointlab import MPI


def prefix_sum(comm, x):
    total = np.empty(x.shape)
    comm.Scan(np.ascontiguousarray(x), total, op=MPI.SUM)
    return total


def suffix_sum(comm, y):
    before, total = np.empty(y.shape), np.empty(y.shape)
    comm.Scan(np.ascontiguousarray(y), before, op=MPI.SUM)
    comm.Allreduce(np.ascontiguousarray(y), total, op=MPI.SUM)
    return total - before + y


@al.subject.pair(prefix_sum, suffix_sum)
def prefix_sums(draw, ranks):
    copies = al.Layout(draw(al.strategies.shapes(2)), al.Partition((ranks,)), axes=(None, None))
    return dict(domain=al.Space(copies), codomain=al.Space(copies))  # each worker has values of its own


TestPrefixSum = al.coherence_tests(prefix_sums)
