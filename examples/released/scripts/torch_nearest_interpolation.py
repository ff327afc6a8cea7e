"""interpolate(mode="nearest") in one dimension: where a factor keeps a length, backward takes the elements in their order, and forward does not."""

import torch
from torch.nn.functional import interpolate

x = torch.tensor([[[1.0, 2.0]]], requires_grad=True)
y = interpolate(x, scale_factor=1.2)
(gradient,) = torch.autograd.grad(y, x, torch.tensor([[[10.0, 20.0]]]))
print(f"interpolate([1, 2]) = {y.flatten().tolist()}: both are the first element")
print(f"gradient of [10, 20] = {gradient.flatten().tolist()}, should be [30, 0]")
