"""`aplc export`: a model folder as ONNX, for the same `aplc predict` or any runtime, measured against its original.

    aplc export demo/model --out demo/onnx --int8 --corpus demo/corpus

`parity.json` in the new folder says how far it is from the original.
"""

import importlib
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aplc.console import Screen
from aplc.data.columns import Columns
from aplc.data.corpus import Corpus
from aplc.data.formats import Document
from aplc.errors import AplcError, needs
from aplc.files import new_folder, write_json
from aplc.models.base import exported, function_for
from aplc.models.trained import TrainedTagger
from aplc.nn.device import using_device
from aplc.nn.weights import WEIGHTS
from aplc.predict.search import predict_texts
from aplc.store.digests import changing
from aplc.store.folder import load_tagger, save_frame

PARITY = "parity.json"
CHECKED = 2_000
"""Documents that parity is measured on at most."""
MADE_UP = 256
"""Texts of random label names where no corpus is given."""
LONGEST_MADE_UP = 64
"""Names of the longest of them."""


@dataclass(frozen=True)
class Parity:
    """How far the exported model is from the one it was made of."""

    documents: int
    texts: str
    """What was compared on: a corpus, or texts of random label names."""
    weights: str
    largest_difference: float
    """Of a probability among the first five labels."""
    same_first: float
    """Share of documents with the same first label."""
    same_five: float
    """Share of the first five labels that are the same."""
    bytes_float32: int
    """Weights of the original."""
    bytes_exported: int
    precision: dict[str, tuple[float, float]]
    """P@1, 3 and 5 of the original and of the exported model, if a corpus was given."""

    def render(self) -> str:
        share = self.bytes_exported / self.bytes_float32
        lines = [
            f"weights: {self.weights}, {self.bytes_exported / 1e6:.2f} MB, {share:.1%} of the original's "
            f"{self.bytes_float32 / 1e6:.2f} MB",
            f"parity on {self.documents:,} documents ({self.texts}): largest difference of a probability "
            f"{self.largest_difference:.2g}, same first label {self.same_first:.2%}, first five {self.same_five:.2%}",
        ]
        for name, (before, after) in self.precision.items():
            lines.append(
                f"{name}: {100 * before:.2f} before, {100 * after:.2f} exported ({100 * (after - before):+.2f})"
            )
        return "\n".join(lines)


def export(
    model: Path,
    out: Path,
    *,
    int8: bool = False,
    corpus: Path | None = None,
    columns: Columns | None = None,
    screen: Screen | None = None,
) -> Parity:
    """Write an exported folder and measure it against its original, on a corpus' test part or on made-up texts."""
    screen = screen or Screen(quiet=True)
    _check_extra()
    if out.exists():
        raise AplcError(f"--out {out}: already exists; give another folder")
    with using_device("cpu", "aplc export"):  # graphs are traced there, and the original is compared there
        trained = load_tagger(model)
    write = function_for(trained.model.kind, "export", str(model))
    documents = _documents(corpus, columns)
    screen.say(f"exporting {model} with {'int8' if int8 else 'float32'} weights; this takes a minute")
    with new_folder(out) as temporary:
        with changing(temporary):
            save_frame(replace(trained, config=exported(trained.config), evaluation=None), temporary)
            size = write(trained.model, temporary, int8=int8)
        parity = measure(trained, load_tagger(temporary), documents, corpus, int8=int8)
        original = (model / WEIGHTS).stat().st_size
        parity = replace(parity, bytes_float32=original, bytes_exported=size)
        write_json(temporary / PARITY, asdict(parity))
    return parity


def _documents(corpus: Path | None, columns: Columns | None) -> list[Document]:
    if corpus is None:
        return []
    found = list(islice(Corpus.open(corpus, columns=columns).documents("test"), CHECKED))
    if not found:
        raise AplcError(f"{corpus}: no documents to compare on")
    return found


def measure(
    before: TrainedTagger, after: TrainedTagger, documents: list[Document], corpus: Path | None, *, int8: bool
) -> Parity:
    """Tag the same texts with both."""
    if documents:
        texts = [document.text for document in documents]
    else:
        rng = np.random.default_rng(0)
        names = np.array(before.labels.names, dtype=object)
        texts = [" ".join(rng.choice(names, size)) for size in rng.integers(1, LONGEST_MADE_UP, MADE_UP)]
    k = min(5, len(before.labels))
    ids, probs = predict_texts(before.model, texts, k)
    new_ids, new_probs = predict_texts(after.model, texts, k)
    same = np.array([len(set(a) & set(b)) / k for a, b in zip(ids, new_ids, strict=True)])
    precision = {}
    if documents:
        truth = [set(before.labels.encode(document.labels)) for document in documents]
        for at in (1, 3, 5):
            precision[f"P@{at}"] = (_precision(ids, truth, at), _precision(new_ids, truth, at))
    return Parity(
        documents=len(texts),
        texts=f"test part of {corpus}" if documents else "texts of random label names; give --corpus for real ones",
        weights="int8" if int8 else "float32",
        largest_difference=float(np.abs(probs - new_probs).max()),
        same_first=float((ids[:, 0] == new_ids[:, 0]).mean()),
        same_five=float(same.mean()),
        bytes_float32=0,
        bytes_exported=0,
        precision=precision,
    )


def _precision(ids: NDArray, truth: list[set[int]], at: int) -> float:
    """Equation 16."""
    return float(np.mean([len(set(row[:at].tolist()) & own) / at for row, own in zip(ids, truth, strict=True)]))


def _check_extra() -> None:
    try:
        for name in ("onnx", "onnxruntime", "onnxscript"):
            importlib.import_module(name)
    except ImportError as error:
        raise AplcError(needs("aplc export", error.name or "", "onnx", "onnxscript", "onnxruntime")) from error
