"""Every built-in subject through every check: on simulated ranks, and under mpiexec on real ones."""

import adjointlab as al
from adjointlab.primitives.subjects import installed as subjects

TestBroadcast = al.coherence_tests(subjects.broadcasts)
TestSumReduce = al.coherence_tests(subjects.sum_reduces)
TestAllSumReduce = al.coherence_tests(subjects.all_sum_reduces)
TestScatter = al.coherence_tests(subjects.scatters)
TestGather = al.coherence_tests(subjects.gathers)
TestAllGather = al.coherence_tests(subjects.all_gathers)
TestReduceScatter = al.coherence_tests(subjects.reduce_scatters)
TestDiscard = al.coherence_tests(subjects.discards)
TestRepartition = al.coherence_tests(subjects.repartitions)
TestRedistribute = al.coherence_tests(subjects.redistributes)
TestHaloExchange = al.coherence_tests(subjects.halo_exchanges)
TestHaloExchangeInPlace = al.coherence_tests(subjects.halo_exchanges_in_place)
TestSendReceive = al.coherence_tests(subjects.send_receives)
TestAllocate = al.coherence_tests(subjects.allocates)
TestDeallocate = al.coherence_tests(subjects.deallocates)
TestClear = al.coherence_tests(subjects.clears)
TestAdd = al.coherence_tests(subjects.adds)
TestCopy = al.coherence_tests(subjects.copies)
TestMove = al.coherence_tests(subjects.moves)
TestTransfer = al.coherence_tests(subjects.transfers)
