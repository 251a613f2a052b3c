"""LabelClusters against a flat layer, against itself in plain autograd, and against its own multiplications.

    python bench/clusters.py                      # all five shapes of the paper, about three minutes
    python bench/clusters.py --shape amazon-670k --rounds 9

Each round runs every candidate once, one after the other, so that a busy machine troubles all alike; ratios are taken
within a round, and the table has their median. Times are medians too. Labels are Zipf: exponent 0.82 puts 75 % of the
mass on 20 % of the labels, as the paper says of Wiki-500k. The limit is the time that the layer's multiplications, for
the very rows that touch each tail, would take at the speed of a product of two 2048 x 2048 matrices in the same round.
Memory is a fresh process' peak during its first step, beyond weights, their gradients and what was there before.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from aplc.nn.clusters import LabelClusters
from aplc.nn.partition import Partition
from reference import naive_cluster_loss


@dataclass(frozen=True)
class Shape:
    """Tables 1-3 of the paper."""

    n_labels: int
    labels_per_row: float
    in_features: int
    proportions: tuple[float, ...]
    batch_size: int


SHAPES = {
    "eurlex-4k": Shape(3_956, 5.30, 768, (0.5, 0.5), 12),
    "amazoncat-13k": Shape(13_330, 5.04, 768, (0.5, 0.5), 48),
    "wiki10-31k": Shape(30_938, 18.64, 768, (0.5, 0.5), 12),
    "wiki-500k": Shape(501_069, 4.87, 768, (0.33, 0.33, 0.34), 64),
    "amazon-670k": Shape(670_091, 5.45, 512, (0.25, 0.25, 0.25, 0.25), 32),
}
ZIPF = 0.82
SQUARE = 2048


def make_layer(shape: Shape) -> LabelClusters:
    partition = Partition.from_proportions(shape.n_labels, shape.proportions)
    return LabelClusters(shape.in_features, partition.cutoffs, shape.n_labels)


def make_labels(shape: Shape, seed: int) -> Tensor:
    """Label lists of Zipf-distributed ids, padded with -100."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.arange(1, shape.n_labels + 1, dtype=torch.float64) ** -ZIPF
    counts = (
        torch.poisson(torch.full((shape.batch_size,), shape.labels_per_row), generator=generator).clamp(min=1).long()
    )
    width = int(counts.max())
    draws = torch.rand(shape.batch_size, width, generator=generator, dtype=torch.float64) * weights.sum()
    labels = torch.searchsorted(weights.cumsum(0), draws).clamp(max=shape.n_labels - 1)
    return labels.masked_fill(torch.arange(width) >= counts[:, None], -100)


