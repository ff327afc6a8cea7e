"""Every built-in layer through every check of layers: on simulated ranks, and under mpiexec on real ones."""

import pytest

import adjointlab as al

pytest.importorskip("torch")

from adjointlab.layers.subjects import installed as subjects

TestLinear = al.coherence_tests(subjects.linears)
TestConvolution = al.coherence_tests(subjects.convolutions)
TestTransposedConvolution = al.coherence_tests(subjects.transposed_convolutions)
TestMaxPool = al.coherence_tests(subjects.max_pools)
TestAveragePool = al.coherence_tests(subjects.average_pools)
TestBatchNorm = al.coherence_tests(subjects.batch_norms)
TestLayerNorm = al.coherence_tests(subjects.layer_norms)
TestRMSNorm = al.coherence_tests(subjects.rms_norms)
TestGroupNorm = al.coherence_tests(subjects.group_norms)
TestInstanceNorm = al.coherence_tests(subjects.instance_norms)
TestFlatten = al.coherence_tests(subjects.flattens)
TestRepartition = al.coherence_tests(subjects.repartition_layers)
TestPointwise = al.coherence_tests(subjects.pointwise_layers)
TestCrossEntropy = al.coherence_tests(subjects.cross_entropies)
TestMeanSquaredError = al.coherence_tests(subjects.mean_squared_errors)
TestAbsoluteError = al.coherence_tests(subjects.absolute_errors)
TestSmoothAbsoluteError = al.coherence_tests(subjects.smooth_absolute_errors)
TestHuber = al.coherence_tests(subjects.huber_losses)
TestDivergence = al.coherence_tests(subjects.divergences)
TestBinaryCrossEntropy = al.coherence_tests(subjects.binary_cross_entropies)
TestNegativeLogLikelihood = al.coherence_tests(subjects.negative_log_likelihoods)
TestColumnParallelLinear = al.coherence_tests(subjects.column_parallel_linears)
TestRowParallelLinear = al.coherence_tests(subjects.row_parallel_linears)
TestAttention = al.coherence_tests(subjects.attentions)
TestMultiheadAttention = al.coherence_tests(subjects.multihead_attentions)
TestConcatenation = al.coherence_tests(subjects.concatenations)
TestSplit = al.coherence_tests(subjects.splits)
TestEmbedding = al.coherence_tests(subjects.embeddings)
TestUpsample = al.coherence_tests(subjects.upsamplings)
TestPadding = al.coherence_tests(subjects.paddings)
TestAdaptiveAverage = al.coherence_tests(subjects.adaptive_average_pools)
TestDropout = al.coherence_tests(subjects.dropouts)
TestSoftmax = al.coherence_tests(subjects.softmaxes)
TestLogSoftmax = al.coherence_tests(subjects.log_softmaxes)
