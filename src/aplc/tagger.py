"""`Tagger`: texts and label names in, label names and probabilities out."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from sklearn.base import BaseEstimator

from aplc.config import Config
from aplc.console import Screen
from aplc.data.formats import Document
from aplc.errors import AplcError, NotFittedError
from aplc.folder import ModelFolder
from aplc.predict import name_tags, predict_documents
from aplc.train.prepare import Source
from aplc.train.run import train

Tags = list[tuple[str, float]]
"""(label, probability), best first."""


class Tagger(BaseEstimator):  # type: ignore[misc]
    """Tags texts with the right few of many labels.

    Args:
        preset: name of a preset or path of a TOML file; "tiny" trains in minutes on a CPU.
        settings: changes to it, as `--set` takes them: `["train.epochs=3"]`.
        verbose: show choices and progress on standard error.
    """

    def __init__(self, preset: str = "tiny", *, settings: Sequence[str] = (), verbose: bool = False) -> None:
        self.preset = preset
        self.settings = settings
        self.verbose = verbose

    def fit(self, texts: Sequence[str], labels: Sequence[Sequence[str]]) -> "Tagger":
        """Train on `texts`, each with its list of label names."""
        if len(texts) != len(labels):
            raise AplcError(f"{len(texts)} texts but {len(labels)} lists of labels; give one list a text")
        if any(isinstance(names, str) for names in labels):
            raise AplcError("labels: give a list of strings for each text, not one string")
        config = Config.from_preset(self.preset).with_settings(list(self.settings))
        documents = [
            Document(text=text, labels=list(dict.fromkeys(names))) for text, names in zip(texts, labels, strict=True)
        ]
        with Source.from_memory(documents) as source, tempfile.TemporaryDirectory(prefix="aplc-") as out:
            self._folder = train(source, config, Path(out), screen=Screen(quiet=not self.verbose))
        return self

    @overload
    def predict(self, texts: str, top_k: int = 5, *, threshold: float = 0.0) -> Tags: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, texts: Sequence[str], top_k: int = 5, *, threshold: float = 0.0) -> list[Tags]: ...

    def predict(self, texts: str | Sequence[str], top_k: int = 5, *, threshold: float = 0.0) -> Tags | list[Tags]:
        """The `top_k` best labels of each text, without those below `threshold`. One string in, one result out."""
        if isinstance(texts, str):
            return self.predict([texts], top_k, threshold=threshold)[0]
        if top_k < 1:
            raise AplcError(f"top_k = {top_k}: must be at least 1")
        folder = self.folder
        results = []
        for block, ids, probs in predict_documents(
            folder, (Document(text) for text in texts), min(top_k, len(folder.labels))
        ):
            results += [name_tags(folder, ids[i], probs[i], threshold) for i in range(len(block))]
        return results

    @property
    def folder(self) -> ModelFolder:
        """The model with its tokenizer and labels."""
        if not hasattr(self, "_folder"):
            raise NotFittedError("this Tagger has no model yet: call fit, or Tagger.from_pretrained(folder)")
        return self._folder

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a model folder."""
        self.folder.save(Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "Tagger":
        """Read a model folder that `save_pretrained` or `aplc train` wrote."""
        tagger = cls()
        tagger._folder = ModelFolder.load(folder)
        return tagger

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_folder")
