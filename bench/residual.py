"""Does a network learn more on what the words leave over? A trial on frozen states of an encoder, minutes on a CPU.

    python bench/residual.py CORPUS --encoder FOLDER --out DIR

A hidden layer and an output for every label, on the encoder's mean state (kept in DIR), is trained twice on the same
training documents: alone, and with the words' leave-one-out logits added to its own, for the 50 labels that the words
propose for a document (all others have the log-odds of a label that is not proposed). A tenth of the documents chooses
the epoch. Both are then blended with the words (`aplc/models/blend.py`) by five-fold cross-validation on documents that
neither has seen. Encoders that are fine-tuned cost hours; whether their residual is worth more is not answered here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize
from transformers import AutoModel, AutoTokenizer

from aplc.config import Config
from aplc.console import Screen
from aplc.data.batches import by_length
from aplc.data.corpus import Corpus
from aplc.data.source import Source, read_training_data
from aplc.files import digest
from aplc.words.index import best_columns, rising
from aplc.words.ridge import leave_one_out
from blending import SHOWN, Bench

PROPOSED, EPOCHS, BATCH, HELD_OUT = 50, 40, 64, 2_380


def states_of(texts: list[str], folder: str) -> Tensor:
    """Mean states of the first 128 tokens, of length 1."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = torch.empty(len(texts), encoder.config.hidden_size)
    with Screen().bar("encoding", len(texts)) as advance, torch.inference_mode():
        for members in by_length([len(text) for text in texts], 32):
            batch = tokenizer(
                [texts[i] for i in members], truncation=True, max_length=128, padding=True, return_tensors="pt"
            )
            mask = batch["attention_mask"][..., None]
            found[members] = normalize((encoder(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))
            advance(len(members))
    return found


class Offsets:
    """The words' logits of the labels they propose, (N, 50) each, and one number for all other labels."""

    def __init__(self, label_NK: np.ndarray, logit_NK: np.ndarray, other: float, n_labels: int) -> None:
        self.label_NK, self.logit_NK = torch.from_numpy(label_NK), torch.from_numpy(logit_NK.astype(np.float32))
        self.other, self.n_labels = other, n_labels

    def __call__(self, rows: Tensor) -> Tensor:
        whole = torch.full((len(rows), self.n_labels), self.other)
        return whole.scatter_(1, self.label_NK[rows], self.logit_NK[rows])


def fit(states_ND: Tensor, y_NL: sparse.csr_array, offsets: Offsets | None, log_odds_L: Tensor) -> nn.Module:
    """The network of the best epoch, by the loss of a tenth of the documents."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(states_ND.shape[1], 1024), nn.ReLU(), nn.Dropout(0.2), nn.Linear(1024, len(log_odds_L))
    )
    last = network[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.zeros_like(log_odds_L) if offsets else log_odds_L)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    order = torch.randperm(len(states_ND))
    judged, taught = order[: len(order) // 10], order[len(order) // 10 :]

    def loss(rows: Tensor) -> Tensor:
        logits = network(states_ND[rows])
        truth = torch.from_numpy(y_NL[rows.numpy()].toarray())
        return binary_cross_entropy_with_logits(
            logits + offsets(rows) if offsets else logits, truth, reduction="sum"
        ) / len(rows)

    best, kept = float("inf"), network.state_dict()
    for _ in range(EPOCHS):
        network.train()
        for rows in taught[torch.randperm(len(taught))].split(BATCH):
            optimizer.zero_grad()
            loss(rows).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            judgement = sum(float(loss(rows)) * len(rows) for rows in judged.split(256)) / len(judged)
        if judgement < best:
            best, kept = judgement, {name: tensor.clone() for name, tensor in network.state_dict().items()}
        elif judgement > 1.02 * best:
            break
    print(f"loss of the best epoch: {best:.3f}", flush=True)
    network.load_state_dict(kept)
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    settings = ["data.validation=0.2", f"data.validation_limit={HELD_OUT}"]
    data = read_training_data(
        Source.from_corpus(Corpus.open(args.corpus)), Config().with_settings(settings).data, 0, Screen()
    )
    kept = args.out / f"states-{digest(data.source.key, args.encoder)}.npy"
    if not kept.is_file():
        args.out.mkdir(parents=True, exist_ok=True)
        np.save(kept, states_of([document.text for document in data.source.train()], args.encoder).numpy())
    states = torch.from_numpy(np.load(kept))
    bench, n_labels = Bench(data), len(data.labels)
    counts = np.bincount(bench.y.indices, minlength=n_labels)

    words = bench.ridge()
    scored = leave_one_out(bench.x, bench.y, 0.5)
    curve_3NK = np.moveaxis(scored.finish(counts)[scored.label_MK], -1, 0)
    missed = bench.y.nnz - scored.hit_MK.sum()
    other = float(np.log(missed / (len(scored.score_MK) * (n_labels - PROPOSED))))
    learned = Offsets(scored.label_MK, rising(scored.score_MK, curve_3NK), other, n_labels)
    best_VK = best_columns(words, PROPOSED)
    asked = Offsets(best_VK, np.take_along_axis(words, best_VK, 1), other, n_labels)

    share_L = torch.from_numpy((counts + 0.5) / (len(data.train_rows) + 1)).float()
    log_odds_L, train, valid = torch.logit(share_L), states[data.train_rows], states[data.valid_rows]
    print(f"| what | {' | '.join((*SHOWN, 'ECE@5'))} |\n{'| --- ' * (2 + len(SHOWN))}|")
    bench.show("words", words)
    for name, offsets in (("network alone", None), ("network on what the words leave over", learned)):
        network = fit(train, bench.y, offsets, log_odds_L)
        with torch.no_grad():
            own = network(valid)
        alone = own.numpy() if offsets is None else (own + asked(torch.arange(len(valid)))).numpy()
        bench.show(name, alone)
        bench.show(f"words and {name}, blended", bench.blend(words, alone))
        if offsets:
            bench.show("words and what it adds, blended", bench.blend(words, own.numpy()))


if __name__ == "__main__":
    main()
