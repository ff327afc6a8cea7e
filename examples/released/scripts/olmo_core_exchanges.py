"""ai2-olmo-core 3.0.0: exchanges of heads for parts of the sequence, with the ranks' parts of a tensor that counts its elements.

Packed queries, keys and values lose their order on the way back; tensors of different widths, in one message, are cut at the width of the
first; and a tensor in another memory order is received into memory of that order.
"""

import tempfile

import torch
import torch.distributed as dist
from olmo_core.distributed.parallel import context_parallel as cp


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    group = dist.group.WORLD

    def compare(name, function, whole, heads, is_back=False, change=lambda x: x):
        source, target = (heads, 1) if is_back else (1, heads)
        parts = [change(x.chunk(ranks, source)[rank].contiguous()) for x in whole]
        expected = [x.chunk(ranks, target)[rank] for x in whole]
        try:
            result = function(parts if len(parts) > 1 else parts[0], group)
            results = result if len(parts) > 1 else [result]
            print(f"rank {rank}, {name}: right is {all(map(torch.equal, results, expected))}")
        except RuntimeError as error:
            print(f"rank {rank}, {name}: {error}")

    packed = torch.arange(12.0).reshape(1, 2, 3, 2, 1)
    compare("all_to_all_single_cp2hp_qkvpacked", cp.all_to_all_single_cp2hp_qkvpacked, [packed], 3)
    compare("all_to_all_single_hp2cp_qkvpacked", cp.all_to_all_single_hp2cp_qkvpacked, [packed], 3, True)

    narrow, wide = torch.arange(4.0).reshape(1, 2, 2, 1), torch.arange(8.0).reshape(1, 2, 2, 2)
    compare("all_to_all_cp2hp of one width", cp.all_to_all_cp2hp, [wide, wide], 2)
    compare("all_to_all_cp2hp of two widths", cp.all_to_all_cp2hp, [narrow, wide], 2)
    compare("all_to_all_hp2cp of two widths", cp.all_to_all_hp2cp, [narrow, wide], 2, True)

    def turned(x):
        return x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)

    batch = torch.arange(16.0).reshape(2, 2, 2, 2)
    compare("all_to_all_single_cp2hp", cp.all_to_all_single_cp2hp, [batch], 2)
    compare("all_to_all_single_cp2hp, column-major", cp.all_to_all_single_cp2hp, [batch], 2, change=turned)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
