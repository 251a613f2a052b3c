"""Reads what Python callers pass as texts and labels: lists, arrays, columns of data frames, indicator matrices.

Python iterates over a data frame by its column names and over a dict by its keys, so that either would be tagged as if
its names were the texts. Such inputs are refused, with what to pass instead. pandas and polars are no dependencies:
their data frames are known by their attributes.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from aplc.data.formats import Document, clean_names, is_unicode
from aplc.errors import AplcError

Labels: TypeAlias = "Sequence[Sequence[str]] | np.ndarray | sparse.spmatrix | sparse.sparray | Any"
"""One list of names a text, or an indicator matrix (texts x labels): numpy, any scipy format, or a data frame."""

SEPARATORS = ";|,\t"
"""Between names in one string; the first that occurs."""
LOOKED_AT = 20
"""Rows of a data frame that are looked at to find its column of texts."""


def read_texts(texts: Iterable[str]) -> list[str]:
    """The texts as a list of strings."""
    _refuse_tables(texts)
    if hasattr(texts, "to_pylist"):  # an array of Arrow's, whose items are no strings yet
        texts = texts.to_pylist()
    listed = list(texts)
    for i, text in enumerate(listed):
        if is_missing(text):
            raise AplcError(
                f"texts: number {i} is missing ({text}); leave such texts out, or make them empty: "
                f'df["text"].fillna("")'
            )
        if not isinstance(text, str):
            raise AplcError(f"texts: number {i} is of type {type(text).__name__}, expected a string{_cure(text)}")
        if not is_unicode(text):
            raise AplcError(f"texts: number {i} is not valid Unicode")
    return listed


def read_labelled(
    texts: Iterable[str], labels: Labels, label_names: Sequence[str] | None, known: Sequence[str] | None = None
) -> tuple[list[Document], tuple[str, ...] | None]:
    """Documents, and the names of the columns if `labels` is an indicator matrix.

    Columns are called `label_names`; without these, as the data frame says; else `known`, which are the names of an
    earlier matrix; else "0", "1", ...
    """
    if isinstance(texts, str):
        raise AplcError("texts: give a list of strings, not one string")
    listed = read_texts(texts)
    columns = None
    if is_indicator(labels):
        matrix, columns = read_indicator(labels, label_names, known)
        rows = [[columns[j] for j in matrix.indices[a:b]] for a, b in _spans(matrix)]
    elif label_names is not None:
        raise AplcError(
            "label_names: are for the columns of an indicator matrix, and labels is a list of names for each text; "
            "leave label_names out"
        )
    else:
        rows = _lists(labels)
    if len(listed) != len(rows):
        what = "lists of labels; give one list a text" if columns is None else "rows of labels; give one row a text"
        raise AplcError(f"{len(listed)} texts but {len(rows)} {what}")
    return [Document(text=text, labels=row) for text, row in zip(listed, rows, strict=True)], columns


def is_indicator(labels: Any) -> bool:
    """Whether labels are a matrix of zeros and ones (or a table that should be one), and not lists of names."""
    if sparse.issparse(labels) or _column_names(labels) is not None:
        return True
    return getattr(labels, "ndim", 1) == 2 and not _has_names(np.asarray(labels))


def read_indicator(
    labels: Any, label_names: Sequence[str] | None, known: Sequence[str] | None = None
) -> tuple[sparse.csr_array, tuple[str, ...]]:
    """An indicator matrix without stored zeros, and its columns' names."""
    own = _column_names(labels)
    if not sparse.issparse(labels):
        labels = _array(labels, own)
    if labels.ndim != 2:
        raise AplcError("labels: the array has one dimension; give an indicator matrix of texts x labels")
    matrix = sparse.csr_array(labels, copy=True)
    columns = _columns(matrix.shape[1], label_names, own, known)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    wrong = np.flatnonzero(matrix.data != 1)
    if len(wrong):
        row, value = int(np.searchsorted(matrix.indptr, wrong[0], side="right")) - 1, matrix.data[wrong[0]]
        name = columns[matrix.indices[wrong[0]]]
        if np.isnan(value):
            raise AplcError(f"labels: row {row} is NaN for {name!r}; fill in 0 or 1, or leave the text out")
        raise AplcError(
            f"labels: row {row} has {value:g} for {name!r}, but an indicator matrix holds 0 and 1; pass labels > 0 "
            f"if whatever is positive is a label"
        )
    return matrix, columns


def is_missing(value: object) -> bool:
    """None, NaN, and what pandas has in their place (NA, NaT)."""
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _refuse_tables(texts: Any) -> None:
    """What would be read by its keys, its column names or in no order at all."""
    names = _column_names(texts)
    if names is not None:
        raise AplcError(f"texts: a {type(texts).__name__} has columns, not texts; {_pass_column('df', texts, names)}")
    if isinstance(texts, Mapping):
        if texts and all(isinstance(text, str) for text in texts.values()):
            raise AplcError(f"texts: a {type(texts).__name__} is read by its keys; pass list(data.values())")
        raise AplcError(f"texts: a {type(texts).__name__} is read by its keys; {_pass_column('data', texts, texts)}")
    n_dims = getattr(texts, "ndim", 1)
    if sparse.issparse(texts):
        raise AplcError("texts: a sparse matrix has numbers; pass the texts that it was made of")
    if isinstance(n_dims, int) and n_dims != 1:
        cure = "pass one column of it: texts[:, 0]" if n_dims == 2 else "pass a list of strings"
        raise AplcError(f"texts: the array has {n_dims} dimensions; {cure}")
    if isinstance(texts, Set):
        raise AplcError("texts: a set has no order, so that results can't be told apart; pass a list")
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise AplcError(f"texts: expected strings, found {type(texts).__name__}; pass one string or a list of strings")


