"""What a model folder must show before it is believed: it may come from anywhere, and nothing in it is trusted.

No file can run code: there are JSON, plain text, one .npy read without pickle, and safetensors. What is left are sizes.
A file must be a regular one of a plausible length; the weights' header is read before any tensor; the network that
config.json describes is built without memory (on PyTorch's "meta" device) and held against the header, so that a lie
about a width or a number of labels costs nothing. Only then is anything of that size allocated.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from aplc.errors import AplcError, ModelError

MB = 1_000_000
LIMITS = {
    "config.json": 100 * MB,
    "tokenizer.json": 500 * MB,
    "spiece.model": 500 * MB,
    "calibration.json": 10 * MB,
    "README.md": 100 * MB,
    "evaluation.json": 100 * MB,
    "encoder.onnx": 2_148 * MB,
    "clusters.onnx": 2_148 * MB,
}
"""Largest sizes, in bytes, far beyond what any model needs. Labels: by their number."""
NAME_BYTES = 1_000
"""Bytes a label's name may have, on average."""
DTYPES = {"F64", "F32", "F16", "BF16"}
INTEGERS = {"features.row": "I64", "start": "I64", "label": "I32"}
"""Tensors of a model of words that are no weights."""

Header = dict[str, tuple[int, ...]]
"""Shapes of the tensors by name."""


def check_files(folder: Path) -> None:
    """Regular files of plausible length; a pipe or a device would be read forever."""
    for name, limit in LIMITS.items():
        check_file(folder / name, limit)


def check_file(path: Path, limit: int) -> None:
    if not path.exists():
        return
    if not path.is_file():
        raise ModelError(f"{path}: not a regular file")
    if path.stat().st_size > limit:
        raise ModelError(f"{path}: {path.stat().st_size:,} bytes, at most {limit:,} are plausible")


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object."""
    try:
        tree = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON ({error})") from None
    if not isinstance(tree, dict):
        raise ModelError(f"{path}: must hold one JSON object")
    return tree


def read_header(path: Path) -> Header:
    """Names and shapes of the weights. safetensors itself checks that they fit the file's length."""
    if not path.is_file():
        raise ModelError(f"{path}: no weights yet; the training run has not finished its first epoch")
    try:
        with safe_open(path, framework="pt") as file:
            header = {}
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                expected = {INTEGERS[name]} if name in INTEGERS else DTYPES
                if part.get_dtype() not in expected:
                    raise ModelError(
                        f"{path}: {name} is of type {part.get_dtype()}, expected {', '.join(sorted(expected))}"
                    )
                header[name] = tuple(part.get_shape())
            return header
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error})") from None


def check_depth(tree: dict[str, Any], header: Header, path: Path) -> None:
    """Every layer has tensors: more layers than tensors would only be built for ever."""
    for name, value in tree.items():
        if isinstance(value, dict):
            check_depth(value, header, path)
        count = len(value) if isinstance(value, list) else value
        is_depth = "layer" in name or isinstance(value, list)
        if is_depth and isinstance(count, int | float) and count > max(len(header), 100):
            raise ModelError(f"{path}: {name} = {str(value)[:40]}, but the weights have {len(header)} tensors")


def build_checked(build: Callable[[], nn.Module], header: Header, folder: Path) -> nn.Module:
    """The network that config.json asks for, once it is known to have the weights' names and shapes."""
    try:
        with torch.device("meta"):
            empty = build()
        expected = {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
    except AplcError as error:
        raise ModelError(f"{folder}: {error}") from None
    except Exception as error:  # whatever a wrong value led to, in our constructors or in transformers'
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{folder / 'config.json'}: {type(error).__name__}: {reason}") from None
    for name in sorted(expected.keys() | header.keys()):
        if expected.get(name) != header.get(name):
            raise ModelError(
                f"{folder}: in the weights {name} is {header.get(name)}, config.json asks for {expected.get(name)}"
            )
    return build()


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy the weights in; numbers that are none are refused."""
    try:
        state = load_file(path)
        for name, tensor in state.items():
            if not bool(torch.isfinite(tensor).all()):
                raise ModelError(f"{path}: {name} has values that are no numbers (NaN or infinite)")
        model.load_state_dict(state)
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error})") from None
