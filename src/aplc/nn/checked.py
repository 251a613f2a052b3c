"""Weights of an untrusted model folder, checked before anything of their size is allocated.

The header of the safetensors file is read before any tensor. The network that config.json describes is built without
memory (on PyTorch's "meta" device) and compared with the header, so that a wrong width or number of labels costs
nothing. `store/safety.py` has the checks of the files themselves.
"""

import contextlib
import contextvars
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from torch.nn.modules import module as modules

from aplc.config import LONGEST
from aplc.errors import AplcError, ModelError

DTYPES = {"F64", "F32", "F16", "BF16"}

Header = dict[str, tuple[int, ...]]
"""Shapes of the tensors by name."""
Module = TypeVar("Module", bound=nn.Module)


_JSON_TYPES = {dict: "object", list: "list", int: "integer of at least 1"}


def check_settings(settings: Mapping[str, Any], types: Mapping[str, type], folder: Path) -> None:
    """Refuse a config.json whose entries are missing or of another type."""
    for name, expected in types.items():
        value = settings.get(name)
        if type(value) is not expected or (isinstance(value, int) and value < 1):
            raise ModelError(
                f"{folder / 'config.json'}: {name} = {str(value)[:40]}: must be a JSON {_JSON_TYPES[expected]}"
            )


_LENGTHS = {"max_length": (3, LONGEST), "max_segments": (1, 1024)}


def check_lengths(encoder: Mapping[str, Any], folder: Path) -> None:
    """Refuse a config.json whose encoder cuts texts at no possible length, or at one that no memory holds."""
    for name, (least, most) in _LENGTHS.items():
        value = encoder.get(name, least)
        if type(value) is not int or not least <= value <= most:
            raise ModelError(
                f"{folder / 'config.json'}: {name} = {str(value)[:40]}: must be an integer from {least} to {most:,}"
            )


def read_header(path: Path, types: Mapping[str, str] | None = None) -> Header:
    """Names and shapes of the weights; safetensors itself checks that they fit the file's length.

    `types` are the tensors' types by name; any floating-point type will do where none is given.
    """
    if not path.is_file():
        raise ModelError(f"{path}: is missing; the copy is incomplete, or training has not saved a model yet")
    try:
        with safe_open(path, framework="pt") as file:
            header = {}
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                expected = {types[name]} if types and name in types else DTYPES
                if part.get_dtype() not in expected:
                    raise ModelError(
                        f"{path}: {name} is of type {part.get_dtype()}, expected {', '.join(sorted(expected))}"
                    )
                header[name] = tuple(part.get_shape())
            return header
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error})") from None


_NUMBERS = {"F32": np.float32, "I16": np.int16, "I32": np.int32, "I64": np.int64}


def map_tensors(path: Path) -> dict[str, NDArray]:
    """The tensors of a file whose header was read and compared, mapped into memory: read when they are used.

    safetensors' own NumPy reader copies them.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        whole = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size)
        return {
            name: whole[slice(*entry["data_offsets"])].view(_NUMBERS[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: damaged ({error})") from None


_COUNTS = ("layer", "depth", "repeat", "cycle", "num_labels")
"""What names of counts have in them."""


def check_depth(tree: Mapping[str, Any], header: Header, folder: Path) -> None:
    """Refuse a config.json that asks for more layers, or repeats of layers, than the weights have tensors.

    Layers may share their weights (ALBERT) and be repeated (Funnel): then no weights are missing, and a forward pass
    would never end. `num_labels`, which encoders have no use for, makes `transformers` name as many labels. Layers with
    weights of their own are counted by `build_checked`, whatever a family calls their number.
    """
    most = max(len(header), 100)
    for name, value in tree.items():
        if isinstance(value, dict) and name != "label2id":  # there, names are a checkpoint's own
            check_depth(value, header, folder)
        counts = value if isinstance(value, list) else [value]
        counts = [count for count in counts if isinstance(count, int | float) and any(part in name for part in _COUNTS)]
        if max([len(value) if isinstance(value, list) else 0, *counts]) > most:
            raise ModelError(
                f"{folder / 'config.json'}: {name} = {str(value)[:40]}, but the weights have {len(header)} tensors"
            )


@contextlib.contextmanager
def _no_more_parts_than(header: Header) -> Iterator[None]:
    """Building a network stops where it has many times as many modules and tensors as the file has tensors."""
    most, made, own = 1_000 + 20 * len(header), itertools.count(1), threading.get_ident()

    def count(*_: object) -> None:
        if threading.get_ident() == own and next(made) > most:
            raise ModelError(f"config.json asks for far more layers than the {len(header)} tensors of the weights")

    hooks = [
        modules.register_module_module_registration_hook(count),
        modules.register_module_parameter_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def compare_headers(expected: Mapping[str, object], header: Header, folder: Path) -> None:
    """Refuse weights that are not of the names and shapes that config.json asks for."""
    for name in sorted(expected.keys() | header.keys()):
        if expected.get(name) != header.get(name):
            raise ModelError(
                f"{folder}: in the weights {name} is {header.get(name)}, config.json asks for {expected.get(name)}"
            )


def build_checked(build: Callable[[], Module], header: Header, folder: Path) -> Module:
    """The network that config.json asks for, once it is known to have the weights' names and shapes."""
    try:
        with torch.device("meta"), _no_more_parts_than(header):
            empty = build()
        expected = {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
    except AplcError as error:
        raise ModelError(f"{folder}: {error}") from None
    except Exception as error:  # whatever a wrong value led to, in our constructors or in transformers'
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{folder / 'config.json'}: {type(error).__name__}: {reason}") from None
    compare_headers(expected, header, folder)
    return build()


_mapped = contextvars.ContextVar("mapped", default=False)


@contextlib.contextmanager
def mapped_weights() -> Iterator[None]:
    """Weights that are loaded meanwhile stay mapped from their file, privately: processes share them in memory.

    Not the default: a tensor begins where its file has it, not at a multiple of 64 bytes, and the last digit of a sum
    depends on that. The same model in another file would not give the same digits.
    """
    token = _mapped.set(True)
    try:
        yield
    finally:
        _mapped.reset(token)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights in; NaN and infinite values are refused."""
    try:
        state = load_file(path)
        for name, tensor in state.items():
            if not bool(torch.isfinite(tensor).all()):
                raise ModelError(f"{path}: {name} has NaN or infinite values")
        own = model.state_dict()
        fits = all(name in own and own[name].dtype == tensor.dtype for name, tensor in state.items())
        model.load_state_dict(state, assign=fits and _mapped.get())
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error})") from None
