"""Loads the compiled library, and says which vector code of it is used, or why none is.

The library lies beside this file. It is used only if it was made for the structs below (their sizes, and ABI) and from
the C sources beside it, where there are any; a wheel has none. `APLC_NATIVE=0` switches it off; `APLC_NATIVE=avx2` asks
for one of its variants. Nothing here imports torch.
"""

import ctypes
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aplc.errors import AplcError

PATH = Path(__file__).with_name("_native.so")
KERNEL_FILES = ["sweep.c", "product.c", "transpose.c", "local.c", "settle.c", "score.c", "count.c"]
SOURCES = ["native.h", "variants.c", "threads.c", *KERNEL_FILES]
KERNELS = ["sweep", "product", "cross", "transpose", "choose", "spread", "collect", "settle", "logits", "best", "count"]
ABI = 4
SWITCH = "APLC_NATIVE"
NO_MEMORY, OUT_OF_RANGE = 1, 2

_Size, _Array, _Float = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


def _fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names]


class Rows(ctypes.Structure):
    _fields_ = _fields(_Size, "n_rows", "n_columns", "n_entries") + _fields(_Array, "start", "column", "value")


class Sweep(ctypes.Structure):
    _fields_ = [
        *_fields(_Size, "n_labels", "n_rows", "width", "n_positives"),
        *_fields(_Array, "weight", "bias", "rows", "row_weight", "root", "label", "row"),
        *_fields(_Array, "loss", "grad_weight", "grad_bias", "grad_rows", "grad_root"),
    ]


class Product(ctypes.Structure):
    _fields_ = [("x", Rows), ("width", _Size), *_fields(_Array, "dense", "out")]


class Cross(ctypes.Structure):
    _fields_ = [*_fields(Rows, "first", "second"), ("out", _Array)]


class Transpose(ctypes.Structure):
    _fields_ = [("x", Rows), *_fields(_Size, "first", "n_entries"), *_fields(_Array, "after", "row", "value")]


class Choice(ctypes.Structure):
    _fields_ = [
        *_fields(Rows, "by_document", "by_word"),
        *_fields(_Size, "n_labels", "n_own", "most", "reach"),
        *_fields(_Array, "own_start", "own", "may", "place", "document", "count"),
    ]


class Spread(ctypes.Structure):
    _fields_ = [
        ("rows", Rows),
        *_fields(_Size, "n_labels", "n_documents"),
        *_fields(_Array, "start", "document", "given", "out"),
    ]


class Weights(ctypes.Structure):
    _fields_ = [
        *_fields(Rows, "own", "rows"),
        *_fields(_Array, "share", "less"),
        ("least", _Float),
        *_fields(_Array, "place", "count", "word", "weight"),
    ]


class Settle(ctypes.Structure):
    _fields_ = [
        ("rows", Rows),
        *_fields(_Size, "n_labels", "n_documents", "most"),
        *_fields(_Array, "start", "document", "diagonal", "enough", "out", "solved"),
    ]


class Logits(ctypes.Structure):
    _fields_ = [
        ("documents", Rows),
        *_fields(_Size, "n_labels", "n_weights"),
        *_fields(_Array, "word_start", "label", "weight"),
        ("scale", _Float),
        *_fields(_Array, "bias", "curve", "out"),
    ]


class Best(ctypes.Structure):
    _fields_ = [*_fields(_Size, "n_rows", "n_columns", "k"), *_fields(_Array, "value", "column")]


class Count(ctypes.Structure):
    _fields_ = [
        *_fields(_Size, "n_texts", "n_bytes", "n_room", "n_words", "n_pairs", "n_runs"),
        *_fields(_Array, "text", "start", "found", "bucket", "spare", "count"),
    ]


STRUCTS: list[type[ctypes.Structure]] = [
    *(Rows, Sweep, Product, Cross, Transpose, Choice, Spread, Weights, Settle, Logits, Best, Count),
]  # in the order of variants.c


class UnusableError(Exception):
    """Why compiled code can't be used, for people."""


