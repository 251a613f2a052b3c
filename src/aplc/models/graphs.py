"""A network as ONNX graphs, in float32 or with int8 weights.

Int8 is for weights alone: each row of a label, a word piece or an output is stored as whole numbers from -127 to 127
with a scale of its own (symmetric, the row's largest weight / 127), which standard ONNX operators undo. Sums stay in
float32, so a text's tags don't depend on the other texts of its batch, as they would if activations were quantised
together. The price: int8 saves disk and loading, not arithmetic.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aplc.data.tokenizer import TOKENIZER_FILE
from aplc.errors import ModelError
from aplc.models.base import CLUSTERS_GRAPH, ENCODER_GRAPH
from aplc.models.network import TaggingModel
from aplc.models.onnx import INPUTS
from aplc.nn.encoder import Encoder

if TYPE_CHECKING:
    import onnx

SMALLEST = 1024
"""Smaller tensors (norms, biases) stay float32: they weigh nothing and matter."""


class _EncoderGraph(nn.Module):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.encoder.encode(input_ids, attention_mask, token_type_ids)


class _ClustersGraph(nn.Module):
    """pooled_BE -> logits of the head with its roots, and of every tail."""

    def __init__(self, model: TaggingModel) -> None:
        super().__init__()
        self.hidden, self.activation, self.clusters = model.hidden, model.activation, model.clusters

    def forward(self, pooled_BE: Tensor) -> tuple[Tensor, ...]:
        return self.clusters.logits(self.activation(self.hidden(pooled_BE)))


def export(model: TaggingModel, folder: Path, *, int8: bool) -> int:
    """Write the network's graphs; returns their size in bytes."""
    if model.encoder.long_text == "memory":
        raise ModelError(
            "data.long_text = 'memory' carries state from segment to segment, which ONNX can't; a model with "
            "'truncate' or 'windows' can be exported"
        )
    # As small as can be: it is a good part of a small model.
    (folder / TOKENIZER_FILE).write_text(model.tokenizer.fast.to_str(), "utf-8")
    size = 0
    for name, graph in to_graphs(model):
        if int8:
            quantise(graph)
        save_graph(graph, folder / name)
        size += (folder / name).stat().st_size
    return size


def to_graphs(model: TaggingModel) -> "Iterator[tuple[str, onnx.ModelProto]]":
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    left = model.encoder.pad_left
    rows = torch.ones(3, 7, dtype=torch.int64)
    mask = rows.clone()
    mask[0, slice(0, 2) if left else slice(5, 7)] = 0
    inputs = rows * 5, mask, torch.zeros_like(rows)
    shapes = ({0: batch, 1: length},) * 3
    yield ENCODER_GRAPH, _to_onnx(_EncoderGraph(model.encoder), inputs, shapes, INPUTS, ["pooled"])
    pooled = torch.randn(3, model.encoder.width)
    sizes = {"tail": len(model.clusters.tails), "added": len(model.clusters.added)}
    names = ["head", *(f"{kind}_{i + 1}" for kind, n in sizes.items() for i in range(n))]
    yield CLUSTERS_GRAPH, _to_onnx(_ClustersGraph(model), (pooled,), ({0: batch},), ["pooled"], names)


def _to_onnx(
    module: nn.Module, inputs: tuple[Tensor, ...], shapes: Any, names: Sequence[str], outputs: Sequence[str]
) -> "onnx.ModelProto":
    """Attention is exported by PyTorch's math kernel: the layouts of others depend on lengths, which must stay free."""
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
    """Without the exporter's own messages on standard error; `aplc export` says what a user needs to know."""
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


def save_graph(graph: "onnx.ModelProto", path: Path) -> None:
    import onnx

    if graph.ByteSize() >= 2 << 30:
        raise ModelError(f"{path.name} has {graph.ByteSize() / 1e9:.1f} GB, ONNX files at most 2; use --int8")
    onnx.save(graph, path)
