"""Guards what docs/clusters.md says of DistributedDataParallel: it works with find_unused_parameters=True."""

import torch
import torch.multiprocessing as mp

from aplc.nn.clusters import LabelClusters


def example():
    """Rank 1 has no label of the second tail."""
    torch.manual_seed(0)
    layer = LabelClusters(12, [7, 16], 31, dtype=torch.float64)
    return layer, torch.randn(4, 12, dtype=torch.float64), torch.tensor([[0, 30], [8, 20], [1, 2], [9, 3]])


def work(rank, port, folder):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    layer, hidden, labels = example()
    wrapped = DistributedDataParallel(layer, find_unused_parameters=True)
    mine = slice(2 * rank, 2 * rank + 2)
    for _ in range(2):  # without the option, the second step fails
        layer.zero_grad()
        wrapped(hidden[mine], labels[mine]).backward()
    torch.save({name: parameter.grad for name, parameter in layer.named_parameters()}, folder / str(rank))
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_have_the_gradients_of_the_whole_batch(unused_port, tmp_path):
    mp.start_processes(work, (unused_port, tmp_path), nprocs=2, start_method="spawn")
    layer, hidden, labels = example()
    layer(hidden, labels).backward()  # released: a mean over rows, so the mean over ranks is that of the batch
    for rank in (0, 1):
        found = torch.load(tmp_path / str(rank))
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")
