"""This project as one of the peers: the same steps, files and clock as `methods.py`, on the corpus' own texts.

    python bench/peer/ours.py CORPUS FEATURES OUT PRESET [section.name=value ...]

Training time is everything from texts to the saved model, tokenizing included; nothing is taken from the cache.
"""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
from methods import DEPTH, Clock, measured  # beside this file


def main(corpus_path: str, features: Path, out: Path, preset: str, settings: list[str]) -> None:
    os.environ["APLC_CACHE"] = str(out / "cache")  # read when it is first needed
    from features import Prepared  # beside this file

    from aplc.config import Config
    from aplc.console import Screen
    from aplc.data.corpus import Corpus
    from aplc.data.source import Source
    from aplc.predict.search import predict_documents
    from aplc.store.folder import load_tagger
    from aplc.train.run import train

    for folder in ("model", "cache"):
        shutil.rmtree(out / folder, ignore_errors=True)
    corpus = Corpus.open(corpus_path)
    clock = Clock()
    train(
        Source.from_corpus(corpus),
        Config.from_preset(preset).with_settings(settings),
        out / "model",
        screen=Screen(),
    )
    trained = clock.read()
    size = sum(file.stat().st_size for file in (out / "model").iterdir() if file.is_file())  # not the checkpoints
    model = load_tagger(out / "model")
    documents = list(corpus.documents("test"))
    clock.restart()
    blocks = [(ids, probs) for _, ids, probs in predict_documents(model, documents, min(DEPTH, len(model.labels)))]
    predicted = clock.read()
    index = Prepared.open(features).labels.index
    renumbered = np.array([index[name] for name in model.labels.names] + [-1])  # -1 stays -1
    ids = renumbered[np.concatenate([ids for ids, _ in blocks])]
    probs = np.concatenate([probs for _, probs in blocks])
    np.savez(out / "topk.npz", ids=ids.astype(np.int32), scores=probs.astype(np.float32))
    (out / "measured.json").write_text(measured(trained, predicted, size))
    for folder in ("model", "cache"):
        shutil.rmtree(out / folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5:])