def _column_names(table: Any) -> list[Any] | None:
    """Of a data frame (pandas, polars), an Arrow table or a `datasets.Dataset`; None for anything else."""
    names = getattr(table, "column_names", None)  # an Arrow table's `columns` are the data
    names = getattr(table, "columns", None) if names is None else names
    return list(names) if isinstance(names, Iterable) and not isinstance(names, str) else None


def _pass_column(variable: str, table: Any, names: Iterable[Any]) -> str:
    """What to write instead of a table."""
    column = _likeliest(table, names)
    if column is None:
        return "pass a list of strings"
    return f"pass {variable}[{json.dumps(column, ensure_ascii=False) if isinstance(column, str) else repr(column)}]"


def _likeliest(table: Any, names: Iterable[Any]) -> Any:
    """The column that looks most like texts: the one with the longest strings. None if there is no column at all."""

    def length(name: Any) -> int:
        column = table[name]
        column = [column] if isinstance(column, str) else column if isinstance(column, Iterable) else []
        return sum(len(value) if isinstance(value, str) else -1 for value in islice(column, LOOKED_AT))

    return max(names, key=length, default=None)


def _cure(text: object) -> str:
    """What to write where the items of a list hold texts instead of being ones."""
    if isinstance(text, Mapping) and text:
        return f"; pass [{_pass_column('row', text, text).removeprefix('pass ')} for row in texts]"
    if isinstance(text, bytes):
        return "; pass [text.decode() for text in texts]"
    return "; pass [row[0] for row in texts]" if isinstance(text, list | tuple | np.ndarray) else ""


def _array(labels: Any, own: list[Any] | None) -> np.ndarray:
    """A dense indicator matrix as an array of numbers; `own` are the columns if it is a data frame."""
    array = np.asarray(labels.to_numpy() if hasattr(labels, "to_numpy") else labels)
    if own and (array.ndim != 2 or _has_names(array)):
        raise AplcError(
            f"labels: a {type(labels).__name__} must be an indicator matrix of 0 and 1; for a column with lists of "
            f'names, pass df["{own[-1]}"]'
        )
    if array.dtype.kind != "O":
        return array
    return np.array([[np.nan if is_missing(value) else value for value in row] for row in array], dtype=np.float64)


def _has_names(array: np.ndarray) -> bool:
    """Whether an array has anything but numbers, booleans and missing values."""
    if array.dtype.kind != "O":
        return array.dtype.kind not in "biuf"
    return any(not (is_missing(value) or isinstance(value, bool | int | float | np.number)) for value in array.flat)


def _columns(
    n: int, label_names: Sequence[str] | None, own: list[Any] | None, known: Sequence[str] | None
) -> tuple[str, ...]:
    """Names of an indicator matrix' columns."""
    if label_names is not None:
        names, where = list(label_names), "label_names"
        if len(names) != n:
            raise AplcError(f"label_names has {len(names)} names, labels {n} columns; give one each")
    elif own is not None:
        names, where = list(map(str, own)), "labels"  # pandas numbers columns without names
    elif known is not None:
        if len(known) != n:
            raise AplcError(f"labels has {n} columns, {len(known)} when the model was fitted; give label_names")
        return tuple(known)
    else:
        return tuple(map(str, range(n)))
    columns = _clean(names, where)
    if len(columns) != n:
        name = next(name for name, count in Counter(map(str.strip, names)).items() if count > 1)
        raise AplcError(f"{where}: two columns are called {name!r}; join them, or give one of them another name")
    return tuple(columns)


def _spans(matrix: sparse.csr_array) -> Iterator[tuple[int, int]]:
    """Where each row's entries begin and end."""
    return zip(matrix.indptr, matrix.indptr[1:], strict=False)


def _lists(labels: Any) -> list[list[str]]:
    if isinstance(labels, Mapping | Set) or not isinstance(labels, Iterable):
        raise AplcError(f"labels: expected a list of names for each text, found one {type(labels).__name__}")
    rows = []
    for i, row in enumerate(labels):
        if is_missing(row):
            raise AplcError(f"labels: row {i} is missing ({row}); leave the text out, or give it an empty list")
        if isinstance(row, str):
            raise AplcError(
                f"labels: row {i} is the string {row[:60]!r}; give a list of names for each text: {_listed(row)}"
            )
        if isinstance(row, Mapping) or not isinstance(row, Iterable):
            raise AplcError(
                f"labels: row {i} is of type {type(row).__name__}; give a list of names for each text, or an "
                f"indicator matrix"
            )
        rows.append(_clean(row, f"labels of text {i}"))
    return rows


def _listed(row: str) -> str:
    """How strings become lists; rows that are lists already stay as they are."""
    separator = next((sign for sign in SEPARATORS if sign in row), None)
    split = f"row.split({separator!r})" if separator else "[row]"
    return f"[{split} if isinstance(row, str) else row for row in labels]"


def _clean(names: Iterable[object], where: str) -> list[str]:
    names = list(names)
    missing = [name for name in names if is_missing(name)]
    if missing:
        raise AplcError(f"{where}: a name is missing ({missing[0]}); leave it out")
    try:
        return clean_names(names)
    except ValueError as error:
        raise AplcError(f"{where}: {error}") from None
