"""Our XLNet against `transformers.XLNetModel` with the same weights: time and peak memory, interleaved in one run.

    python bench/encoder.py                   # all cases, about ten minutes on two cores
    python bench/encoder.py --case small-512  # one

Both get the same ids, a left-padding mask and segment ids, and give the last token's state; backward starts from its
sum. Time is the best of interleaved repetitions, since other work on the machine can only add to it. `floor` is what
the matrix products of this pass would take at the speed of one 2048 x 2048 x 2048 product measured in the same run.
Memory is the peak of a training step above what model and gradients take, each in a process of its own. `real` draws
lengths as PubMed-MeSH has them; ours sorts them into batches of like length, transformers pads to the limit.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from aplc.nn.relative import BLOCK
from aplc.nn.xlnet import XLNet, XLNetConfig

SMALL = {"d_model": 256, "n_layer": 4, "n_head": 4, "d_inner": 1024, "vocab_size": 16000}
BASE = {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072, "vocab_size": 32000}
CASES = {  # size, documents, tokens, repetitions
    "small-128": (SMALL, 32, 128, 9),
    "small-512": (SMALL, 8, 512, 9),
    "base-128": (BASE, 8, 128, 5),
    "base-512": (BASE, 2, 512, 5),
}
REAL_LENGTHS = (
    10,
    13,
    15,
    18,
    20,
    23,
    27,
    35,
    89,
    123,
    152,
    179,
    206,
    240,
    285,
    367,
)  # of PubMed-MeSH with the demo's tokenizer, 16 quantiles


class Theirs(nn.Module):
    def __init__(self, config: dict[str, int], dropout: float) -> None:
        import transformers

        super().__init__()
        self.model = transformers.XLNetModel(transformers.XLNetConfig(**config, dropout=dropout, mem_len=None))

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        return self.model(ids, attention_mask=mask, token_type_ids=types, use_mems=False).last_hidden_state[:, -1]


def build(config: dict[str, int], dropout: float) -> dict[str, nn.Module]:
    ours = XLNet(XLNetConfig(**config, dropout=dropout))
    theirs = Theirs(config, dropout)
    theirs.model.load_state_dict(ours.state_dict())
    return {"aplc": ours, "transformers": theirs}


def batch(lengths: list[int], tokens: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.randint(10, vocabulary, (len(lengths), tokens))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, tokens - length :] = 1
    types = torch.zeros_like(ids)
    types[:, -1] = 2
    types[mask == 0] = 3
    return ids, mask, types


def step(model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor], backward: bool) -> None:
    if backward:
        model.zero_grad(set_to_none=True)
        model(*inputs).sum().backward()
    else:
        with torch.inference_mode():
            model(*inputs)


def interleaved(
    runs: dict[str, Callable[[], object]], repetitions: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repetitions):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(clock() - start)
    return {name: min(values) for name, values in times.items()}


def multiplications(config: dict[str, int], docs: int, tokens: int) -> float:
    """Operations of the forward pass' matrix products: positions projected once, last layer for one row."""
    d, inner, layers = config["d_model"], config["d_inner"], config["n_layer"]
    rows = docs * tokens
    keys = 2 * rows * d + 2 * tokens * d  # k and v of all tokens, r of all distances
    full = rows * (2 * d * d + 2 * d * inner) + keys * d + docs * d * tokens * (3 * tokens + min(tokens, BLOCK))
    last = docs * (2 * d * d + 2 * d * inner) + keys * d + docs * d * (3 * tokens)
    return 2.0 * ((layers - 1) * full + last)


def gemm_speed() -> float:
    a, b = torch.randn(2, 2048, 2048)
    return 2 * 2048**3 / min(interleaved({"x": lambda: torch.mm(a, b)}, 5).values())


def time_case(name: str, only: str) -> None:
    config, docs, tokens, repetitions = CASES[name]
    inputs = batch([tokens] * docs, tokens, config["vocab_size"])
    padded = batch([tokens - 7 * row for row in range(docs)], tokens, config["vocab_size"])
    for label, backward, dropout, given in (
        ("forward", False, 0.0, inputs),
        ("forward+backward, no dropout", True, 0.0, inputs),
        ("forward+backward, padding", True, 0.0, padded),
        ("forward+backward, dropout 0.1", True, 0.1, inputs),
    ):
        if only not in label:
            continue
        models = build(config, dropout)
        for model in models.values():
            model.train(backward)
        runs = {key: partial(step, model, given, backward) for key, model in models.items()}
        speed = gemm_speed()
        t = interleaved(runs, repetitions)
        speed = max(speed, gemm_speed())
        floor = multiplications(config, docs, tokens) * (3 if backward else 1) / speed
        print(
            f"{name:10s} {label:30s} aplc {t['aplc']:.3f} s  transformers {t['transformers']:.3f} s  "
            f"ratio {t['transformers'] / t['aplc']:.2f}  floor {floor:.3f} s  aplc/floor {t['aplc'] / floor:.2f}",
            flush=True,
        )


def real_case() -> None:
    """64 documents of real lengths, 4 x 256: ours in batches sorted by length, transformers padded to 512."""
    models = build(SMALL, 0.1)
    lengths = sorted(REAL_LENGTHS * 4)
    ours = [batch(lengths[i : i + 8], lengths[i + 7], SMALL["vocab_size"]) for i in range(0, len(lengths), 8)]
    theirs = [batch(lengths[i::8], 512, SMALL["vocab_size"]) for i in range(8)]
    work = {"aplc": ours, "transformers": theirs}

    def run(key: str) -> None:
        for inputs in work[key]:
            step(models[key], inputs, backward=True)

    t = interleaved({key: partial(run, key) for key in work}, 3)
    rate = {key: len(lengths) / seconds for key, seconds in t.items()}
    print(
        f"real       forward+backward, dropout 0.1  aplc {rate['aplc']:.1f} documents/s  transformers "
        f"{rate['transformers']:.1f}  ratio {rate['aplc'] / rate['transformers']:.2f}"
    )


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def memory_child(name: str, key: str) -> None:
    config, docs, tokens, _ = CASES[name]
    model = (XLNet(XLNetConfig(**config)) if key == "aplc" else Theirs(config, 0.1)).train()
    inputs = batch([tokens] * docs, tokens, config["vocab_size"])
    step(model, batch([8], 8, config["vocab_size"]), backward=True)  # gradients and library buffers exist already
    before, peak, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2):
        step(model, inputs, backward=True)
    done.set()
    watcher.join()
    print((peak - before) / 2**20)


def memory_case(name: str) -> None:
    grown = {}
    for key in ("aplc", "transformers"):
        command = [sys.executable, __file__, "--case", name, "--memory-of", key]
        grown[key] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ratio = grown["transformers"] / max(grown["aplc"], 1)
    print(f"{name:10s} peak memory of a training step     aplc {grown['aplc']:.0f} MB  transformers "
          f"{grown['transformers']:.0f} MB  ratio {ratio:.2f}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[*CASES, "real"], help="one case instead of all")
    parser.add_argument("--only", default="", help="only measurements with this text in their name, e.g. 'no dropout'")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.memory_of:
        memory_child(args.case, args.memory_of)
        return
    for name in [args.case] if args.case else [*CASES, "real"]:
        if name == "real":
            real_case()
        else:
            time_case(name, args.only)
            if args.only in "peak memory":
                memory_case(name)


if __name__ == "__main__":
    main()
