"""What several test files share: a small corpus with a pattern to learn, and a cache of the test session's own."""

import json
import os
import random
import socket

import hypothesis
import pytest

from aplc.console import Screen

os.environ["OMP_NUM_THREADS"] = "1"  # test processes share the cores; read when torch is first imported
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.load_profile("fixed")  # the same cases in every run

TOPICS = {
    "animals": "cat dog horse fur paw bark",
    "vehicles": "car train wheel engine road rail",
    "food": "bread cheese apple soup cook eat",
    "music, classical": "violin sonata orchestra concert opera",
    "météo": "rain snow cloud wind sun storm",
    "rare": "quark lepton boson gluon",
}


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APLC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def topic_rows(n, seed):
    rng = random.Random(seed)
    names = list(TOPICS)
    rows = []
    for i in range(n):
        labels = rng.sample(names[:-1], rng.choice([1, 1, 2])) + (["rare"] if i % 25 == 0 else [])
        words = [word for label in labels for word in rng.choices(TOPICS[label].split(), k=rng.randint(3, 9))]
        rng.shuffle(words)
        rows.append({"id": f"{seed}-{i}", "text": " ".join(words), "labels": labels})
    return rows


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """200 training and 60 test documents on six topics; the test part has a label that training lacks."""
    folder = tmp_path_factory.mktemp("corpus")
    write_rows(folder / "train.jsonl", topic_rows(200, seed=1))
    test = topic_rows(60, seed=2)
    test[0]["labels"].append("never seen")
    write_rows(folder / "test.jsonl", test)
    return folder


SMALL = [
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.inner_width=64",
    "model.hidden_width=32",
    "data.vocab_size=200",
    "train.lr_encoder=5e-3",
    "train.lr_hidden=5e-3",
    "train.lr_clusters=2e-2",
    "train.batch_size=16",
]
"""Settings that make the tiny preset train in a second."""


class Recorder(Screen):
    """A screen that remembers what was said."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def say(self, message):
        self.lines.append(message)

    @property
    def text(self):
        return "\n".join(self.lines)


@pytest.fixture(scope="session")
def small():
    return SMALL


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """A model folder that has learned the topics."""
    from aplc.config import Config
    from aplc.data.corpus import Corpus
    from aplc.train.prepare import Source
    from aplc.train.run import train

    out = tmp_path_factory.mktemp("trained") / "model"
    config = Config.from_preset("tiny").with_settings([*SMALL, "train.epochs=60", "train.patience=0"])
    train(Source.from_corpus(Corpus.open(corpus)), config, out)
    return out


@pytest.fixture(params=["compiled", "not"])
def compiled_or_not(request, monkeypatch):
    """With our C code, and with what takes its place where there is no compiler."""
    from aplc import native  # imports torch: see OMP_NUM_THREADS above

    if request.param == "compiled" and native.library() is None:
        pytest.skip("needs a C compiler with OpenMP")
    if request.param == "not":
        monkeypatch.setattr(native, "library", lambda: None)


@pytest.fixture
def threads():
    """Sets PyTorch's number of threads for a test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
