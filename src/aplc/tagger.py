"""`Tagger`: texts and label names in, label names and probabilities out; an estimator of scikit-learn's kind.

It works in a Pipeline and in GridSearchCV. `settings` holds what `--set` takes, so that a grid can range over it:

    GridSearchCV(Tagger(), {"settings": [["train.epochs=2"], ["train.epochs=4"]]}, cv=3).fit(texts, labels)
"""

import contextlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator

from aplc.config import AUTO, Config
from aplc.console import Screen
from aplc.data.formats import Document
from aplc.data.inputs import Labels, read_labelled, read_texts
from aplc.data.source import Source
from aplc.data.vocabulary import Vocabulary
from aplc.errors import AplcError, NotFittedError
from aplc.evaluate.metrics import Metrics
from aplc.evaluate.run import Evaluation, evaluate
from aplc.models.calibration import DEPTH
from aplc.models.trained import TrainedTagger
from aplc.nn.device import using_device
from aplc.predict.decide import Rule, check_top_k, unknown
from aplc.predict.explain import explain
from aplc.predict.search import decide_documents, predict_documents
from aplc.store.folder import check_free, load_tagger, save_tagger
from aplc.store.hub import fetch_model, push_model
from aplc.train.auto import configure
from aplc.train.network import SCORE
from aplc.train.relabel import add_labels
from aplc.train.run import train
from aplc.train.update import update

Tags = list[tuple[str, float]]
"""(label, probability), best first."""