def flat_loss(flat: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    rows, places = (labels >= 0).nonzero(as_tuple=True)
    target = torch.zeros(len(hidden), flat.out_features)
    target[rows, labels[rows, places]] = 1.0
    return nn.functional.binary_cross_entropy_with_logits(flat(hidden), target)


def multiplications(layer: LabelClusters, labels: Tensor) -> int:
    """Of a forward and backward pass: three products for every linear map, and only for rows that take part."""
    total = labels.shape[0] * layer.head.weight.numel()
    for t, tail in enumerate(layer.tails):
        inside = (labels >= layer.bounds[t + 1]) & (labels < layer.bounds[t + 2])
        total += int(inside.any(dim=1).sum()) * (tail.project.weight.numel() + tail.output.weight.numel())
    return 3 * total


def seconds(run: Callable[..., object], *inputs: object, **options: object) -> float:
    start = time.perf_counter()
    run(*inputs, **options)
    return time.perf_counter() - start


def train_step(module: nn.Module, loss: Callable[..., Tensor], *inputs: object) -> None:
    module.zero_grad()
    loss(*inputs).backward()


def measure_training(shape: Shape, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    layer, flat = make_layer(shape), nn.Linear(shape.in_features, shape.n_labels, bias=False)
    hidden, square = torch.randn(shape.batch_size, shape.in_features, requires_grad=True), torch.randn(SQUARE, SQUARE)
    product = torch.empty_like(square)
    times: dict[str, list[float]] = {name: [] for name in ("ours", "flat", "naive", "limit")}
    for seed in range(rounds + 1):
        labels = make_labels(shape, seed)
        square_seconds = min(seconds(torch.mm, square, square, out=product) for _ in range(3))
        ours = [seconds(train_step, layer, layer, hidden, labels)]
        flat_seconds = seconds(train_step, flat, flat_loss, flat, hidden, labels)
        ours.append(seconds(train_step, layer, layer, hidden, labels))  # before and after the flat layer
        naive_seconds = seconds(train_step, layer, naive_cluster_loss, layer, hidden, labels)
        layer.zero_grad()
        if seed == 0:
            continue  # warms up
        times["ours"].append(statistics.mean(ours))
        times["flat"].append(flat_seconds)
        times["naive"].append(naive_seconds)
        times["limit"].append(multiplications(layer, labels) * square_seconds / SQUARE**3)
    result = {name: statistics.median(values) for name, values in times.items()}
    for name in ("flat", "naive", "limit"):
        result[f"{name}/ours"] = statistics.median(a / b for a, b in zip(times[name], times["ours"], strict=True))
    return result


def full_top5(layer: LabelClusters, hidden: Tensor) -> object:
    return layer.probabilities(hidden).topk(5)


@torch.no_grad()
def measure_topk(shape: Shape, rounds: int) -> dict[str, float]:
    """Tails rarely win: their roots' logits are about -12, far below the head's fifth label."""
    torch.manual_seed(0)
    layer, hidden = make_layer(shape), torch.randn(shape.batch_size, shape.in_features)
    hidden[:, 0] = 4.0
    layer.head.weight[layer.head_size :, 0] = -3.0
    ratios, pruned, full = [], [], []
    for _ in range(rounds + 1):
        pruned.append(seconds(layer.topk, hidden, k=5))
        full.append(seconds(full_top5, layer, hidden))
        ratios.append(full[-1] / pruned[-1])
    expected, expected_ids = layer.probabilities(hidden).topk(5)
    probs, ids = layer.topk(hidden, k=5)
    assert torch.equal(probs, expected)
    assert torch.equal(ids, expected_ids)
    return {"topk": statistics.median(pruned[1:]), "full/topk": statistics.median(ratios[1:])}


def peak_memory(name: str) -> float:
    """MB that a first step takes beyond weights and gradients, in a fresh process."""
    run = [sys.executable, __file__, "--shape", name, "--memory-of-one-step"]
    return float(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


def memory_of_one_step(shape: Shape) -> float:
    layer, hidden = make_layer(shape), torch.randn(shape.batch_size, shape.in_features, requires_grad=True)
    labels = make_labels(shape, seed=0)
    small = LabelClusters(8, [10], 20)
    small(torch.randn(2, 8), torch.tensor([[1], [12]])).backward()  # what PyTorch loads at its first step
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    layer(hidden, labels).backward()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    gradients = sum(p.grad.numel() * p.grad.element_size() for p in layer.parameters() if p.grad is not None)
    return (int(peak.split()[1]) * 1024 - before - gradients) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="one shape; may be repeated; default all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-of-one-step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = options.shape or list(SHAPES)
    if options.memory_of_one_step:
        print(memory_of_one_step(SHAPES[names[0]]))
        return
    print("| shape | ours | flat | flat / ours | naive / ours | ours / limit | top-5 | full / top-5 | extra memory |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        rounds = options.rounds * (1 if SHAPES[name].n_labels > 100_000 else 10)
        row = measure_training(SHAPES[name], rounds) | measure_topk(SHAPES[name], rounds)
        print(
            f"| {name} | {row['ours'] * 1e3:.1f} ms | {row['flat'] * 1e3:.1f} ms | {row['flat/ours']:.2f} "
            f"| {row['naive/ours']:.2f} | {1 / row['limit/ours']:.2f} | {row['topk'] * 1e3:.1f} ms "
            f"| {row['full/topk']:.2f} | {peak_memory(name):.0f} MB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
