"""`IndicatorTagger`: a `Tagger` for scikit-learn's scorers, which compare indicator matrices.

    y = MultiLabelBinarizer().fit_transform(labels)
    cross_val_score(IndicatorTagger(Tagger("words")), texts, y, scoring="f1_micro")

`Tagger.predict` gives names with probabilities, as many as a rule says. A scorer needs zeros and ones in the columns of
the y that it holds itself, also for labels that a fold has no training document of. That is a second type of result,
hence a second class: it wraps a Tagger as scikit-learn's meta-estimators do, and adds the rule, so that a grid can
range over both (`threshold`, `tagger__settings`).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from aplc.data.inputs import Labels, is_indicator, read_indicator, read_texts
from aplc.errors import AplcError, NotFittedError
from aplc.tagger import Tagger

THRESHOLD = 0.5
"""Where no rule is given."""
CELLS = 50_000_000
"""Texts x labels of a dense result; 400 MB."""


class IndicatorTagger(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Trains a tagger on an indicator matrix, and predicts one with the same columns.

    Args:
        tagger: what to train; a copy of it is fitted, and is `tagger_` then. Without one, `Tagger()`.
        top_k: at most this many labels a text; 100 where another rule is given.
        threshold: only labels with at least this probability; 0.5 if no rule is given at all.
        precision: only labels probable enough that this share of them is right on held-out documents.
        expected_f1: as many labels as give the highest expected F1.
        label_names: names of the matrix' columns, for `tagger_`; otherwise a data frame's own, or "0", "1", ...

    A fitted one has `label_names_`, the columns' names, and `classes_`, an array with [0, 1] for each column: by names
    there, scikit-learn would take two labels for the two classes of a binary problem.
    """

    def __init__(
        self,
        tagger: Tagger | None = None,
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        precision: float | None = None,
        expected_f1: bool = False,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.tagger = tagger
        self.top_k = top_k
        self.threshold = threshold
        self.precision = precision
        self.expected_f1 = expected_f1
        self.label_names = label_names

    def fit(self, texts: Iterable[str], labels: Labels) -> Self:
        """Train on `texts` and an indicator matrix: numpy, scipy or a data frame, of zeros and ones."""
        if isinstance(self.tagger, str):
            raise AplcError(f'tagger: pass Tagger("{self.tagger}"), not only the name of its preset')
        if isinstance(self.tagger, type):
            raise AplcError(f"tagger: pass {self.tagger.__name__}(), not the class")
        if not is_indicator(labels):
            raise AplcError(
                "labels: give an indicator matrix, MultiLabelBinarizer().fit_transform(labels); lists of names are "
                "for Tagger"
            )
        matrix, names = read_indicator(labels, self.label_names)
        self.tagger_ = clone(Tagger() if self.tagger is None else self.tagger)
        self.tagger_.fit(texts, matrix, label_names=names)
        if not set(names) & self.tagger_.trained.labels.index.keys():  # of a frozen tagger, trained elsewhere
            raise AplcError(f"label_names: the model has no label {names[0]!r}, nor any other column's name")
        self.label_names_ = np.array(names, dtype=object)
        self.classes_ = np.tile([0, 1], (len(names), 1))
        self._sparse = sparse.issparse(labels)
        return self

    def predict(self, texts: Iterable[str]) -> NDArray[np.int64] | sparse.csr_array:
        """Zeros and ones (texts x labels), by the rule; sparse if the labels of `fit` were."""
        self._check_fitted()
        listed = self._listed(texts, dense=not self._sparse)
        tags = self.tagger_.predict(listed, **self._rule)
        index = self.tagger_.trained.labels.index
        ids = np.array([index[name] for row in tags for name, _ in row], dtype=np.int64)
        ones = np.ones(len(ids), dtype=np.int64)
        found = self._in_columns(
            sparse.csr_array((ones, ids, np.cumsum([0, *map(len, tags)])), shape=self._shape(tags))
        )
        return found if self._sparse else found.toarray()

    def predict_proba(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """The probability of every label (texts x labels), for scorers such as `average_precision`.

        A label without any training document has 0.
        """
        self._check_fitted()
        listed = self._listed(texts, dense=True)
        found = self.tagger_.predict_proba(listed, top_k=len(self.tagger_.trained.labels))
        found.resize(self._shape(listed))
        return self._in_columns(found).toarray()

    def score(self, texts: Iterable[str], labels: Labels) -> float:
        """nDCG of the five best labels, as `Tagger.score` has it."""
        self._check_fitted()
        names = self.label_names_ if is_indicator(labels) else None
        return self.tagger_.score(texts, labels, label_names=names)

    @property
    def _rule(self) -> dict[str, Any]:
        rule = {
            "top_k": self.top_k,
            "threshold": self.threshold,
            "precision": self.precision,
            "expected_f1": self.expected_f1,
        }
        is_given = any(value is not None and value is not False for value in rule.values())
        return rule if is_given else {"threshold": THRESHOLD}

    def _listed(self, texts: Iterable[str], *, dense: bool) -> list[str]:
        if isinstance(texts, str):
            raise AplcError("texts: give a list of strings, not one string")
        listed, n_labels = read_texts(texts), len(self.label_names_)
        if dense and len(listed) * n_labels > CELLS:
            raise AplcError(
                f"{len(listed):,} texts x {n_labels:,} labels are too many for a dense result ({CELLS:,} at most); "
                f"pass fewer texts at once, or fit on a sparse matrix for predict, or use Tagger.predict_proba"
            )
        return listed

    def _shape(self, rows: Sequence[object]) -> tuple[int, int]:
        """Of a matrix with the model's labels as columns, and an empty one behind them."""
        return len(rows), len(self.tagger_.trained.labels) + 1

    def _in_columns(self, found: sparse.csr_array) -> sparse.csr_array:
        """The model's labels in the order of y's columns; what the model lacks is taken from the empty column."""
        labels = self.tagger_.trained.labels
        return found[:, [labels.index.get(name, len(labels)) for name in self.label_names_]]

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this IndicatorTagger has no model yet: call fit")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "tagger_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.target_tags.multi_output = tags.classifier_tags.multi_label = True
        return tags
