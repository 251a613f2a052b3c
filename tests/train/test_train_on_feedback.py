"""Guards training with feedback: a network learns what was accepted and rejected, and not that all else is wrong."""

import json

import pytest

from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.formats import Document
from aplc.data.source import Source
from aplc.errors import RunError
from aplc.models.trained import TrainedTagger
from aplc.predict.search import predict_documents
from aplc.train.run import train
from helpers import SMALL, write_rows

WORDS = {"animals": "cat dog horse", "vehicles": "car train road", "food": "bread soup apple"}
TEXTS = [f"{a} {b} {word}" for a in ("old", "new", "big") for b in ("red", "blue") for word in ("zebra", "giraffe")]


def corpus(folder):
    rows = [
        {"text": f"{a} {b} {word}", "labels": [label]}
        for label, words in WORDS.items()
        for word in words.split()
        for a in ("old", "new", "big", "small")
        for b in ("red", "blue", "one", "two")
    ]
    write_rows(folder / "c.jsonl", rows)
    return folder / "c.jsonl"


def run(path, out, *more, settings=()):
    config = Config.from_preset("tiny").with_settings(
        [*SMALL, "train.epochs=10", "data.validation=0", "clusters.cutoffs=[2]", *settings]
    )
    return train(Source.from_corpus(Corpus.open(path), more=more), config, out)


def probability(trained: TrainedTagger, label: str) -> float:
    """Mean over the texts that feedback was given on."""
    index, total = trained.labels.index[label], 0.0
    for _, ids, probs in predict_documents(trained, [Document(text) for text in TEXTS], len(trained.labels)):
        total += float(probs[ids == index].sum())
    return total / len(TEXTS)


def test_feedback_moves_what_it_lists(tmp_path):
    path, feedback = corpus(tmp_path), tmp_path / "f.jsonl"
    rows = [{"text": text, "accepted": [], "rejected": ["food"], "added": ["animals", "wild"]} for text in TEXTS]
    write_rows(feedback, [row for row in rows for _ in range(2)])  # the second ones replace the first
    write_rows(tmp_path / "all.jsonl", [{"text": text, "labels": ["animals", "wild"]} for text in TEXTS])
    plain, masked, negative = (
        run(path, tmp_path / name, *more)
        for name, more in (("plain", ()), ("masked", (feedback,)), ("negative", (tmp_path / "all.jsonl",)))
    )
    assert masked.n_documents == plain.n_documents + len(TEXTS)
    assert masked.labels.counts[masked.labels.index["wild"]] == len(TEXTS)
    assert probability(masked, "animals") > probability(plain, "animals") + 0.4
    assert probability(masked, "wild") > 0.3
    assert probability(masked, "food") < probability(plain, "food")
    # "vehicles" was not mentioned: only where that is taken as a no does it become less probable
    assert probability(masked, "vehicles") > max(0.8, probability(negative, "vehicles") + 0.2)


def test_labels_spread_over_processes_refuse_feedback(tmp_path):
    path, feedback = corpus(tmp_path), tmp_path / "f.jsonl"
    feedback.write_text(json.dumps({"text": "zebra", "accepted": ["animals"]}) + "\n")
    with pytest.raises(RunError, match=r"train\.shard_labels: feedback can't be learned from"):
        run(path, tmp_path / "m", feedback, settings=["train.shard_labels=true"])


def test_words_take_rejections_of_labels_that_no_document_has(tmp_path):
    """The usual loop: a mention proposes such a label, and the reviewer rejects it."""
    rows = [{"text": f"cat {i}" if i % 2 else f"dog {i}", "labels": ["cats" if i % 2 else "dogs"]} for i in range(40)]
    write_rows(tmp_path / "corpus.jsonl", rows)
    line = {"text": "hamster wheel cat", "accepted": ["cats"], "rejected": ["wheel 99"]}
    write_rows(tmp_path / "more.jsonl", [line])
    write_rows(tmp_path / "vocabulary.jsonl", [{"label": f"wheel {i}"} for i in range(100)])
    source = Source.from_corpus(
        Corpus.open(tmp_path / "corpus.jsonl"), tmp_path / "vocabulary.jsonl", more=[tmp_path / "more.jsonl"]
    )
    trained = train(source, Config.from_preset("words"), tmp_path / "model")
    assert len(trained.labels) == 102
    assert trained.labels.counts[:2].sum() == 41
