"""`aplc export`: a model folder as ONNX, in float32 or with int8 weights, for the same `aplc predict` or any runtime.

    aplc export demo/model --out demo/onnx --int8 --corpus demo/corpus

Int8 is for weights alone: each row of a label, a word piece or an output is stored as whole numbers from -127 to 127
with a scale of its own (symmetric, the row's largest weight / 127), which standard ONNX operators undo. Sums stay in
float32, so a text's tags never depend on the texts it shares a batch with, as they would if activations were quantised
together. The price: int8 saves disk and loading, not arithmetic. What it costs in answers is measured (`Parity`).
"""

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.data.formats import Document, read_documents
from aplc.data.tokenizer import TOKENIZER_FILE as TOKENIZER
from aplc.errors import AplcError, ModelError
from aplc.files import new_folder, write_json
from aplc.folder import ModelFolder
from aplc.nn.encoder import Encoder
from aplc.nn.model import TaggingModel
from aplc.nn.words import WordModel
from aplc.predict import predict_rows
from aplc.ship.onnx import CLUSTERS, ENCODER, INPUTS

if TYPE_CHECKING:
    import onnx

PARITY = "parity.json"
CHECKED = 2_000
"""Documents that parity is measured on at most."""
MADE_UP = 256
"""Rows of random word pieces where no corpus is given."""
SMALLEST = 1024
"""Smaller tensors (norms, biases) stay float32: they weigh nothing and matter."""


class _EncoderGraph(nn.Module):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.encoder._encode(input_ids, attention_mask, token_type_ids)


class _ClustersGraph(nn.Module):
    """pooled_BE -> logits of the head with its roots, and of every tail."""

    def __init__(self, model: TaggingModel) -> None:
        super().__init__()
        self.hidden, self.activation, self.clusters = model.hidden, model.activation, model.clusters

    def forward(self, pooled_BE: Tensor) -> tuple[Tensor, ...]:
        hidden_BD, clusters = self.activation(self.hidden(pooled_BE)), self.clusters
        tails = (tail.output(tail.narrow(hidden_BD)) for tail in clusters._tails)
        return clusters.head(hidden_BD), *tails, *(addition(hidden_BD) for addition in clusters._additions)


@dataclass(frozen=True)
class Parity:
    """How far the exported model is from the one it was made of."""

    documents: int
    texts: str
    """What was compared on: a corpus, or rows of random word pieces."""
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
    """P@1, 3 and 5 of the original and of the exported model, where the corpus tells."""

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
    model: Path, out: Path, *, int8: bool = False, corpus: Path | None = None, screen: Screen | None = None
) -> Parity:
    """Write an exported folder and measure it against its original, on a corpus' test part or on random pieces."""
    screen = screen or Screen(quiet=True)
    _check_extra()
    if out.exists():
        raise AplcError(f"--out {out}: is there already; give another folder")
    folder = ModelFolder.load(model)
    if not isinstance(folder.model, TaggingModel):
        if isinstance(folder.model, WordModel):
            raise ModelError(f"{model}: is a model of words (preset cpu), which can't be exported; others can")
        raise ModelError(f"{model}: is exported already; export the one it was made from")
    if folder.model.encoder.long_text == "memory":
        raise ModelError(
            f"{model}: data.long_text = 'memory' carries state from segment to segment, which ONNX can't; a model with "
            f"'truncate' or 'windows' can be exported"
        )
    documents = _documents(corpus)
    screen.say(f"exporting {model} with {'int8' if int8 else 'float32'} weights; this takes a minute")
    with new_folder(out) as aside:
        replace(folder, evaluation=None).save_frame(aside)
        # As small as can be: it is a good part of a small model.
        (aside / TOKENIZER).write_text(folder.tokenizer.fast.to_str(), "utf-8")
        size = 0
        for name, graph in _graphs(folder.model):
            if int8:
                quantise(graph)
            _save(graph, aside / name)
            size += (aside / name).stat().st_size
        parity = measure(folder, ModelFolder.load(aside), documents, corpus, int8=int8, size=size)
        write_json(aside / PARITY, asdict(parity))
    return parity


def _graphs(model: TaggingModel) -> "Iterator[tuple[str, onnx.ModelProto]]":
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    left = model.encoder.pad_left
    rows = torch.ones(3, 7, dtype=torch.int64)
    mask = rows.clone()
    mask[0, slice(0, 2) if left else slice(5, 7)] = 0
    inputs = rows * 5, mask, torch.zeros_like(rows)
    shapes = ({0: batch, 1: length},) * 3
    yield ENCODER, _to_onnx(_EncoderGraph(model.encoder), inputs, shapes, INPUTS, ["pooled"])
    pooled = torch.randn(3, model.encoder.width)
    sizes = {"tail": len(model.clusters.tails), "added": len(model.clusters.added)}
    names = ["head", *(f"{kind}_{i + 1}" for kind, n in sizes.items() for i in range(n))]
    yield CLUSTERS, _to_onnx(_ClustersGraph(model), (pooled,), ({0: batch},), ["pooled"], names)


