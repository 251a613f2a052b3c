"""C code of ours for CPUs, compiled when the package is built, and checks of all that is passed to it.

In float32, sweep.c takes the place of the sweep in PyTorch's operations (`nn/fused.py`), product.c that of SciPy's
sparse products (`words/systems.py`), transpose.c that of its transposing (`words/matrices.py`), local.c and settle.c
that of loops over rare labels (`words/local.py`), score.c that of SciPy's and NumPy's way to a document's best labels
(`words/index.py`), count.c that of scikit-learn's way from words to hash buckets (`words/text.py`). Those are the
reference, and are used for everything else: GPUs, other types, machines for which nothing was compiled.

Wrong types and shapes are refused here, with ValueError; wrong indices by the C code, where it meets them.
"""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aplc.console import Screen
from aplc.native import loader
from aplc.native.arrays import Matrix, array_at, is_rising, require, tensor_at
from aplc.native.loader import NO_MEMORY, OUT_OF_RANGE, Library, UnusableError, found, threads

if TYPE_CHECKING:  # words models predict without torch
    from torch import Tensor

LEAST_WORK = 2**21
"""Multiplications for which one more thread pays off."""

_told = False


def library() -> Library | None:
    """None where PyTorch, SciPy and NumPy have to do it."""
    return loader.library()


def why_not() -> str | None:
    """Why compiled code is not used; None where it is."""
    loaded = found()
    return str(loaded) if isinstance(loaded, UnusableError) else None


def missing(what: str) -> list[str]:
    """A line where compiled code is missing, and none where it is used. `what` is slower without, and by how much."""
    return [f"compiled code is not used: {why_not()}; {what}"] if library() is None else []


def tell(screen: Screen, what: str) -> None:
    """Say `missing`, once in a process."""
    global _told  # noqa: PLW0603
    if not _told and (lines := missing(what)):
        screen.say(*lines)
        _told = not screen.quiet


def sweep(
    sizes: tuple[int, int, int, int],
    weight: "Tensor",
    bias: "Tensor | None",
    rows: "Tensor",
    row_weight: "Tensor",
    root: "Tensor | None",
    label: "Tensor",
    row: "Tensor",
    loss: "Tensor",
    grad_weight: "Tensor | None",
    grad_bias: "Tensor | None",
    grad_rows: "Tensor",
    grad_root: "Tensor | None",
) -> None:
    """The sweep over a cluster, with PyTorch's number of threads at most. Arguments are those of `Sweep` in native.h.

    Tensors are contiguous and on the CPU: float32, ids int64, `row_weight` float64.
    """
    n_labels, n_rows, width, n_positives = sizes
    require(grad_weight is not None, "no memory for the weights' gradient")
    require((bias is None) == (grad_bias is None), "bias and its gradient go together")
    require((root is None) == (grad_root is None), "root and its gradient go together")
    outputs = len(weight)  # in the head, those of other clusters' roots follow
    require(min(sizes) >= 0 and outputs >= n_labels, f"{outputs} rows of weights for {n_labels} labels")
    call = loader.Sweep(
        *sizes,
        tensor_at("weight", weight, "float32", (outputs, width)),
        tensor_at("bias", bias, "float32", (outputs,)),
        tensor_at("rows", rows, "float32", (n_rows, width)),
        tensor_at("row_weight", row_weight, "float64", (n_rows,)),
        tensor_at("root", root, "float32", (n_rows,)),
        tensor_at("label", label, "int64", (n_positives,)),
        tensor_at("row", row, "int64", (n_positives,)),
        tensor_at("loss", loss, "float32", ()),
        tensor_at("grad_weight", grad_weight, "float32", (outputs, width)),
        tensor_at("grad_bias", grad_bias, "float32", (outputs,)),
        tensor_at("grad_rows", grad_rows, "float32", (n_rows, width)),
        tensor_at("grad_root", grad_root, "float32", (n_rows,)),
    )
    n_threads = _threads(n_labels * n_rows * width)
    memory = f"{n_threads} sums of the gradients of {n_rows} x {width} hidden states"
    _run("sweep", call, n_threads, memory, "positives are not pairs of a label and a row, sorted by label, each once")


def product(x: sparse.csr_array, dense: "Tensor", out: "Tensor") -> None:
    """x @ dense, all float32, tensors contiguous, with PyTorch's number of threads at most."""
    matrix = Matrix(x)
    width = dense.shape[1] if dense.dim() == 2 else -1
    places = (
        tensor_at("dense", dense, "float32", (x.shape[1], width)),
        tensor_at("out", out, "float32", (x.shape[0], width)),
    )
    _run("product", loader.Product(matrix.struct, width, *places), _threads(x.nnz * width))


