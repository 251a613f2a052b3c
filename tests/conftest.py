"""Fixtures that several test files use: a small corpus, a model trained on it, a cache of the session's own."""

import os
import socket

import hypothesis
import pytest

import browser
from helpers import SMALL, topic_rows, write_rows

os.environ["OMP_NUM_THREADS"] = "1"  # test processes share the cores; read when torch is first imported
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.load_profile("fixed")  # the same cases in every run


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APLC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """200 training and 60 test documents on six topics; the test part has a label that training lacks."""
    folder = tmp_path_factory.mktemp("corpus")
    write_rows(folder / "train.jsonl", topic_rows(200, seed=1))
    test = topic_rows(60, seed=2)
    test[0]["labels"].append("never seen")
    write_rows(folder / "test.jsonl", test)
    return folder


@pytest.fixture(scope="session")
def small():
    return SMALL


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """A model folder that has learned the topics."""
    from aplc.config import Config
    from aplc.data.corpus import Corpus
    from aplc.data.source import Source
    from aplc.train.run import train

    out = tmp_path_factory.mktemp("trained") / "model"
    config = Config.from_preset("tiny").with_settings([*SMALL, "train.epochs=60", "train.patience=0"])
    train(Source.from_corpus(Corpus.open(corpus)), config, out)
    return out


@pytest.fixture(params=["compiled", "not"])
def compiled_or_not(request, monkeypatch):
    """With our C code, and with what takes its place where nothing was compiled."""
    from aplc import native  # imports torch: see OMP_NUM_THREADS above

    if request.param == "compiled" and native.library() is None:
        pytest.skip("compiled code is not used: see aplc info")
    if request.param == "not":
        monkeypatch.setattr(native, "library", lambda: None)


@pytest.fixture
def threads():
    """Sets PyTorch's number of threads for a test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def chromium():
    """A real browser, with a page open."""
    if not browser.find():
        pytest.skip("no chromium: apt-get install --no-install-recommends chromium")
    opened = browser.Browser()
    yield opened
    opened.close()


@pytest.fixture
def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
