"""Model folders of about 1 GB with made-up weights, for `bench/serve.py`: what they say means nothing.

python bench/big_models.py {words,network} DIR      DIR/model, and DIR/texts.jsonl to send to it
"""

import random
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.labels import LabelSet
from aplc.data.source import Source
from aplc.models.network import TaggingModel
from aplc.models.trained import TrainedTagger
from aplc.store.folder import save_tagger
from aplc.train.run import train
from aplc.words.index import Index
from aplc.words.model import WordFeatures, WordsModel
from aplc.words.names import Names
from aplc.words.text import SIZES
from helpers import SMALL, topic_rows, write_rows

N_LABELS, WEIGHTS_A_WORD = 200_000, 40
N_NETWORK_LABELS, HIDDEN = 500_000, 512


def labels_of(n: int) -> LabelSet:
    return LabelSet(tuple(f"label {i}" for i in range(n)), np.full(n, 5, dtype=np.int64))


def make_words(folder: Path) -> None:
    rng, n_words = np.random.default_rng(1), SIZES[0]
    label = np.sort(rng.integers(0, N_LABELS, (n_words, WEIGHTS_A_WORD), dtype=np.int32), axis=1).ravel()
    weight = rng.integers(-100, 100, len(label), dtype=np.int16)
    start = np.arange(n_words + 1, dtype=np.int64) * WEIGHTS_A_WORD
    features = WordFeatures(np.arange(n_words, dtype=np.int64), np.ones(n_words, dtype=np.float32))
    curve = np.tile(np.array([[-3.0], [5.0], [0.0]], dtype=np.float32), N_LABELS)
    index = Index(start, label, weight, np.float32(0.001), N_LABELS)
    model = WordsModel(
        features=features,
        index=index,
        bias_L=np.zeros(N_LABELS, dtype=np.float32),
        curve_3L=curve,
        names=Names.of([]),
        worth_3L=np.zeros((3, N_LABELS), dtype=np.float32),
        n_seen=N_LABELS,
        learned=np.zeros(0, np.float32),
        ridge=0.5,
        prune=0.02,
    )
    config, labels = Config.from_preset("words"), labels_of(N_LABELS)
    save_tagger(TrainedTagger(config=config, model=model, labels=labels, n_documents=1000), folder)


def make_network(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        file = write_rows(Path(temporary) / "train.jsonl", topic_rows(200, seed=1))
        config = Config.from_preset("tiny").with_settings([*SMALL, "train.epochs=1"])
        small = train(Source.from_corpus(Corpus.open(file)), config, Path(temporary) / "model")
        config = config.with_settings([f"model.hidden_width={HIDDEN}"])
        sizes = {"n_labels": N_NETWORK_LABELS, "cutoffs": (4 * N_NETWORK_LABELS // 5,)}
        network = small.model
        assert isinstance(network, TaggingModel)
        model = TaggingModel(network.encoder, network.tokenizer, config, **sizes)
        labels = labels_of(N_NETWORK_LABELS)
        save_tagger(TrainedTagger(config=config, model=model, labels=labels, n_documents=1000), folder)


def made_up_texts(n: int, n_words: int = 50) -> list[str]:
    rng = random.Random(1)
    return [" ".join(f"w{rng.randrange(100_000)}" for _ in range(n_words)) for _ in range(n)]


def main() -> None:
    make, folder = {"words": make_words, "network": make_network}[sys.argv[1]], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    make(folder / "model")
    write_rows(folder / "texts.jsonl", [{"text": text, "labels": ["label 1"]} for text in made_up_texts(1000)])


if __name__ == "__main__":
    main()
