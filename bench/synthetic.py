"""A synthetic corpus of any size, with what real ones have: Zipf words and labels, words that tell of labels, groups of
labels that occur together.

    python bench/synthetic.py OUT --documents 490449 --labels 670091 --words-each 247       # the size of Amazon-670k

Writes OUT/train.jsonl and OUT/test.jsonl (a tenth of the documents, at most 2,000). Every label occurs in the
training part: document i carries its share of all labels, which are neighbours in a group, beside those drawn.

A label has `OWN` words that tell of it, a group of labels shares others; both are drawn from the same vocabulary as all
words, so that they occur elsewhere too. A third of a document's words tell of its labels, a sixth of its group.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

BLOCK = 10_000
GROUP, OWN, GROUP_OWN = 40, 8, 20
"""Labels of a group; words that tell of a label, and of a group."""


def rows(
    n: int, n_labels: int, *, labels_each: float, words_each: int, cover: bool, seed: int
) -> Iterator[dict[str, object]]:
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(0)
    n_words, n_groups = 20_000 + n_labels // 4, -(-n_labels // GROUP)
    words = np.array([f"w{i:x}" for i in range(n_words)])
    names = fixed.permutation(n_labels)
    own_LK = (n_words * fixed.random((n_labels, OWN)) ** 2).astype(np.int64)
    own_GK = (n_words * fixed.random((n_groups, GROUP_OWN)) ** 2).astype(np.int64)
    covered = max(1.0, n_labels / n) if cover else 0.0
    extra = max(0.0, labels_each - (covered or 1.0))
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        edges = ((start + np.arange(size + 1)) * covered).astype(np.int64)
        first_B = edges[:-1] % n_labels
        last_B = first_B + np.diff(edges)
        if not cover:
            first_B = _zipf(rng, size, n_labels)
            last_B = first_B + 1
        n_drawn = rng.poisson(extra, size)
        lengths = np.clip(rng.lognormal(np.log(words_each) - 0.18, 0.6, size), 4, 12 * words_each).astype(np.int64)
        for i in range(size):
            group = int(first_B[i]) // GROUP
            drawn = GROUP * group + (GROUP * rng.random(n_drawn[i]) ** 2).astype(
                np.int64
            )  # of its group, some far more
            elsewhere = rng.random(n_drawn[i]) < 0.3
            drawn[elsewhere] = _zipf(rng, int(elsewhere.sum()), n_labels)
            own = np.unique(np.minimum([*range(first_B[i], last_B[i]), *drawn], n_labels - 1))
            kind = rng.random(lengths[i])
            text = (n_words * rng.random(lengths[i]) ** 4).astype(np.int64)
            tells = kind < 0.33
            text[tells] = own_LK[rng.choice(own, tells.sum()), (OWN * rng.random(tells.sum()) ** 1.5).astype(np.int64)]
            of_group = (kind >= 0.33) & (kind < 0.5)
            text[of_group] = own_GK[group, rng.integers(0, GROUP_OWN, of_group.sum())]
            yield {"text": " ".join(words[text]), "labels": [f"label {names[label]}" for label in own]}


def _zipf(rng: np.random.Generator, n: int, n_labels: int) -> np.ndarray:
    """Labels by falling frequency, P(rank) ~ 1 / rank; ranks are scattered over the groups."""
    ranks = np.exp(rng.random(n) * np.log(n_labels)).astype(np.int64) - 1
    return ranks * 7_919 % n_labels


def write(out: Path, documents: int, labels: int, *, labels_each: float = 5, words_each: int = 60) -> None:
    out.mkdir(parents=True, exist_ok=True)
    parts = {"train": (documents, True), "test": (max(1, min(2_000, documents // 10)), False)}
    for seed, (part, (n, cover)) in enumerate(parts.items()):
        with (out / f"{part}.jsonl").open("w", encoding="utf-8") as stream:
            for row in rows(n, labels, labels_each=labels_each, words_each=words_each, cover=cover, seed=seed):
                stream.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--labels", type=int, default=670_091)
    parser.add_argument("--labels-each", type=float, default=5, help="labels of a document, about")
    parser.add_argument("--words-each", type=int, default=60, help="words of a document, about")
    args = parser.parse_args()
    write(args.out, args.documents, args.labels, labels_each=args.labels_each, words_each=args.words_each)
