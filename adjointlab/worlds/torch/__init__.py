"""The torch world: real process groups of torch.distributed, in processes that torchrun has started."""
