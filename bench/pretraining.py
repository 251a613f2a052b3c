"""A pretraining step against `transformers.XLNetLMHeadModel` with the same weights, interleaved in one run.

    python bench/pretraining.py                   # all cases, about five minutes on two cores
    python bench/pretraining.py --case mini-128   # one
    python bench/pretraining.py --cpu-time        # CPU time of one thread, for a busy machine

Both get the same ids, segment ids, factorization orders (one token in six is a target) and memory, and compute the loss
of the same targets; forward and backward, no optimizer. Time is the best of interleaved repetitions: other work on
the machine can only add to it. The losses of both are compared before anything is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aplc.nn.xlnet import XLNet, XLNetConfig
from aplc.pretrain.config import ObjectiveConfig
from aplc.pretrain.objective import PermutationLM
from aplc.pretrain.permutation import PermutationBatch, make_batch, perm_mask
from encoder import BASE, SMALL, interleaved

TINY = {"d_model": 128, "n_layer": 2, "n_head": 4, "d_inner": 512, "vocab_size": 8000}
CASES = {  # size, segments, tokens, memory, repetitions
    "tiny-128": (TINY, 16, 128, 32, 15),
    "mini-128": (SMALL, 32, 128, 64, 7),
    "mini-512": (SMALL, 8, 512, 0, 7),
    "base-512": (BASE, 2, 512, 384, 3),
}


def build(config: dict[str, int], memory: int, dropout: float) -> dict[str, Any]:
    import transformers

    sizes: dict[str, Any] = {**config, "dropout": dropout, "mem_len": memory or None}
    ours = PermutationLM(XLNet(XLNetConfig(**sizes)))
    theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**sizes))
    theirs.load_state_dict(ours.state_dict(), strict=False)
    theirs.tie_weights()
    return {"aplc": ours, "transformers": theirs}


def batch(config: dict[str, int], rows: int, tokens: int, seed: int) -> PermutationBatch:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(10, config["vocab_size"], tokens) for _ in range(rows)]
    types = [np.arange(tokens) // 100 for _ in range(rows)]
    special = [np.zeros(tokens, dtype=bool) for _ in range(rows)]
    return make_batch(ids, types, special, rng.random(config["vocab_size"]) < 0.6, ObjectiveConfig(), rng)


def given(made: PermutationBatch) -> dict[str, Tensor]:
    return {
        "input_ids": made.input_ids,
        "token_type_ids": made.token_type_ids,
        "perm_mask": perm_mask(made.order).float(),
        "target_mapping": torch.nn.functional.one_hot(made.places, made.input_ids.shape[1]).float(),
        "labels": made.labels,
    }


def step_ours(model: Any, made: PermutationBatch, mems: Any) -> float:
    model.zero_grad(set_to_none=True)
    loss = model(made, mems)[0]
    loss.backward()
    return float(loss.detach())


def step_theirs(model: Any, inputs: dict[str, Tensor], mems: Any) -> float:
    model.zero_grad(set_to_none=True)
    loss = model(**inputs, mems=mems, use_mems=True).loss
    loss.backward()
    return float(loss.detach())


def time_case(name: str, clock: Callable[[], float]) -> None:
    config, rows, tokens, memory, repetitions = CASES[name]
    for dropout in (0.0, 0.1):
        models = build(config, memory, dropout)
        before, made = batch(config, rows, memory, 1) if memory else None, batch(config, rows, tokens, 0)
        mems = their_mems = None
        with torch.no_grad():
            if before is not None:
                mems = models["aplc"](before)[1]
                their_mems = tuple(layer.transpose(0, 1).contiguous() for layer in mems)
        inputs = given(made)
        if dropout == 0.0:
            losses = step_ours(models["aplc"], made, mems), step_theirs(models["transformers"], inputs, their_mems)
            assert abs(losses[0] - losses[1]) < 1e-4, losses
        for model in models.values():
            model.train()
        runs = {
            "aplc": partial(step_ours, models["aplc"], made, mems),
            "transformers": partial(step_theirs, models["transformers"], inputs, their_mems),
        }
        t = interleaved(runs, repetitions, clock)
        print(
            f"{name:9s} {rows} x {tokens} tokens, memory {memory}, dropout {dropout}: aplc {t['aplc']:.3f} s  "
            f"transformers {t['transformers']:.3f} s  ratio {t['transformers'] / t['aplc']:.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, help="one case instead of all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="CPU time of one thread")
    args = parser.parse_args()
    torch.set_num_threads(1 if args.cpu_time else args.threads)
    torch.manual_seed(0)
    for name in [args.case] if args.case else CASES:
        time_case(name, time.process_time if args.cpu_time else time.perf_counter)


if __name__ == "__main__":
    main()