def cross(x: sparse.csr_array, y: sparse.csr_array) -> NDArray[np.float32]:
    """x @ y as a dense matrix."""
    require(x.shape[1] == y.shape[0], f"shapes {x.shape} and {y.shape} do not fit")
    first, second, out = Matrix(x), Matrix(y), np.empty((x.shape[0], y.shape[1]), dtype=np.float32)
    _run("cross", loader.Cross(first.struct, second.struct, out.ctypes.data), threads())
    return out


def transpose(
    x: sparse.csr_array,
    first: int,
    after: NDArray[np.int64],
    row: NDArray[np.int32],
    value: NDArray[np.float32],
) -> None:
    """Writes the entries of x, some rows of a matrix, into its transpose, `row` and `value`.

    `first` is the number that x's first row has in the matrix, `after` the place of each column's next entry; it is
    moved on.
    """
    rows = Matrix(x)
    require(first >= 0 and first + x.shape[0] < 2**31, f"{first + x.shape[0]:,} rows")
    places = (
        array_at("after", after, np.int64, (x.shape[1],)),
        array_at("row", row, np.int32, row.shape),
        array_at("value", value, np.float32, row.shape),
    )
    _run("transpose", loader.Transpose(rows.struct, first, row.size, *places), 1)


def choose(
    x: sparse.csr_array,
    by_word: sparse.csr_array,
    own: sparse.csr_array,
    may: NDArray[np.bool_],
    most: int,
    reach: int,
) -> tuple[NDArray, NDArray]:
    """Neighbourhoods of labels from their own documents, (labels, documents): where each begins, and the documents.

    `may` says which documents may be neighbours. Of `by_word` about `reach` entries are looked at for a label, the
    rarest words first. Values are not negative.
    """
    require((own.shape[1], *x.shape) == (x.shape[0], *by_word.shape[::-1]), "documents and words do not fit")
    require(most >= 0 and reach >= 0, f"{most} neighbours among {reach} entries")
    rows, columns = Matrix(x), Matrix(by_word)
    own_start, ids = np.ascontiguousarray(own.indptr, np.int64), np.ascontiguousarray(own.indices, np.int32)
    require(is_rising(own), "the labels' documents are not where they should be")
    place = own_start + most * np.arange(len(own_start))
    document, count = np.empty(place[-1], dtype=np.int32), np.empty(own.shape[0], dtype=np.int64)
    allowed = array_at("may", may, np.bool_, (own.shape[1],))
    arrays = (array.ctypes.data for array in (place, document, count))
    own_places = own_start.ctypes.data, ids.ctypes.data, allowed
    call = loader.Choice(rows.struct, columns.struct, own.shape[0], len(ids), most, reach, *own_places, *arrays)
    _run("choose", call, threads(), f"neighbours among {own.shape[1]:,} documents")
    start = np.concatenate([[0], np.cumsum(count)])
    return start, document[np.repeat(place[:-1] - start[:-1], count) + np.arange(start[-1])]


