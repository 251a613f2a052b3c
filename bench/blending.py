"""Ways to put words and a network together, compared on held-out training documents.

    aplc train CORPUS --preset both --out NETWORK --set model.kind=network --set data.validation=0.2 \
        --set data.validation_limit=2400
    python bench/blending.py CORPUS NETWORK --encoder minilm

The network must have held out documents of the training part (no dev part), as above; words and states are fitted on
the others. States of the encoder are columns of the ridge regression beside the words: as it came (`frozen`), and as
the network's training left it (`tuned`). Blends (`aplc/models/blend.py`) are learned and judged by five-fold
cross-validation on the held-out documents.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from aplc.config import ModelConfig
from aplc.console import Screen
from aplc.data.batches import by_length
from aplc.data.corpus import Corpus
from aplc.data.source import Source, TrainingData, read_training_data
from aplc.evaluate.metrics import Metrics
from aplc.models.blend import FOLDS, Pairs, curves_at, log_odds, place, regress
from aplc.models.network import TaggingModel
from aplc.nn.encoder import Encoder, build_encoder
from aplc.store.folder import load_tagger
from aplc.train.both import pairs_of
from aplc.words.curves import LEARN_FROM
from aplc.words.fit import count_documents, read_matrices
from aplc.words.index import rising
from aplc.words.model import WordFeatures, best_labels
from aplc.words.ridge import solve
from aplc.words.text import ENTRY, VERSION, entries_of

SHOWN = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")


class Bench:
    """The words' matrices of a corpus, and what fits and scores on them."""

    def __init__(self, data: TrainingData) -> None:
        self.data = data
        labels, screen = data.labels, Screen()
        cache = data.source.encoded(
            "train", partial(entries_of, runs=False), ENTRY, labels, name=f"words {VERSION}", screen=screen
        )
        features = WordFeatures.choose(count_documents(cache, data.train_rows), len(data.train_rows))
        self.x, self.y = read_matrices(cache, data.train_rows, features, len(labels))
        self.x_valid, y_valid = read_matrices(cache, data.valid_rows, features, len(labels))
        self.truth = np.split(y_valid.indices, y_valid.indptr[1:-1])

    def ridge(self, states: np.ndarray | None = None, length: float = 1.0) -> np.ndarray:
        """Held-out logits of ridge regression on words, and on states of this length beside them."""
        x, x_valid = self.x, self.x_valid
        if states is not None:
            states = states - states[self.data.train_rows].mean(0)
            states *= length / np.linalg.norm(states, axis=1, keepdims=True)
            x = sparse.hstack([x, sparse.csr_array(states[self.data.train_rows])], format="csr")
            x_valid = sparse.hstack([x_valid, sparse.csr_array(states[self.data.valid_rows])], format="csr")
        learn_from = np.sort(np.random.default_rng(0).permutation(x.shape[0])[:LEARN_FROM])
        size = max(x.shape)  # in closed form
        weight, mean, curves = solve(x, self.y, learn_from, limit=size, ridge=0.5, prune=0.005, screen=Screen())
        curve = curves.finish(np.bincount(self.y.indices, minlength=self.y.shape[1]))
        return rising((x_valid @ weight).toarray() + mean, np.ascontiguousarray(curve.T)).astype(np.float32)

    def blend(self, words: np.ndarray, network: np.ndarray) -> np.ndarray:
        """Held-out logits, each of a blend learned on the other folds."""
        pairs = Pairs(*pairs_of(np.arange(len(words)), self.truth, words, network))
        knots_LK, blended = place(self.data.labels.counts), np.empty_like(words)
        for i in range(FOLDS):
            learned = regress(pairs, knots_LK, pairs.document % FOLDS != i)
            a_L, b_L, c_L = curves_at(knots_LK, learned)
            blended[i::FOLDS] = a_L + b_L * words[i::FOLDS] + c_L * network[i::FOLDS]
        return blended

    def show(self, name: str, logits: np.ndarray) -> None:
        metrics = Metrics(self.data.labels.counts, n_documents=self.data.n_documents)
        metrics.update_lists(*best_labels(logits, 100, None), self.truth)
        result = metrics.result()
        cells = [f"{100 * result[shown]:.2f}" for shown in (*SHOWN, "ECE@5")]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def states_of(encoder: Encoder, network: TaggingModel, texts: list[str]) -> np.ndarray:
    """The encoder's vector of each text, in bfloat16 where the CPU has it."""
    if encoder.gains_by_bfloat16:
        encoder.train_in_bfloat16()
    tokens = network.tokenizer.encode(texts)
    found = np.empty((len(texts), encoder.width), dtype=np.float32)
    with Screen().bar("encoding", len(texts)) as advance, torch.inference_mode():
        for members in by_length([min(len(own), encoder.max_tokens) for own in tokens], network.batch_size):
            batch = network.collator([tokens[i] for i in members], [[]] * len(members))
            found[members] = encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids).numpy()
            advance(len(members))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("network", type=Path)
    parser.add_argument("--encoder", help="the encoder as it came, for frozen states; left out without it")
    args = parser.parse_args()
    trained = load_tagger(args.network)
    network, config = trained.model, trained.config
    assert isinstance(network, TaggingModel)
    data = read_training_data(Source.from_corpus(Corpus.open(args.corpus)), config.data, config.train.seed, Screen())
    bench, texts = Bench(data), [document.text for document in data.source.train()]
    print(f"| what | {' | '.join((*SHOWN, 'ECE@5'))} |\n{'| --- ' * (2 + len(SHOWN))}|")
    tuned = states_of(network.encoder, network, texts)
    with torch.inference_mode():
        hidden = network.activation(network.hidden(torch.from_numpy(tuned[data.valid_rows])))
        alone = np.concatenate([log_odds(network.probabilities(part)) for part in hidden.split(256)])
    words = bench.ridge()
    bench.show("words", words)
    bench.show("network", alone)
    bench.show("words and network, blended", bench.blend(words, alone))
    columns = {"tuned": tuned}
    if args.encoder:
        model = replace(ModelConfig(), encoder=args.encoder)
        encoder = build_encoder(
            model, vocab_size=network.tokenizer.vocab_size, max_length=config.data.max_length
        ).eval()
        columns["frozen"] = states_of(encoder, network, texts)
    for name, states in columns.items():
        logits = bench.ridge(states, 0.5 if name == "tuned" else 1.0)
        bench.show(f"words with {name} states as columns", logits)
        bench.show("that and network, blended", bench.blend(logits, alone))


if __name__ == "__main__":
    main()
