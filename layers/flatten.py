"""Flattening a tensor that is cut [Hewett21, section 5: a repartition before the classifier]; see reshape.py.

In row-major order a part of the dimensions s to e is one interval of the flat dimension only if it is whole in all of them but the
first. So the tensor is cut along the first of them over all workers of the flattened dimensions. A tensor of 4 x 3, whose rows have
n = 3 elements, over 2 x 2 workers, and over the 4 x 1 of P_r, where a window [a, b) of rows becomes [a n, b n):

        0   1 | 2             0   1   2    worker 0: [0, 3)
        3   4 | 5             -----------
        ------+---    T       3   4   5    worker 1: [3, 6)
        6   7 | 8     →       -----------
        9  10 | 11            6   7   8    worker 2: [6, 9)
                              -----------
                              9  10  11    worker 3: [9, 12)
"""

from __future__ import annotations

from torch import nn

from adjointlab.layers.reshape import Groups, Reshape, groups_of_one_split

__all__ = ["Flatten"]


class Flatten(Reshape, torch_classes=(nn.Flatten,)):
    """`torch.nn.Flatten` over `partition`, of the order of the input, which is cut in any dimensions; see :class:`Reshape`.

    The output lies over all of the workers: the dimensions that are not flattened are cut as before, and the flat one into
    multiples of the number of elements that follow the first of the flattened dimensions that is longer than 1.

    Raises `ValueError`, with torch's message, for dimensions that the input does not have or that are in the wrong order; and
    for a partition of another order than the input, and a target that is not a layout of the output.
    """

    def groups(self, module: nn.Module, y_shape: tuple[int, ...]) -> Groups:
        assert isinstance(module, nn.Flatten)
        order = len(self.input_shape)
        if order == 0:
            return [(range(0), range(1))]
        # Torch has checked both dimensions.
        first, last = module.start_dim % order, module.end_dim % order
        fewer = last - first
        return [(merged, one) for one, merged in groups_of_one_split(order - fewer, first, fewer + 1)]