def spread(
    x: sparse.csr_array, start: NDArray[np.int64], document: NDArray[np.int32], given: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Of the documents of neighbourhoods, that `start` and `document` say: rows of x times their label's row."""
    rows, n_labels, out = Matrix(x), len(start) - 1, np.empty(len(document), dtype=np.float32)
    places = (
        array_at("start", start, np.int64, (max(n_labels, 0) + 1,)),
        array_at("document", document, np.int32, (document.size,)),
        array_at("given", given, np.float32, (n_labels, x.shape[1])),
    )
    _run("spread", loader.Spread(rows.struct, n_labels, len(document), *places, out.ctypes.data), threads())
    return out


def settle(
    x: sparse.csr_array,
    start: NDArray[np.int64],
    document: NDArray[np.int32],
    diagonal: NDArray[np.float32],
    enough: NDArray[np.float32],
    a: NDArray[np.float32],
    most: int,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """a + c of settle.c for each document of the neighbourhoods, and whether a label's iterations sufficed."""
    rows, n_labels = Matrix(x), len(start) - 1
    out, solved = np.array(a), np.zeros(max(n_labels, 0), dtype=np.bool_)
    places = (
        array_at("start", start, np.int64, (max(n_labels, 0) + 1,)),
        array_at("document", document, np.int32, (document.size,)),
        array_at("diagonal", diagonal, np.float32, (x.shape[0],)),
        array_at("enough", enough, np.float32, (n_labels,)),
        array_at("a", out, np.float32, document.shape),
    )
    call = loader.Settle(rows.struct, n_labels, len(document), most, *places, solved.ctypes.data)
    _run("settle", call, threads(), f"{x.shape[1]:,} words of a thread")
    return out, solved


def collect(
    own: sparse.csr_array, x: sparse.csr_array, share: NDArray[np.float32], less: NDArray[np.float32], least: float
) -> sparse.csr_array:
    """own @ x, less the outer product of `share` and `less`, without what is smaller than `least`."""
    require(own.shape[1] == x.shape[0], f"shapes {own.shape} and {x.shape} do not fit")
    of_label, rows, n_labels = Matrix(own), Matrix(x), own.shape[0]
    require(is_rising(own) and is_rising(x), "rows of a matrix are not where they should be")
    require(not own.nnz or 0 <= own.indices.min() <= own.indices.max() < x.shape[0], "no such document")
    # Room for every word of a label's documents. Most of it is never touched, and so takes no memory.
    entries = np.concatenate([[0], np.cumsum(np.diff(x.indptr)[own.indices], dtype=np.int64)])
    place = entries[own.indptr]
    word, weight = np.empty(place[-1], dtype=np.int32), np.empty(place[-1], dtype=np.float32)
    count = np.zeros(n_labels, dtype=np.int64)
    taken = (
        array_at("share", share, np.float32, (n_labels,)),
        array_at("less", less, np.float32, (x.shape[1],)),
    )
    found = (array.ctypes.data for array in (place, count, word, weight))
    _run("collect", loader.Weights(of_label.struct, rows.struct, *taken, least, *found), threads())
    start = np.concatenate([[0], np.cumsum(count)])
    kept = np.repeat(place[:-1] - start[:-1], count) + np.arange(start[-1])
    return sparse.csr_array((weight[kept], word[kept], start), shape=(n_labels, x.shape[1]))


def logits(
    documents: sparse.csr_array,
    start: NDArray[np.int64],
    label: NDArray[np.int32],
    weight: NDArray[np.int16],
    scale: np.float32,
    bias: NDArray[np.float32],
    curve: NDArray[np.float32],
) -> NDArray[np.float32] | None:
    """documents @ weights + bias, bent, from an index of labels by words; None if it points beyond the labels.

    `curve` is (5, labels), as `Logits` in native.h has it.
    """
    rows, n_labels = Matrix(documents), bias.size
    places = (
        array_at("start", start, np.int64, (documents.shape[1] + 1,)),
        array_at("label", label, np.int32, (label.size,)),
        array_at("weight", weight, np.int16, (label.size,)),
        scale,
        array_at("bias", bias, np.float32, (n_labels,)),
        array_at("curve", curve, np.float32, (5, n_labels)),
    )
    out = np.empty((documents.shape[0], n_labels), dtype=np.float32)
    call = loader.Logits(rows.struct, n_labels, label.size, *places, out.ctypes.data)
    return None if _loaded().call("logits", call, threads()) == OUT_OF_RANGE else out


def best(x: NDArray[np.float32], k: int) -> NDArray[np.int32]:
    """The k largest of each row, largest first; of equal ones the lower column first."""
    require(x.ndim == 2 and 0 < k <= x.shape[1] < 2**31, f"the {k} best of a matrix of {x.shape}")
    x, column = np.ascontiguousarray(x), np.empty((len(x), k), dtype=np.int32)
    call = loader.Best(*x.shape, k, array_at("x", x, np.float32, x.shape), column.ctypes.data)
    _run("best", call, threads())
    return column


def count(
    texts: Sequence[Sequence[str]], sizes: tuple[int, int, int], *, runs: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
    """(start, bucket, how often) of the words of texts, of word pairs, and of runs of characters if asked for.

    `sizes` are the buckets of each of the three.
    """
    require(min(sizes) > 0 and sum(sizes) < 2**31, f"{sizes} buckets")
    parts = [" ".join([*words, ""]).encode() for words in texts]
    text, start = b"".join(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64)
    n_words = sum(map(len, texts))
    require(text.count(b" ") == n_words, "a word has a space in it")
    room = max(1, 2 * n_words + runs * len(text))
    require(room < 2**31, "too many words at once")
    found, bucket = np.zeros(len(texts) + 1, dtype=np.int64), np.empty((2, room), dtype=np.int32)
    often = np.empty(room, dtype=np.float32)
    n_buckets = *sizes[:2], sizes[2] if runs else 0
    places = (array.ctypes.data for array in (start, found, bucket, bucket[1], often))
    words_at = ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p)
    call = loader.Count(len(texts), len(text), room, *n_buckets, words_at, *places)
    _run("count", call, 1)
    return found.astype(np.int32), bucket[0, : found[-1]], often[: found[-1]]


def _loaded() -> Library:
    loaded = library()
    if loaded is None:
        raise RuntimeError(f"compiled code is not used: {why_not()}")
    return loaded


def _run(kernel: str, call: ctypes.Structure, n_threads: int, memory: str = "it", wrong: str = "") -> None:
    failure = _loaded().call(kernel, call, n_threads)
    if failure == NO_MEMORY:
        raise MemoryError(f"no memory for {memory}")
    if failure == OUT_OF_RANGE:
        raise ValueError(wrong or "an index of a sparse matrix is out of range, or a value is negative")


def _threads(multiplications: int) -> int:
    return min(threads(), 1 + multiplications // LEAST_WORK)
