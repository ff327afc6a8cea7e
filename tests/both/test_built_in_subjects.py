"""Every built-in subject through every check: on simulated ranks, and under mpiexec on real ones."""

import adjointlab as al
from adjointlab.primitives import subjects

TestBroadcast = al.coherence_tests(subjects.broadcasts)
TestSumReduce = al.coherence_tests(subjects.sum_reduces)
TestAllSumReduce = al.coherence_tests(subjects.all_sum_reduces)
TestSendReceive = al.coherence_tests(subjects.send_receives)
TestAllocate = al.coherence_tests(subjects.allocates)
TestDeallocate = al.coherence_tests(subjects.deallocates)
TestClear = al.coherence_tests(subjects.clears)
TestAdd = al.coherence_tests(subjects.adds)
TestCopy = al.coherence_tests(subjects.copies)
TestMove = al.coherence_tests(subjects.moves)
