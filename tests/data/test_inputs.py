"""Guards what Python callers pass: tables are never read by their column names, matrices are read as labels."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from aplc import Tagger
from aplc.data.inputs import read_labelled, read_texts
from aplc.errors import AplcError
from helpers import topic_rows

ROWS = topic_rows(60, seed=5)
TEXTS, LABELS = [row["text"] for row in ROWS], [row["labels"] for row in ROWS]
FRAME = pd.DataFrame({"id": [row["id"] for row in ROWS], "title": TEXTS, "labels": LABELS})
NAMES = sorted({name for row in LABELS for name in row})
MATRIX = np.array([[int(name in row) for name in NAMES] for row in LABELS])


class Table:
    """Has what a data frame of another library has: column names, columns, and an iterator over its names."""

    def __init__(self, **columns):
        self.columns, self._data = list(columns), columns

    def __getitem__(self, name):
        return self._data[name]

    def __iter__(self):
        return iter(self.columns)


TABLES = {
    "frame": (FRAME, 'pass df["title"]'),
    "one column": (FRAME[["title"]], 'pass df["title"]'),
    "numbered columns": (pd.DataFrame({0: TEXTS}), r"pass df[0]"),
    "other library": (Table(id=["1"] * 60, title=TEXTS), 'pass df["title"]'),
    "dict of columns": ({"id": list(FRAME["id"]), "title": TEXTS}, 'pass data["title"]'),
    "dict of texts": (dict(zip(FRAME["id"], TEXTS, strict=True)), r"pass list(data.values())"),
    "array": (np.array(TEXTS).reshape(-1, 1), r"texts[:, 0]"),
    "features": (sparse.eye_array(60), "pass the texts that it was made of"),
    "set": (set(TEXTS), "pass a list"),
    "records": (FRAME.to_dict("records"), 'pass [row["title"] for row in texts]'),
}


@pytest.fixture(scope="module")
def tagger():
    return Tagger("words").fit(TEXTS, LABELS)


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_no_texts_anywhere(tagger, name):
    texts, cure = TABLES[name]
    calls = [
        lambda: tagger.predict(texts),
        lambda: tagger.predict_proba(texts),
        lambda: tagger.score(texts, LABELS),
        lambda: tagger.partial_fit(texts, LABELS),
        lambda: Tagger("words").fit(texts, LABELS),
        lambda: Tagger("words").partial_fit(texts, LABELS),
    ]
    for call in calls:
        with pytest.raises(AplcError) as error:
            call()
        assert cure in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "texts",
    [
        FRAME["title"],
        FRAME["title"][::-1][::-1],
        FRAME["title"].astype("category"),
        FRAME["title"].to_numpy(),
        np.array(TEXTS),
        (text for text in TEXTS),
        tuple(TEXTS),
        dict(enumerate(TEXTS)).values(),
    ],
)
def test_columns_arrays_and_generators_are_texts(texts):
    assert read_texts(texts) == TEXTS


def test_arrow_columns_are_texts():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"title": TEXTS})
    assert read_texts(table["title"]) == TEXTS
    with pytest.raises(AplcError, match=r'pass df\["title"\]'):
        read_texts(table)


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT])
def test_missing_texts_and_labels_are_named_by_position(missing):
    with pytest.raises(AplcError, match=r"texts: number 2 is missing .*fillna"):
        read_texts(["a", "b", missing])
    with pytest.raises(AplcError, match=r"labels: row 1 is missing .* empty list"):
        read_labelled(["a", "b"], [["x"], missing], None)
    with pytest.raises(AplcError, match="labels of text 1: a name is missing"):
        read_labelled(["a", "b"], pd.Series([["x"], ["y", missing]]), None)


@pytest.mark.parametrize("texts", [None, 3, b"bytes", np.array("one")])
def test_what_has_no_texts(texts):
    with pytest.raises(AplcError, match=r"pass .*a list of strings"):
        read_texts(texts)


@pytest.mark.parametrize(
    "make",
    [
        np.asarray,
        lambda m: m.astype(bool),
        lambda m: m.astype(np.float32),
        lambda m: m.astype(object),
        lambda m: pd.DataFrame(m, columns=NAMES),
        lambda m: pd.DataFrame(m, columns=NAMES).astype("boolean"),
        *(
            lambda m, make=make, format=format: make(m).asformat(format)
            for make in (sparse.csr_array, sparse.csr_matrix)
            for format in ("csr", "csc", "coo", "lil", "dok", "bsr")
        ),
    ],
)
def test_indicator_matrices_are_read(make):
    matrix = make(MATRIX)
    documents, columns = read_labelled(TEXTS, matrix, NAMES)
    assert columns == tuple(NAMES)
    assert [sorted(document.labels) for document in documents] == [sorted(row) for row in LABELS]
    named = tuple(NAMES) if hasattr(matrix, "columns") else tuple("012345")
    assert read_labelled(TEXTS, matrix, None)[1] == named
    assert read_labelled(TEXTS, matrix, None, known=NAMES)[1] == tuple(NAMES)


def test_stored_zeros_are_no_labels():
    matrix = sparse.coo_array(([1, 0], ([0, 1], [0, 0])), shape=(2, 1))
    assert [document.labels for document in read_labelled(["a", "b"], matrix, ["x"])[0]] == [["x"], []]


def test_an_array_of_names_is_no_matrix():
    documents, columns = read_labelled(["a", "b"], np.array([["x", "y"], ["y", "z"]]), None)
    assert [document.labels for document in documents] == [["x", "y"], ["y", "z"]]
    assert columns is None


@pytest.mark.parametrize(
    ("labels", "names", "words"),
    [
        (np.array([[1, 0], [np.nan, 1]]), ["x", "y"], "row 1 is NaN for 'x'; fill in 0 or 1"),
        (sparse.csc_array([[1.0, 0], [0, np.nan]]), ["x", "y"], "row 1 is NaN for 'y'"),
        (pd.DataFrame({"x": [1, None], "y": [0, 1]}), None, "row 1 is NaN for 'x'"),
        (pd.DataFrame({"x": [True, None], "y": [False, True]}), None, "row 1 is NaN for 'x'"),
        (np.array([[1, -1], [-1, 1]]), None, "row 0 has -1 for '1', but an indicator matrix holds 0 and 1"),
        (np.array([[0.2, 0], [0, 1]]), None, "row 0 has 0.2 for '0'"),
        (np.eye(3), None, "2 texts but 3 rows of labels; give one row a text"),
        (np.eye(2), ["x"], "label_names has 1 names, labels 2 columns"),
        (np.eye(2), ["x", "x "], "two columns are called 'x'"),
        (pd.DataFrame(np.eye(2), columns=["x", "x"]), None, "two columns are called 'x'"),
        (pd.DataFrame({"labels": [["x"], ["y"]]}), None, r'pass df\["labels"\]'),
        (pd.Series(["x;y", "x"]), None, r"row 0 is the string 'x;y'; .*row\.split\(';'\)"),
        ([0, 1], None, "row 0 is of type int; give a list of names for each text, or an indicator matrix"),
        ([{"label": "x"}, {}], None, "row 0 is of type dict"),
        ({"a": ["x"], "b": ["y"]}, None, "found one dict"),
        (None, None, "found one NoneType"),
    ],
)
def test_what_is_no_matrix_and_no_lists(labels, names, words):
    with pytest.raises(AplcError, match=words):
        read_labelled(["a", "b"], labels, names)


def test_fit_and_score_with_a_matrix(tagger):
    by_matrix = Tagger("words").fit(TEXTS, MATRIX, label_names=NAMES)
    by_frame = Tagger("words").fit(FRAME["title"], pd.DataFrame(MATRIX, columns=NAMES))
    for other in (by_matrix, by_frame):
        assert other.predict(TEXTS[:9]) == tagger.predict(TEXTS[:9])
        assert other.score(TEXTS, MATRIX) == tagger.score(TEXTS, LABELS)  # the columns have the names that fit saw
        assert other.score(TEXTS, sparse.csc_array(MATRIX), label_names=NAMES) == tagger.score(TEXTS, LABELS)
    with pytest.raises(AplcError, match="labels has 5 columns, 6 when the model was fitted; give label_names"):
        by_matrix.score(TEXTS, MATRIX[:, :5])
    with pytest.raises(AplcError, match=r"columns have no names.*give label_names"):
        tagger.score(TEXTS, MATRIX)  # every label would count as missed


def test_fit_without_any_label():
    for labels in ([[]] * 60, np.zeros((60, 3)), np.zeros((60, 0))):
        with pytest.raises(AplcError, match="no text has a label; give at least one"):
            Tagger("words").fit(TEXTS, labels)


def test_partial_fit_with_a_matrix(trained):
    by_lists, by_matrix = Tagger.from_pretrained(trained), Tagger.from_pretrained(trained)
    by_lists.partial_fit(TEXTS, LABELS)
    by_matrix.partial_fit(TEXTS, MATRIX, label_names=NAMES)
    assert by_matrix.classes_.tolist() == by_lists.classes_.tolist()
    assert (by_matrix.trained.labels.counts == by_lists.trained.labels.counts).all()
    with pytest.raises(AplcError, match="give label_names"):
        Tagger.from_pretrained(trained).partial_fit(TEXTS, MATRIX)  # labels "0", "1", ... would be added
