"""A synthetic corpus of any size: Zipf labels, words that hint at them, lengths as abstracts have them.

    python bench/synthetic.py OUT --documents 100000 --labels 670091

Writes OUT/train.jsonl and OUT/test.jsonl (a hundredth of the documents, at most 2,000). Every label occurs in the
training part: document i carries label i, i + documents, ... beside those drawn. 40,000 documents a second.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

BLOCK = 10_000
WORDS = 5_000


def rows(
    n: int, n_labels: int, *, labels_each: int, words_each: int, cover: bool, seed: int
) -> Iterator[dict[str, object]]:
    rng = np.random.default_rng(seed)
    words = np.array([f"w{i:x}" for i in range(WORDS)])
    # A label's place in the ranking is scattered over its names, so that frequency order is not the order of names.
    names = np.random.default_rng(0).permutation(n_labels)
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        ranks = np.exp(rng.random((size, labels_each)) * np.log(n_labels)).astype(np.int64) - 1  # P(rank) ~ 1 / rank
        n_words = np.clip(rng.lognormal(np.log(words_each), 0.6, size), 4, 12 * words_each).astype(np.int64)
        drawn = (WORDS * rng.random(int(n_words.sum())) ** 3).astype(np.int64)
        ends = np.cumsum(n_words)
        for i in range(size):
            own = set(ranks[i].tolist())
            if cover:
                own.update(range(start + i, n_labels, n))
            text = drawn[ends[i] - n_words[i] : ends[i]].copy()
            first = list(own)[:4]
            text[: len(first)] = [rank % WORDS for rank in first]  # something to learn from
            yield {"text": " ".join(words[text]), "labels": [f"label {names[rank]}" for rank in own]}


def write(out: Path, documents: int, labels: int, *, labels_each: int = 5, words_each: int = 60) -> None:
    out.mkdir(parents=True, exist_ok=True)
    parts = {"train": (documents, True), "test": (max(1, min(2_000, documents // 100)), False)}
    for seed, (part, (n, cover)) in enumerate(parts.items()):
        with (out / f"{part}.jsonl").open("w", encoding="utf-8") as stream:
            for row in rows(n, labels, labels_each=labels_each, words_each=words_each, cover=cover, seed=seed):
                stream.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--labels", type=int, default=670_091)
    parser.add_argument("--labels-each", type=int, default=5, help="labels drawn for a document")
    parser.add_argument("--words-each", type=int, default=60, help="median words of a document")
    args = parser.parse_args()
    write(args.out, args.documents, args.labels, labels_each=args.labels_each, words_each=args.words_each)
