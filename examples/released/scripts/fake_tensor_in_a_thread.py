"""A torch 2.11.0 that is built with CUDA, on a machine without a device: ends by a segmentation fault (2.13.0 and 2.14.1 pass)."""

import threading

import torch
from torch._subclasses import FakeTensorMode


def enter() -> None:
    with FakeTensorMode():  # as DTensor does for each new operation
        pass


if not torch.version.cuda or torch.cuda.is_available():
    raise SystemExit("needs a torch that is built with CUDA, and no device")
for number in range(3):
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    print("thread", number, "has ended", flush=True)
