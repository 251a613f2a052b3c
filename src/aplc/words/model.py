"""The words model: a label's score is a weighted sum of a document's words and word pairs, and nothing else.

The idea: on a CPU, and for labels with few examples, single words tell more than what a small network makes of the
sentence. Words and pairs are weighted by TF-IDF; a label's weights come from ridge regression (`ridge.py`), and
most of them are small enough to be left out. A label's curve (`curves.py`) turns its score s into a logit,
a + b s + c s^2; if the text has the words of the label's name, the logit is adjusted (`names.py`). The price: what
takes more than two words to say, and the meaning of words that training never saw, is lost.

Shapes: B documents, V words and pairs that are known, L labels, N weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file
from scipy import sparse
from scipy.special import expit, logit

from aplc.config import Config
from aplc.errors import ModelError
from aplc.files import atomic_path
from aplc.nn.checked import check_settings, compare_headers, map_tensors, read_header
from aplc.nn.weights import WEIGHTS
from aplc.words.index import Index, best_columns
from aplc.words.names import NO_DOCUMENTS, Mentions, Names
from aplc.words.text import AGAIN, BUCKETS, STARTS, VERSION, count_single_words, count_split, leads_of, words_of

WEIGHTS_VERSION = 3
"""Of how weights are stored."""
CHECKED = 1 << 24
"""Weights whose labels are looked at before a model is used."""

LEAST, ONE_OF, MOST = 3, 30_000, 0.1
"""Documents that a pair or a run of characters must be in, at least LEAST and one of ONE_OF, and the share of all that
it may be in: others cost time and say little. Of a hundred million pairs, each bucket has some by chance."""
LENGTHS = np.array([1.0, 0.5, 1.0], dtype=np.float32)
"""Euclidean lengths of a document's words, of its pairs, and of its runs of characters."""
LOGITS_AT_ONCE = 1 << 24
"""64 MB: how many documents a batch has follows from it."""

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class WordFeatures:
    """Which words and pairs are known, and how much each counts."""

    bucket: NDArray[np.int64]
    """(V,), rising."""
    idf: NDArray[np.float32]
    lead: bool = False
    """Whether what is in a text's lead counts `AGAIN` times more."""

    @classmethod
    def choose(cls, document_counts: NDArray[np.integer], n_documents: int) -> Self:
        """Words of two and more documents, pairs and runs; `document_counts` has an entry for each bucket.

        Where there are none such words, all words.
        """
        bucket = np.flatnonzero(document_counts > 1)
        if not (bucket < STARTS[1]).any():  # a handful of texts, no two of which share a word
            bucket = np.flatnonzero(document_counts[: STARTS[1]])
        count = document_counts[bucket]
        bucket = bucket[
            (bucket < STARTS[1]) | ((count >= max(LEAST, n_documents // ONE_OF)) & (count <= MOST * n_documents))
        ]
        idf = np.log((1 + n_documents) / (1 + document_counts[bucket])) + 1
        return cls(bucket, idf.astype(np.float32))

    @property
    def has_runs(self) -> bool:
        """Whether runs of characters are among them."""
        return bool(self.bucket[-1] >= STARTS[2])

    def table(self) -> NDArray[np.int32]:
        """The column of each bucket, -1 for those that are not known: 100 MB, for many documents."""
        column = np.full(BUCKETS, -1, dtype=np.int32)
        column[self.bucket] = np.arange(len(self.bucket))
        return column

    def __call__(self, counts: sparse.csr_array, table: NDArray[np.int32] | None = None) -> sparse.csr_array:
        """TF-IDF (B, V) from counts by bucket; each group of a document's features has its length of `LENGTHS`.

        With a `table`, columns are not looked for by bisection, which takes most of the time.
        """
        if table is None:
            column = np.minimum(np.searchsorted(self.bucket, counts.indices), len(self.bucket) - 1)
            known = self.bucket[column] == counts.indices
        else:
            column = table[counts.indices]
            known = column >= 0
        document = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))[known]
        column = column[known]
        weight = ((1 + np.log(counts.data[known])) * self.idf[column]).astype(np.float32)
        group = np.searchsorted(STARTS, self.bucket[column], side="right") - 1
        place = len(LENGTHS) * document + group
        square = np.bincount(place, weight.astype(np.float64) ** 2, minlength=len(LENGTHS) * counts.shape[0])
        weight *= LENGTHS[group] / np.sqrt(np.maximum(square, 1e-24)).astype(np.float32)[place]
        ends = np.searchsorted(document, np.arange(counts.shape[0] + 1))
        return sparse.csr_array((weight, column.astype(np.int32), ends), shape=(counts.shape[0], len(self.bucket)))


class WordsBatch(NamedTuple):
    """Texts as a words model wants them."""

    x: sparse.csr_array
    """TF-IDF, (B, V)."""
    mentions: Mentions


@dataclass(frozen=True, kw_only=True)
class WordsModel:
    """Ridge regression with curves, as a `LabelModel`."""

    features: WordFeatures
    index: Index
    bias_L: NDArray[np.float32]
    curve_3L: NDArray[np.float32]
    names: Names
    worth_3L: NDArray[np.float32]
    """a, b and c of labels that a text mentions (`names.py`)."""
    n_seen: int
    """Labels that training documents have: the first ones."""
    learned: NDArray[np.float32]
    """The numbers behind `worth_3L`, (16,); none without names."""
    ridge: float
    prune: float
    """Penalty of the weights, and the smallest that were kept: for labels that come later (`later.py`)."""

    kind = "words"
    parts: ClassVar[Mapping[str, Any]] = {}

    @property
    def n_labels(self) -> int:
        return len(self.bias_L)

    @property
    def bounds(self) -> Sequence[int]:
        return [0, self.n_seen, self.n_labels] if self.n_added else [0, self.n_labels]

    @property
    def n_added(self) -> int:
        return int(self.n_seen < self.n_labels)

    @property
    def batch_size(self) -> int:
        return max(1, min(256, LOGITS_AT_ONCE // self.n_labels))

    def prepare(self, texts: Sequence[str]) -> WordsBatch:
        words, runs = [words_of(text) for text in texts], self.features.has_runs
        counts = count_split(words, runs=runs)
        if self.features.lead:
            counts += AGAIN * count_split(leads_of(words), runs=runs)
        return WordsBatch(self.features(counts), self.names.mentions(words, self.n_labels))

    def read(self, batch: WordsBatch) -> Floats:
        """logits_BL."""
        logits_BL = self.index.logits(batch.x, self.bias_L, self.curve_3L)
        silent_B = np.diff(batch.x.indptr) == 0  # no known word: curves know nothing of such texts
        if silent_B.any():
            logits_BL[silent_B] = logit(np.clip(self.bias_L, expit(NO_DOCUMENTS), 1 - expit(NO_DOCUMENTS)))
        document, label, place = batch.mentions
        a, b, c = self.worth_3L[:, label]
        logits_BL[document, label] = a + b * logits_BL[document, label] + c * place
        return logits_BL

    def topk(
        self, states: Floats, k: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return best_labels(states, k, allowed)

    def probability_of(self, states: Floats, label: int) -> NDArray[np.float64]:
        return expit(states[:, label].astype(np.float64))

    def characters_read(self, text: str) -> int:
        return len(text)

    def unknown_words(self, texts: Sequence[str]) -> Floats:
        counts = count_single_words(texts)
        known = np.isin(counts.indices, self.features.bucket[: np.searchsorted(self.features.bucket, STARTS[1])])
        text = np.repeat(np.arange(len(texts)), np.diff(counts.indptr))
        total = np.bincount(text, counts.data, minlength=len(texts))
        return np.bincount(text, counts.data * ~known, minlength=len(texts)) / np.maximum(total, 1)

    def settings(self) -> dict[str, Any]:
        sizes = {"n_words": len(self.features.bucket), "n_weights": len(self.index.label)}
        sizes |= {
            "n_seen": self.n_seen,
            "n_stems": len(self.names.stem),
            "n_names": len(self.names.label),
            "n_parts": len(self.names.part),
        }
        return {"words": {"version": VERSION, "weights": WEIGHTS_VERSION, "lead": self.features.lead, **sizes}}

    def save_parts(self, folder: Path) -> None:
        """A words model has no small files of its own."""

    def save_weights(self, folder: Path, file: str = WEIGHTS) -> None:
        tensors = {
            "bucket": self.features.bucket.astype(np.int64),
            "idf": self.features.idf,
            "start": self.index.start,
            "label": self.index.label,
            "weight": self.index.weight,
            "scale": np.array([self.index.scale]),
            "bias": self.bias_L,
            "curve": self.curve_3L,
            "worth": self.worth_3L,
            "learned": self.learned,
            "penalty": np.array([self.ridge, self.prune], dtype=np.float32),
            **{f"names.{field.name}": getattr(self.names, field.name) for field in fields(Names)},
        }
        try:
            with atomic_path(folder / file) as temporary:
                save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, temporary)
        except SafetensorError as error:
            raise ModelError(f"{folder / file}: can't be written ({error})") from None


def best_labels(
    logits_BL: Floats, k: int, allowed: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """`LabelModel.topk` from all labels' logits."""
    if allowed is not None:
        logits_BL = np.where(allowed, logits_BL, -np.inf)
    ids = best_columns(logits_BL, min(k, logits_BL.shape[1]))
    best = np.take_along_axis(logits_BL, ids, 1)
    return np.where(best > -np.inf, ids, -1), expit(best).astype(np.float32)


_TYPES = {
    "bucket": "I64",
    "start": "I64",
    "label": "I32",
    "idf": "F32",
    "weight": "I16",
    "scale": "F32",
    "bias": "F32",
    "curve": "F32",
    "worth": "F32",
    "learned": "F32",
    "penalty": "F32",
    "names.stem": "I64",
    "names.first": "I64",
    "names.start": "I64",
    "names.part": "I32",
    "names.label": "I32",
}
"""Types of the tensors, by safetensors' names for them."""


def load(folder: Path, settings: dict[str, Any], _config: Config, file: str = WEIGHTS) -> WordsModel:
    """The words model of a model folder, from `file` in it. Nothing in the folder is trusted."""
    check_settings(settings, {"words": dict}, folder)
    words, n_labels = settings["words"], settings["n_labels"]
    if (words.get("version"), words.get("weights")) != (VERSION, WEIGHTS_VERSION):
        raise ModelError(
            f"{folder}: holds words as another version of aplc did; train it again: "
            "aplc train CORPUS --preset words --out NEW"
        )
    check_settings(words, {"n_words": int}, folder)
    sizes = [words.get(name) for name in ("n_words", "n_weights", "n_seen", "n_stems", "n_names", "n_parts")]
    if not all(type(size) is int and size >= 0 for size in sizes) or not 0 < words["n_seen"] <= n_labels:
        raise ModelError(f"{folder}: its config.json has no number of weights or names; the model is damaged")
    if type(words.get("lead")) is not bool:
        raise ModelError(f"{folder}: its config.json does not say whether the lead counts again; the model is damaged")
    n_words, n_weights, n_seen, n_stems, n_names, n_parts = sizes
    expected = {
        **{"bucket": (n_words,), "idf": (n_words,), "start": (n_words + 1,)},
        **{"label": (n_weights,), "weight": (n_weights,), "scale": (1,)},
        **{"bias": (n_labels,), "curve": (3, n_labels), "worth": (3, n_labels)},
        **{"learned": (16 if n_names else 0,), "penalty": (2,)},
        **{"names.stem": (n_stems,), "names.first": (n_stems + 1,), "names.start": (n_names + 1,)},
        **{"names.part": (n_parts,), "names.label": (n_names,)},
    }
    compare_headers(expected, read_header(folder / file, _TYPES), folder)
    tensors = map_tensors(folder / file)
    _check(tensors, n_labels, folder / file)
    names = Names(**{field.name: tensors[f"names.{field.name}"] for field in fields(Names)})
    index = Index(tensors["start"], tensors["label"], tensors["weight"], tensors["scale"][0], n_labels)
    features = WordFeatures(tensors["bucket"], tensors["idf"], words["lead"])
    ridge, prune = tensors["penalty"].tolist()
    return WordsModel(
        features=features,
        index=index,
        bias_L=tensors["bias"],
        curve_3L=tensors["curve"],
        names=names,
        worth_3L=tensors["worth"],
        n_seen=n_seen,
        learned=tensors["learned"],
        ridge=ridge,
        prune=prune,
    )


def _check(tensors: dict[str, NDArray], n_labels: int, path: Path) -> None:
    """Refuse indices that point outside the arrays. Neighbours are compared: their differences might overflow.

    Reading gigabytes of weights for it would take long: beyond `CHECKED` the labels are checked as they are used.
    """
    start, label, bucket = tensors["start"], tensors["label"], tensors["bucket"]
    for name in ("idf", "scale", "bias", "curve", "worth", "learned", "penalty"):
        if not np.isfinite(tensors[name]).all():
            raise ModelError(f"{path}: {name} has NaN or infinite values")
    if start[0] != 0 or start[-1] != len(label) or (start[1:] < start[:-1]).any():
        raise ModelError(f"{path}: row offsets of the weights are inconsistent; the model is damaged")
    if 0 < len(label) <= CHECKED and (label.min() < 0 or label.max() >= n_labels):
        raise ModelError(f"{path}: has weights for labels beyond the {n_labels:,} there are; the model is damaged")
    part, stem = tensors["names.part"], tensors["names.stem"]
    for pointer, target in (("names.first", tensors["names.label"]), ("names.start", part)):
        start = tensors[pointer]
        if start[0] != 0 or start[-1] != len(target) or (start[1:] < start[:-1]).any():
            raise ModelError(f"{path}: {pointer} is inconsistent; the model is damaged")
    if (tensors["names.start"][1:] == tensors["names.start"][:-1]).any():
        raise ModelError(f"{path}: a label's name has no words; the model is damaged")
    for name, target, below in (("names.part", part, len(stem)), ("names.label", tensors["names.label"], n_labels)):
        if len(target) and (target.min() < 0 or target.max() >= below):
            raise ModelError(f"{path}: {name} points beyond the {below:,} there are; the model is damaged")
    if (stem[1:] <= stem[:-1]).any():
        raise ModelError(f"{path}: words of names must be in increasing order; the model is damaged")
    if not tensors["penalty"][0] > 0:
        raise ModelError(f"{path}: its penalty must be above 0; the model is damaged")
    if (bucket[1:] <= bucket[:-1]).any() or bucket[0] < 0 or bucket[-1] >= BUCKETS:
        raise ModelError(f"{path}: hash buckets must be in increasing order; the model is damaged")
