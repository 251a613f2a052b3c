"""What all peers read, built once from a corpus: TF-IDF matrices, label matrix, and the file formats that some need.

TF-IDF is scikit-learn's (words of two and more letters, lower case, rows of unit length), fitted on the training part,
with logarithmic counts and without words of a single document: on held-out training documents of PubMed-MeSH that gave
the nearest-neighbour baseline 60.5 % P@5 where the library's defaults gave 56.9 %, and pairs of words added nothing
(bench/LOG.md). fastText gets the words in their order. Labels are numbered by falling frequency.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer

from aplc.data.corpus import Corpus
from aplc.data.labels import LabelSet
from aplc.errors import CorpusError
from aplc.files import atomic_write, cached, digest, write_json

ABOUT = "about.json"
TFIDF: dict[str, Any] = {"sublinear_tf": True, "min_df": 2}


@dataclass(frozen=True)
class Prepared:
    folder: Path
    labels: LabelSet
    n_train: int
    n_test: int
    seconds: float
    """To build TF-IDF of both parts."""
    key: str
    """Names the corpus by its content, and the settings of TF-IDF."""

    @classmethod
    def open(cls, folder: Path) -> "Prepared":
        with np.load(folder / "y.npz") as y:
            labels = LabelSet.load(folder, int(y["shape"][1]), {})
        return cls(folder, labels, **json.loads((folder / ABOUT).read_text("utf-8")))

    def truth(self) -> tuple[np.ndarray, np.ndarray]:
        """Test labels as (indptr, ids); ids from `len(labels)` on never occurred in training."""
        with np.load(self.folder / "truth.npz") as arrays:
            return arrays["indptr"], arrays["ids"]


def prepare(corpus: Corpus, folder: Path) -> Prepared:
    """Build the files in `folder`, unless they are there."""
    key = digest(corpus.fingerprint("train"), corpus.fingerprint("test"), TFIDF)
    return Prepared.open(cached(folder / key, lambda aside: _build(corpus, aside, key)))


def _build(corpus: Corpus, folder: Path, key: str) -> None:
    train, test = list(corpus.documents("train")), list(corpus.documents("test"))
    labels = LabelSet.from_counter(Counter(name for document in train for name in document.labels))
    labels.save(folder)
    began = time.perf_counter()
    vectorizer = TfidfVectorizer(dtype=np.float32, **TFIDF)
    try:
        x = vectorizer.fit_transform(document.text for document in train)
    except ValueError as error:  # no words, or none in two documents
        raise CorpusError(f"the training texts can't be weighted by TF-IDF: {error}") from None
    x_test = vectorizer.transform(document.text for document in test)
    seconds = time.perf_counter() - began
    rows = [labels.encode(document.labels) for document in train]
    unseen: dict[str, int] = {}
    truth = [labels.encode_all(document.labels, unseen) for document in test]
    words = vectorizer.build_analyzer()

    sp.save_npz(folder / "x.npz", sp.csr_matrix(x))
    sp.save_npz(folder / "x_test.npz", sp.csr_matrix(x_test))
    sp.save_npz(folder / "y.npz", _matrix(rows, len(labels)))
    np.savez(
        folder / "truth.npz", indptr=np.cumsum([0, *map(len, truth)]), ids=np.concatenate([*truth, []]).astype(int)
    )
    _write(folder / "train.txt", _repository_rows(sp.csr_matrix(x), rows, len(labels)))
    _write(folder / "fasttext.txt", (_tagged(row, words(d.text)) for row, d in zip(rows, train, strict=True)))
    _write(folder / "fasttext_test.txt", (" ".join(words(document.text)) for document in test))
    write_json(folder / ABOUT, {"n_train": len(train), "n_test": len(test), "seconds": seconds, "key": key})


def _matrix(rows: list[list[int]], n_labels: int) -> sp.csr_matrix:
    indptr = np.cumsum([0, *map(len, rows)])
    ids = np.array([i for row in rows for i in row])
    return sp.csr_matrix((np.ones(len(ids), dtype=np.float32), ids, indptr), shape=(len(rows), n_labels))


def _repository_rows(x: sp.csr_matrix, rows: list[list[int]], n_labels: int) -> Iterator[str]:
    """The XML repository's bag-of-words format."""
    yield f"{x.shape[0]} {x.shape[1]} {n_labels}"
    for row, start, end in zip(rows, x.indptr[:-1], x.indptr[1:], strict=True):
        pairs = zip(x.indices[start:end].tolist(), x.data[start:end].tolist(), strict=True)
        yield ",".join(map(str, row)) + " " + " ".join(f"{i}:{value:.6f}" for i, value in sorted(pairs))


def _tagged(row: list[int], words: list[str]) -> str:
    return " ".join([*(f"__label__{i}" for i in row), *words])


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic_write(path) as out:
        for line in lines:
            out.write((line + "\n").encode("utf-8"))