def _to_onnx(
    module: nn.Module, inputs: tuple[Tensor, ...], shapes: Any, names: Sequence[str], outputs: Sequence[str]
) -> "onnx.ModelProto":
    """The math kernel of attention: the others' memory layout depends on lengths, which are to be free."""
    kernel = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with _silent(), kernel:
        program = torch.onnx.export(
            module.eval().cpu(),
            inputs,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(names),
            output_names=list(outputs),
            verbose=False,
        )
    assert program is not None
    return program.model_proto


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The exporter tells about itself on standard error; we say what matters ourselves."""
    loud = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loud]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loud:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loud, levels, strict=True):
                logger.setLevel(level)


def quantise(graph: "onnx.ModelProto") -> None:
    """Store every large float32 tensor as int8 rows with a scale each, undone by DequantizeLinear before its use."""
    import onnx
    from onnx import helper, numpy_helper

    nodes = []
    kept = [tensor for tensor in graph.graph.initializer if not _is_large(tensor)]
    for tensor in [tensor for tensor in graph.graph.initializer if _is_large(tensor)]:
        weights = numpy_helper.to_array(tensor)
        axis = _row_axis(graph, tensor.name)
        rows, scales = int8_rows(weights, axis)
        names = f"{tensor.name}.int8", f"{tensor.name}.scale"
        kept += [numpy_helper.from_array(rows, names[0]), numpy_helper.from_array(scales, names[1])]
        nodes.append(helper.make_node("DequantizeLinear", names, [tensor.name], axis=axis))
    old = list(graph.graph.node)
    del graph.graph.initializer[:], graph.graph.node[:]
    graph.graph.initializer.extend(kept)
    graph.graph.node.extend([*nodes, *old])
    onnx.checker.check_model(graph)


def int8_rows(weights: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Whole numbers and scales with weights ~ numbers * scale; `axis` counts the rows."""
    others = tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights).max(axis=others)
    scales = np.where(largest > 0, largest / 127, 1.0).astype(np.float32)
    shape = [-1 if i == axis else 1 for i in range(weights.ndim)]
    return np.rint(weights / scales.reshape(shape)).astype(np.int8), scales


def _is_large(tensor: Any) -> bool:
    import onnx

    return tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1 and np.prod(tensor.dims) >= SMALLEST


def _row_axis(graph: "onnx.ModelProto", name: str) -> int:
    """The right factor of a product has its outputs in columns, everything else in rows."""
    use = next(node for node in graph.graph.node if name in node.input)
    transposed = any(attribute.name == "transB" and attribute.i for attribute in use.attribute)
    right = use.op_type in ("MatMul", "Gemm") and use.input[1] == name and not transposed
    return 1 if right else 0


def _save(graph: "onnx.ModelProto", path: Path) -> None:
    import onnx

    if graph.ByteSize() >= 2 << 30:
        raise ModelError(f"{path.name} has {graph.ByteSize() / 1e9:.1f} GB, ONNX files at most 2; use --int8")
    onnx.save(graph, path)


def _documents(corpus: Path | None) -> list[Document]:
    if corpus is None:
        return []
    found = list(islice(read_documents(Corpus.open(corpus).file("test")), CHECKED))
    if not found:
        raise AplcError(f"{corpus}: no documents to compare on")
    return found


def measure(
    before: ModelFolder, after: ModelFolder, documents: list[Document], corpus: Path | None, *, int8: bool, size: int
) -> Parity:
    """Tag the same rows with both."""
    if documents:
        rows: list[Any] = before.tokenizer.encode([document.text for document in documents])
    else:
        rng = np.random.default_rng(0)
        lengths = rng.integers(1, before.collator.max_length, MADE_UP)
        rows = [rng.integers(0, before.tokenizer.vocab_size, length) for length in lengths]
    k = min(5, len(before.labels))
    ids, probs = predict_rows(before.model, before.collator, rows, k)
    new_ids, new_probs = predict_rows(after.model, after.collator, rows, k)
    same = np.array([len(set(a) & set(b)) / k for a, b in zip(ids, new_ids, strict=True)])
    precision = {}
    if documents:
        truth = [set(before.labels.encode(document.labels)) for document in documents]
        for at in (1, 3, 5):
            precision[f"P@{at}"] = (_precision(ids, truth, at), _precision(new_ids, truth, at))
    return Parity(
        documents=len(rows),
        texts=f"test part of {corpus}" if documents else "rows of random word pieces; give --corpus for real ones",
        weights="int8" if int8 else "float32",
        largest_difference=float(np.abs(probs - new_probs).max()),
        same_first=float((ids[:, 0] == new_ids[:, 0]).mean()),
        same_five=float(same.mean()),
        bytes_float32=4 * sum(parameter.numel() for parameter in before.model.parameters()),
        bytes_exported=size,
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
        raise AplcError(f"aplc export needs {error.name}: pip install onnx onnxscript onnxruntime") from error
