"""Two words models that can be told apart by their answers, for tests that replace one with the other."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.labels import LabelSet
from aplc.data.source import Source
from aplc.store.folder import load_tagger, save_tagger
from aplc.train.run import train


@pytest.fixture(scope="session")
def words_model(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("words") / "model"
    config = Config.from_preset("words").with_settings(["data.validation=0.5"])  # enough to say where they lie
    train(Source.from_corpus(Corpus.open(corpus)), config, out)
    return out


@pytest.fixture(scope="session")
def other_model(words_model, tmp_path_factory):
    """The same model, but its labels are in capitals."""
    tagger = load_tagger(words_model)
    labels = LabelSet(tuple(name.upper() for name in tagger.labels.names), tagger.labels.counts, version=2)
    out = tmp_path_factory.mktemp("other") / "model"
    save_tagger(replace(tagger, labels=labels), out)
    return out


class Place:
    """A folder that a server reads, and in which one model after the other is put."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._n = folder / "served", 0

    def put(self, model: Path) -> Path:
        """In one step, as an operator should: a link to a new copy."""
        self._n += 1
        copy = self.folder.with_name(f"copy-{self._n}")
        shutil.copytree(model, copy)
        link = self.folder.with_name("link")
        link.symlink_to(copy.name)
        os.replace(link, self.folder)
        return copy

    def put_broken(self, model: Path) -> None:
        """A model whose weights were cut off."""
        copy = self.folder.with_name("broken")
        shutil.copytree(model, copy, dirs_exist_ok=True)
        weights = (copy / "model.safetensors").read_bytes()
        (copy / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        link = self.folder.with_name("link")
        link.symlink_to(copy.name)
        os.replace(link, self.folder)


@pytest.fixture
def place(tmp_path, words_model):
    made = Place(tmp_path)
    made.put(words_model)
    return made
