"""Guards sharded label clusters: on two processes, loss, gradients and top-k are those of the whole layer."""

import pytest
import torch
import torch.multiprocessing as mp

from aplc.nn.clusters import LabelClusters

OPTIONS = {"in_features": 12, "cutoffs": [7, 16], "n_labels": 31, "bias": True, "dtype": torch.float64}


def work(rank, port, objective, folder):
    import torch.distributed as dist

    from aplc.nn.sharded import ShardedLabelClusters

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    whole, hidden, labels = example(objective)
    layer = ShardedLabelClusters(**OPTIONS, objective=objective)
    layer.load_state_dict({name: layer.slice_of(name, tensor) for name, tensor in whole.state_dict().items()})
    mine = slice(0, 3) if rank == 0 else slice(3, 8)  # unequal shares
    own = hidden[mine].clone().requires_grad_()
    loss = layer(own, labels[mine])
    loss.backward()
    found = layer.topk(hidden[mine], k=9)
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    torch.save((loss.detach(), own.grad, found.probs, found.ids, gradients), folder / str(rank))
    dist.barrier()
    dist.destroy_process_group()


def example(objective):
    torch.manual_seed(0)
    whole = LabelClusters(**OPTIONS, objective=objective)
    hidden = torch.randn(8, 12, dtype=torch.float64)
    labels = torch.randint(0, 31, (8, 4))
    labels[2] = -100
    labels[5, 1:] = -100
    labels[0] = torch.tensor([0, 1, 2, 30])
    return whole, hidden, labels


@pytest.mark.parametrize("objective", ["released", "paper"])
def test_two_shards_match_the_whole_layer(objective, unused_port, tmp_path):
    mp.start_processes(work, (unused_port, objective, tmp_path), nprocs=2, start_method="spawn")
    parts = [torch.load(tmp_path / str(rank)) for rank in (0, 1)]

    whole, hidden, labels = example(objective)
    hidden.requires_grad_()
    loss = whole(hidden, labels)
    loss.backward()
    probs, ids = whole.topk(hidden, k=9)
    for part in parts:
        torch.testing.assert_close(part[0], loss.detach())
    stacked = [torch.cat([part[i] for part in parts]) for i in (1, 2, 3)]
    torch.testing.assert_close(stacked[0], hidden.grad)
    torch.testing.assert_close(stacked[1], probs)
    assert torch.equal(stacked[2], ids)
    for name, parameter in whole.named_parameters():
        first, second = (part[4][name] for part in parts)
        if name.startswith("head."):  # a slice of the leaves each, and partial sums for the two roots
            joined = torch.cat([first[:-2], second[:-2], first[-2:] + second[-2:]])
        else:
            joined = torch.cat([first, second]) if ".output." in name else first + second
        torch.testing.assert_close(joined, parameter.grad, msg=lambda text, name=name: f"{name}: {text}")