@dataclass(frozen=True)
class Library:
    """The kernels of one variant."""

    vector: str
    variants: tuple[str, ...]
    """Those that this processor can run, best first."""
    path: Path
    kernels: dict[str, Any]
    own_team: int
    """Address of a `Team` without PyTorch."""

    def call(self, kernel: str, struct: ctypes.Structure, threads: int) -> int:
        """0, NO_MEMORY or OUT_OF_RANGE."""
        team = _torch_team() if "torch" in sys.modules else None
        return self.kernels[kernel](ctypes.byref(struct), team or self.own_team, threads)


@cache
def found() -> Library | UnusableError:
    """The library, or why it is not used; asked once in a process."""
    try:
        return load(PATH, _asked())
    except UnusableError as error:
        return error


def library() -> Library | None:
    """None where PyTorch, SciPy and NumPy have to do it."""
    loaded = found()
    return loaded if isinstance(loaded, Library) else None


def _asked() -> str:
    """The variant that `APLC_NATIVE` names; "" for the best."""
    asked = os.environ.get(SWITCH, "").strip().lower()
    if asked in ("0", "off", "no", "false"):
        raise UnusableError(f"{SWITCH}={asked} switches it off")
    return "" if asked in ("1", "on", "yes", "true") else asked


def load(path: Path, vector: str = "") -> Library:
    """The library in a file, after the handshake. `vector`: which of its variants, "" for the best."""
    if not path.is_file():
        raise UnusableError("it was not built (make install builds it, with GCC or Clang)")
    try:
        opened = ctypes.CDLL(str(path))
        shake_hands(opened)
    except (OSError, AttributeError, ValueError) as error:
        raise UnusableError(f"{path.name} can't be loaded: {error}") from None
    opened.aplc_variants.restype = ctypes.c_char_p
    able = opened.aplc_variants().decode().split()
    if vector and vector not in able:
        raise AplcError(f"{SWITCH}={vector}: this processor can run {', '.join(able)}; 0 switches compiled code off")
    vector = vector or able[0]
    kernels = {name: opened[f"{name}_{vector}"] for name in KERNELS}
    for kernel in kernels.values():
        kernel.argtypes, kernel.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    process = ctypes.CDLL(None)
    opened.aplc_use_threads(*(ctypes.cast(process[name], _Array) for name in ("pthread_create", "pthread_join")))
    return Library(vector, tuple(able), path, kernels, _address(opened.aplc_own_team))


def shake_hands(opened: ctypes.CDLL, structs: Sequence[type[ctypes.Structure]] = STRUCTS) -> None:
    """Raise `UnusableError` if the library takes other structs than ours: that would be memory corruption."""
    abi = ctypes.c_int64.in_dll(opened, "aplc_abi").value
    if abi != ABI:
        raise UnusableError(f"it was built for version {abi} of its interface, not {ABI}; install again")
    sizes = list((ctypes.c_int64 * len(structs)).in_dll(opened, "aplc_sizes"))
    for struct, size in zip(structs, sizes, strict=True):
        if ctypes.sizeof(struct) != size:
            raise UnusableError(f"its {struct.__name__} has {size} bytes, ours {ctypes.sizeof(struct)}; install again")
    sources = [PATH.with_name(name) for name in SOURCES]
    if all(source.is_file() for source in sources):
        parts = "".join(hashlib.sha256(source.read_bytes()).hexdigest() for source in sources)
        built_from = (ctypes.c_char * 64).in_dll(opened, "aplc_sources").value.decode()
        if built_from != hashlib.sha256(parts.encode()).hexdigest():
            raise UnusableError("the C sources have changed since it was built; make native")


def threads() -> int:
    """PyTorch's number of threads, where it is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.get_num_threads()
    try:
        return max(1, int(os.environ["OMP_NUM_THREADS"]))
    except (KeyError, ValueError):
        return os.cpu_count() or 1


@cache
def _torch_team() -> int | None:
    """GOMP_parallel of the OpenMP that PyTorch is linked with, whichever that is; LLVM's and Intel's have it, too."""
    torch: Any = sys.modules["torch"]
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            linked = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return _address(linked.GOMP_parallel)
        except (OSError, AttributeError):
            continue
    return None


def _address(function: Any) -> int:
    return ctypes.cast(function, _Array).value or 0