class Tagger(BaseEstimator):  # type: ignore[misc]
    """Tags texts with the right few of many labels.

    Args:
        preset: name of a preset or path of a TOML file; "auto" is what is best on this machine: "both" with a GPU or a
            pretrained encoder at hand, else "words".
        settings: changes to it, as `--set` takes them: `["train.epochs=3"]`.
        device: where networks compute: "cpu", "cuda", "cuda:1", ...; None is what APLC_DEVICE says, or a GPU if there
            is one.
        verbose: show choices and progress on standard error.
    """

    _columns: tuple[str, ...] | None = None
    """Names of the columns, if `fit` was given an indicator matrix."""

    def __init__(
        self, preset: str = AUTO, *, settings: Sequence[str] = (), device: str | None = None, verbose: bool = False
    ) -> None:
        self.preset = preset
        self.settings = settings
        self.device = device
        self.verbose = verbose

    def fit(
        self,
        texts: Iterable[str],
        labels: Labels,
        *,
        label_names: Sequence[str] | None = None,
        vocabulary: Vocabulary | Mapping[str, object] | Path | str | None = None,
    ) -> Self:
        """Train on `texts`, each with its list of label names.

        `labels` may be an indicator matrix instead: a numpy array or scipy matrix of zeros and ones, or a data frame of
        them. `label_names` are its columns' names; without them a data frame's columns keep theirs, and others are
        called "0", "1", ...

        `vocabulary` says what labels are called, and may have labels that no text has: a file (docs/vocabulary.md), or
        a mapping of labels to names or to dicts with `name`, `names`, `broader`, `scheme` and `description`. Lists of
        labels may have names instead; columns of a matrix may not.
        """
        with self._on_device():
            config = self._config()
        documents, columns = read_labelled(texts, labels, label_names)
        if not any(document.labels for document in documents):
            raise AplcError("labels: no text has a label; give at least one of them a name, or a 1 in a matrix")
        known = None if vocabulary is None else Vocabulary.of(vocabulary)
        with (
            self._on_device(),
            Source.from_memory(documents, known, match_names=columns is None) as source,
            tempfile.TemporaryDirectory(prefix="aplc-") as out,
        ):
            self._trained = train(source, config, Path(out), screen=self._screen)
        self._columns = columns
        return self

    def partial_fit(self, texts: Iterable[str], labels: Labels, *, label_names: Sequence[str] | None = None) -> Self:
        """Go on training with more documents: one pass, gently. The first call is a `fit`.

        Labels that the model lacks are added first (`aplc labels add`). The calibration is unchanged.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(texts, labels, label_names=label_names)
        trained, documents = self.trained, self._documents(texts, labels, label_names)
        if not documents:
            raise AplcError("texts: there are none to learn from")
        known = trained.labels.index.keys() | trained.labels.retired
        new = dict.fromkeys(name for document in documents for name in document.labels if name not in known)
        if new:
            trained = add_labels(trained, documents, list(new))
        self._trained = update(trained, documents, n_counted=len(self.trained.labels))
        return self

    @overload
    def predict(  # type: ignore[overload-overlap]
        self,
        texts: str,
        top_k: int | None = None,
        *,
        threshold: float | None = None,
        precision: float | None = None,
        expected_f1: bool = False,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        scheme: str | Sequence[str] = (),
        not_scheme: str | Sequence[str] = (),
        below: str | Sequence[str] = (),
    ) -> Tags: ...
    @overload
    def predict(
        self,
        texts: Iterable[str],
        top_k: int | None = None,
        *,
        threshold: float | None = None,
        precision: float | None = None,
        expected_f1: bool = False,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        scheme: str | Sequence[str] = (),
        not_scheme: str | Sequence[str] = (),
        below: str | Sequence[str] = (),
    ) -> list[Tags]: ...

    def predict(
        self,
        texts: str | Iterable[str],
        top_k: int | None = None,
        *,
        threshold: float | None = None,
        precision: float | None = None,
        expected_f1: bool = False,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        scheme: str | Sequence[str] = (),
        not_scheme: str | Sequence[str] = (),
        below: str | Sequence[str] = (),
    ) -> Tags | list[Tags]:
        """Labels with probabilities, best first. One string in, one result out; a list in, a list out.

        Args:
            texts: one text, or any number of them.
            top_k: at most this many labels a text; 5, or 100 where another rule is given.
            threshold: only labels with at least this probability.
            precision: only labels probable enough that this share of them is right on held-out documents.
            expected_f1: as many labels as give the highest expected F1.
            allow: only these labels.
            deny: none of these labels.
            scheme: only labels of these schemes of the vocabulary.
            not_scheme: no label of these schemes.
            below: only these labels and narrower ones.

        A text of which no label qualifies gets an empty list.
        """
        rule = Rule(
            top_k=top_k,
            threshold=threshold,
            precision=precision,
            expected_f1=expected_f1,
            allow=allow,
            deny=deny,
            scheme=scheme,
            not_scheme=not_scheme,
            below=below,
        )
        single = isinstance(texts, str)
        documents = [Document(text) for text in read_texts([texts] if isinstance(texts, str) else texts)]
        results = [tags for _, block in decide_documents(self.trained, documents, rule) for tags in block]
        return results[0] if single else results

    def predict_proba(self, texts: str | Iterable[str], top_k: int = DEPTH) -> sparse.csr_array:
        """Probabilities of each text's `top_k` best labels as a sparse (texts, labels) array; columns: `classes_`."""
        check_top_k(top_k)
        trained = self.trained
        documents = [Document(text) for text in read_texts([texts] if isinstance(texts, str) else texts)]
        k, shape = min(top_k, len(trained.labels)), (len(documents), len(trained.labels))
        found = [(ids, probs) for _, ids, probs in predict_documents(trained, documents, k)]
        ids = np.concatenate([np.empty((0, k), dtype=np.int64), *(block for block, _ in found)])
        probs = np.concatenate([np.empty((0, k), dtype=np.float32), *(block for _, block in found)])
        kept = ids >= 0
        result = sparse.csr_array((probs[kept], ids[kept], np.cumsum([0, *kept.sum(axis=1)])), shape=shape)
        result.sort_indices()
        return result

    def score(self, texts: Iterable[str], labels: Labels, *, label_names: Sequence[str] | None = None) -> float:
        """nDCG of the five best labels; true labels that the model does not have count as missed."""
        trained, documents = self.trained, self._documents(texts, labels, label_names)
        metrics = Metrics(trained.labels.counts, n_documents=trained.n_documents)
        unseen: dict[str, int] = {}
        for block, ids, probs in predict_documents(trained, documents, min(5, len(trained.labels))):
            truth = [trained.labels.encode_all(document.labels, unseen) for document in block]
            metrics.update_lists(ids, probs, truth)
        if not metrics.n_evaluated:
            raise AplcError("score: no texts to score")
        return metrics.result()[SCORE]

    def evaluate(
        self,
        texts: Iterable[str],
        labels: Labels,
        *,
        label_names: Sequence[str] | None = None,
        at: Iterable[int] = (),
        threshold: float = 0.5,
    ) -> Evaluation:
        """What `aplc evaluate` shows: `print(tagger.evaluate(texts, labels))`, or its `to_dict()` for programs.

        `at` are lengths of lists to measure at besides 1, 3 and 5; `threshold` is for F1, precision and recall.
        """
        documents = self._documents(texts, labels, label_names)
        return evaluate(self.trained, documents, at=at, threshold=threshold)

    def explain(self, text: str, label: str) -> list[tuple[str, float]]:
        """The words of a text, and how much each speaks for a label: what leaving it out takes off the log-odds.

        In a text of more than 128 words neighbours are left out together.
        """
        if not isinstance(text, str):
            raise AplcError(f"text: give one string, not {type(text).__name__}")
        labels = self.trained.labels
        if label not in labels.index:
            raise AplcError(f"label: {unknown(labels, label)}")
        return [(text[part.start : part.stop], part.effect) for part in explain(self.trained, text, label).parts]

    @property
    def classes_(self) -> NDArray[np.object_]:
        """Label names in the order of `predict_proba`'s columns."""
        return np.array(self.trained.labels.names, dtype=object)

    @property
    def trained(self) -> TrainedTagger:
        """The model with its labels and calibration."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this Tagger has no model yet: call fit, or Tagger.from_pretrained(folder)")
        return self._trained

    @property
    def folder(self) -> TrainedTagger:
        """The former name of `trained`."""
        return self.trained

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a model folder. One that holds an earlier model is written over; files of others are not."""
        check_free(Path(folder))
        save_tagger(self.trained, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str | None = None) -> Self:
        """Read a model folder that `save_pretrained` or `aplc train` wrote, or fetch one from the hub by its name."""
        tagger = cls(device=device)
        with tagger._on_device():
            tagger._trained = load_tagger(fetch_model(folder))
        tagger.preset, tagger.settings = tagger._trained.config.nearest_preset()  # a clone trains what was loaded
        return tagger

    def push_to_hub(self, name: str, *, private: bool = True, message: str = "Upload with aplc") -> str:
        """Upload the model to the hub as `name` ("user/model"); returns its address. Log in first: `hf auth login`."""
        with tempfile.TemporaryDirectory(prefix="aplc-") as out:
            self.save_pretrained(out)
            return push_model(Path(out), name, private=private, message=message)

    def _documents(self, texts: Iterable[str], labels: Labels, label_names: Sequence[str] | None) -> list[Document]:
        """Documents for a model that there is: a matrix without names has the columns that `fit` saw."""
        documents, columns = read_labelled(texts, labels, label_names, self._columns)
        numbered = label_names is None and columns is not None and columns == tuple(map(str, range(len(columns))))
        if numbered and not set(columns or ()) & self.trained.labels.index.keys():
            raise AplcError(
                "labels: the columns have no names, and the model's labels are not numbers; give label_names"
            )
        return documents

    def _config(self) -> Config:
        """Checked here and not in the constructor, as scikit-learn asks of estimators."""
        if not isinstance(self.preset, str):
            raise AplcError(f'preset = {self.preset!r}: give its name, such as "words", or the path of a .toml file')
        settings: Any = self.settings
        listed = list(settings) if isinstance(settings, Iterable) and not isinstance(settings, str | Mapping) else None
        if listed is None or not all(isinstance(setting, str) for setting in listed):
            raise AplcError('settings: give a list of strings, such as ["train.epochs=3"]')
        return configure(self.preset, listed, self._screen)

    def _on_device(self) -> contextlib.AbstractContextManager[None]:
        if self.device is not None and not isinstance(self.device, str):
            raise AplcError(f'Tagger(device=...): give its name, such as "cpu" or "cuda:1", not {self.device!r}')
        return using_device(self.device, "Tagger(device=...)")

    @property
    def _screen(self) -> Screen:
        return Screen(quiet=not self.verbose)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_trained")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.target_tags.multi_output = tags.target_tags.required = True
        return tags
