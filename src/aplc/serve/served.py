"""A model as it is served: a tagger with a version, which a request keeps from its first text to its last.

A server may replace its model at any time (`reload.py`). So everything that an answer is made of, the probabilities and
the names beside them, comes from one `ServedModel`, and no request asks for the current one twice.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from aplc.data.feedback import KEYS
from aplc.data.formats import Document
from aplc.errors import AplcError, ModelError
from aplc.models.trained import TrainedTagger
from aplc.nn.checked import mapped_weights
from aplc.predict.decide import Rule
from aplc.predict.search import decide_documents, name_tags, predict_documents
from aplc.serve.batcher import Tags
from aplc.serve.find import LabelSearch
from aplc.store.folder import load_tagger
from aplc.store.safety import CONFIG

ATTEMPTS = 3
"""How often a folder is read that is replaced while it is read."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    tagger: TrainedTagger
    name: str
    version: str = "unsaved"
    """A digest of config.json, which holds digests of the other files."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a model folder, check it, and let it tag a probe. Raises `AplcError` for whatever is wrong with it."""
        for _ in range(ATTEMPTS):
            before = _config(folder)
            try:
                with mapped_weights():  # which workers share
                    tagger = load_tagger(folder.resolve() if folder.is_symlink() else folder)
            except (AplcError, OSError):
                if _config(folder) == before:
                    raise
                continue
            except Exception as error:  # a model that can't be read must not end a server that has another
                raise ModelError(f"{folder}: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
            if _config(folder) == before:
                model = cls(tagger, folder.name or str(folder), hashlib.blake2b(before, digest_size=8).hexdigest())
                model.probe(folder)
                return model
        raise ModelError(f"{folder}: changes while it is read; put the new model there in one step, with mv")

    def probe(self, folder: Path) -> None:
        """Tag a text, so that a model that can't is noticed before it is used, and the first caller does not wait."""
        try:
            (tags,) = self.tag([f"a text about {self.tagger.labels.names[0]}"], 5)
        except Exception as error:
            raise ModelError(f"{folder}: fails on a probe ({type(error).__name__}: {str(error)[:200]})") from error
        if not tags or not all(math.isfinite(p) and 0 <= p <= 1 for _, p in tags):
            raise ModelError(f"{folder}: finds no label for a probe, or probabilities that are not between 0 and 1")
        _ = self.search  # of a million labels it takes seconds

    @cached_property
    def search(self) -> LabelSearch:
        return LabelSearch(self.tagger)

    @property
    def about(self) -> dict[str, Any]:
        """What feedback notes of the model, and /health says."""
        return {"version": self.version, "label_set_version": self.tagger.labels.version}

    def tag(self, texts: list[str], k: int) -> list[Tags]:
        tagger = self.tagger
        return [
            name_tags(tagger, ids[i], probs[i])
            for block, ids, probs in predict_documents(tagger, map(Document, texts), min(k, len(tagger.labels)))
            for i in range(len(block))
        ]

    def tag_within(self, texts: list[str], rule: Rule) -> list[Tags]:
        """`tag` with the labels that a rule's schemes and branches leave; `AplcError` for unknown ones."""
        tagger = self.tagger
        return [tags for _, block in decide_documents(tagger, map(Document, texts), rule) for tags in block]

    def named(self, label: str) -> dict[str, str]:
        """A label, and what the vocabulary calls it where that differs."""
        name = self.tagger.vocabulary.name_of(label) if self.tagger.vocabulary else label
        return {"label": label} if name == label else {"label": label, "name": name}

    def resolve(self, entry: dict[str, Any]) -> list[str]:
        """Put labels in the place of their names in a correction's lists; returns what is neither: new labels.

        `AplcError` where a label is then in two lists.
        """
        new: list[str] = []
        seen: set[str] = set()
        for key in KEYS:
            called = {text: self.search.label_called(text) for text in entry[key]}
            new += [text for text, label in called.items() if label is None and text not in new]
            entry[key] = list(dict.fromkeys(label or text for text, label in called.items()))
            if both := seen.intersection(entry[key]):
                raise AplcError(f"the label {min(both)[:100]!r} is in two of accepted, rejected and added")
            seen.update(entry[key])
        return new

    def answer(self, tags: Tags, threshold: float) -> dict[str, Any]:
        """The answer for one text, as `schema.Tagged` describes it."""
        ids = self.tagger.labels.index
        return {
            "tags": [
                {**self.named(label), "probability": round(p, 6), "cluster": self.tagger.cluster_name(ids[label])}
                for label, p in tags
                if p >= threshold
            ]
        }


def _config(folder: Path) -> bytes:
    try:
        return (folder / CONFIG).read_bytes()
    except OSError:  # `load_tagger` says what is wrong
        return b""
