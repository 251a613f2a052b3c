"""A training step of an encoder of `transformers` on a CPU: what precision, attention, dropout and size cost.

    python bench/steps.py minilm

The same step as `aplc train` takes, without the output layer, on made-up documents of one length; the best of five.
`fused` is PyTorch's scaled_dot_product_attention, `written out` its products one by one.
"""

from __future__ import annotations

import argparse
import time

import torch

from aplc.config import ModelConfig
from aplc.data.tokenizer import Tokenizer
from aplc.nn.encoder import build_encoder
from aplc.nn.weights import encoder_folder

CASES = [
    ("float32, fused, dropout 0.1", {"dropout": 0.1}),
    ("float32, fused", {}),
    ("bfloat16, fused", {"bfloat16": True, "attention": "sdpa"}),
    ("bfloat16, written out (taken)", {"bfloat16": True}),
]
SHAPES = [(32, 128), (16, 256), (32, 256)]


def step_seconds(
    name: str,
    shape: tuple[int, int],
    *,
    dropout: float = 0.0,
    bfloat16: bool = False,
    attention: str | None = None,
) -> float:
    vocab_size = Tokenizer.load(encoder_folder(name)).vocab_size
    model = ModelConfig(encoder=name, dropout=dropout)
    encoder = build_encoder(model, vocab_size=vocab_size, max_length=shape[1]).train()
    if bfloat16:
        encoder.train_in_bfloat16()
    if attention:
        encoder.body.set_attn_implementation(attention)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(vocab_size // 2, vocab_size, shape, generator=torch.Generator().manual_seed(0))
    mask, types, times = torch.ones_like(ids), torch.zeros_like(ids), []
    for _ in range(5):
        start = time.perf_counter()
        encoder(ids, mask, types).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    args = parser.parse_args()
    print(f"| seconds a step | {' | '.join(f'{b} x {t}' for b, t in SHAPES)} |\n| --- {'| ---: ' * len(SHAPES)}|")
    for name, options in CASES:
        seconds = [step_seconds(args.encoder, shape, **options) for shape in SHAPES]
        print(f"| {name} | {' | '.join(f'{s:.2f}' for s in seconds)} |", flush=True)


if __name__ == "__main__":
    main()
