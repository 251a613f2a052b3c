"""The paper's output layer in a network of your own: a bag of words, and label clusters on top of it.

    python examples/own_network.py work             # PubMed abstracts, 8,839 labels; about three minutes
    python examples/own_network.py work --fast      # a made sample; seconds

What the layer asks of you: label ids by falling frequency, padded with -100, and how many documents have each, to start
at the labels' log-odds. What it gives: a loss that never makes a documents x labels array, and the exact best k.
"""

import argparse
import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

from aplc import LabelClusters, Partition

Rows = list[dict]


def fetched(folder: Path) -> tuple[Rows, Rows]:
    """PubMed abstracts with their MeSH headings: training and test documents."""
    if not (folder / "train.jsonl").exists():
        command = [sys.executable, "-m", "aplc", "data", "pubmed-mesh", "--abstracts-only", "--out", str(folder)]
        subprocess.run(command, check=True)
    train, test = (
        [json.loads(line) for line in (folder / f"{part}.jsonl").read_text("utf-8").splitlines()]
        for part in ("train", "test")
    )
    return train, test


def made() -> tuple[Rows, Rows]:
    """Texts of words that name their labels, some labels far more frequent than others."""
    rng = random.Random(0)
    rows = []
    for _ in range(1200):
        labels = list({f"label{int(rng.paretovariate(0.7)) % 40}" for _ in range(3)})
        words = [label.replace("label", "word") for label in labels] + [f"noise{rng.randrange(50)}" for _ in range(4)]
        rows.append({"text": " ".join(words), "labels": labels})
    return rows[:1000], rows[1000:]


class Network(nn.Module):
    """Any network that ends in a vector for each document can stand in the place of the bag of words."""

    def __init__(self, n_words: int, label_lists: list[list[int]], n_labels: int, width: int = 256) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(n_words, width, padding_idx=0)
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1))
        partition = Partition.from_proportions(n_labels, (0.5, 0.5), div_value=2.0)
        self.labels = LabelClusters.from_partition(partition, in_features=width, bias=True)
        # The untrained layer predicts the labels' frequencies. A flat layer to compare with should start there, too.
        counts = Counter(i for ids in label_lists for i in ids)
        touched = partition.documents_touching(label_lists)
        self.labels.init_bias([counts[i] for i in range(n_labels)], len(label_lists), touched)

    def forward(self, words: Tensor) -> Tensor:
        hidden: Tensor = self.hidden(self.words(words))
        return hidden


def padded(lists: list[list[int]], filler: int) -> Tensor:
    longest = max(map(len, lists))
    return torch.tensor([items + [filler] * (longest - len(items)) for items in lists])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fast", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)

    train, test = made() if arguments.fast else fetched(arguments.folder)
    for row in train + test:
        row["words"] = re.findall(r"\w+", row["text"].lower())
    words = {
        word: i for i, (word, _) in enumerate(Counter(w for r in train for w in r["words"]).most_common(30_000), 1)
    }
    names = [name for name, _ in Counter(name for row in train for name in row["labels"]).most_common()]
    ids = {name: i for i, name in enumerate(names)}  # by falling frequency: the layer counts on it

    def batch(rows: Rows) -> tuple[Tensor, Tensor]:
        inputs = padded([[words[w] for w in row["words"] if w in words] or [0] for row in rows], 0)
        return inputs, padded([[ids[name] for name in row["labels"] if name in ids] or [-100] for row in rows], -100)

    network = Network(len(words) + 1, [[ids[name] for name in row["labels"]] for row in train], len(names))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    epochs = 15 if arguments.fast else 8
    for epoch in range(epochs):
        random.Random(epoch).shuffle(train)
        total = 0.0
        for start in range(0, len(train), 64):
            inputs, labels = batch(train[start : start + 64])
            loss = network.labels(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(inputs)
        print(f"epoch {epoch + 1}/{epochs}: loss {total / len(train):.4f}", flush=True)

    network.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(test), 64):
            _, found = network.labels.topk(network(batch(test[start : start + 64])[0]), k=1)
            chosen = zip(test[start : start + 64], found[:, 0].tolist(), strict=True)
            right += sum(names[i] in row["labels"] for row, i in chosen)
    print(f"P@1 on {len(test):,} test documents: {right / len(test):.1%}")


if __name__ == "__main__":
    main()
