"""LeNet-5 on scikit-learn's digits: the distributed network trains as the sequential one does.

python examples/lenet_digits.py, or mpiexec -n 4 python examples/lenet_digits.py, with torch and scikit-learn, which has the digits.

Four workers cut images in both directions, and the linear layers along output and input features. Both networks begin with the
same values, see the same batches and take 50 steps of gradient descent in float64. They differ by rounding alone, since
sums are taken in another order: by less than BOUND, relative to each loss, and to the largest element of each parameter.
"""

import sys

import torch
from sklearn.datasets import load_digits

import adjointlab as al
from adjointlab.layers import CrossEntropyLoss, LeNet5, local_window
from adjointlab.worlds.launch import open_world

STEPS, BATCH, RATE = 50, 32, 0.2
BOUND = 1e-12  # some 4000 units of rounding: 50 steps, each with sums of up to 25000 terms


def batches(steps):
    """The digits, 8 x 8, as images of 32 x 32, and their classes."""
    digits = load_digits()
    images = torch.tensor(digits.images / 8 - 1).repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None]
    classes = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    for chosen in order.repeat(1 + steps * BATCH // len(order)).split(BATCH)[:steps]:
        yield images[chosen], classes[chosen]


def train_sequential(network, steps):
    optimiser, error = torch.optim.SGD(network.parameters(), RATE), torch.nn.CrossEntropyLoss()
    losses = []
    for images, classes in batches(steps):
        optimiser.zero_grad()
        loss = error(network(images), classes)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def train_distributed(network, error, steps):
    optimiser, rank = torch.optim.SGD(network.parameters(), RATE), network.comm.Get_rank()
    x, (_, labels) = network.domain.tensors[0], error.domain.tensors
    losses = []
    for images, classes in batches(steps):
        optimiser.zero_grad()
        local_images = local_window(images, x.layout, rank)
        local_classes = local_window(classes, labels.layout, rank)
        loss = error(network(local_images), local_classes)  # on rank 0; of zero volume elsewhere
        loss.backward()  # on every rank
        optimiser.step()  # every worker its own parameters
        losses += loss.tolist() if loss.ndim else [loss.item()]
    return losses


def body(context, steps):
    """One rank's part; the result is the same on every rank."""
    comm = context.comm
    torch.manual_seed(0)
    network = LeNet5(comm, BATCH, al.Partition((2, 2)), al.Partition((2, 2)), dtype=torch.float64)
    error = CrossEntropyLoss(comm, network.output_partition, (BATCH, 10), dtype=torch.float64)
    torch.manual_seed(0)
    sequential = network.sequential()  # on every rank: the same values
    losses = comm.bcast(train_distributed(network, error, steps))
    expected = train_sequential(sequential, steps)
    loss_errors = [abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)]
    state = network.sequential_state_dict()
    parameter_errors = {
        name: ((state[name] - value).abs().max() / value.abs().max()).item()
        for name, value in sequential.state_dict().items()
    }
    return losses, max(loss_errors), max(parameter_errors.values())


def main(steps=STEPS):
    world = open_world(ranks=4)
    run = world.run(body, steps, 4)
    if not run.completed:
        sys.exit(str(run) if world.is_leader else 1)  # printed once
    losses, loss_error, parameter_error = run.values[0]
    if world.is_leader:
        for step in range(0, steps, 10):
            print(f"step {step + 1:3}   loss {losses[step]:.6f}")
        print(f"step {steps:3}   loss {losses[-1]:.6f}")
        print(
            f"losses differ by {loss_error:.1e} at most, parameters by {parameter_error:.1e}; the bound is {BOUND:.0e}"
        )
    world.close()
    return 0 if max(loss_error, parameter_error) < BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
