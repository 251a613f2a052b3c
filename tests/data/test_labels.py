"""Guards the label set: its order, its files, and labels it has never seen."""

from collections import Counter

import numpy as np
import pytest

from aplc.data.labels import LabelSet
from aplc.errors import CorpusError, ModelError


def test_order_is_by_falling_count_then_by_name():
    labels = LabelSet.from_counter(Counter({"b": 2, "c": 5, "a": 2, "d": 1}))
    assert labels.names == ("c", "a", "b", "d")
    assert labels.counts.tolist() == [5, 2, 2, 1]


def test_min_count():
    counter = Counter({"a": 3, "b": 1})
    assert LabelSet.from_counter(counter, min_count=2).names == ("a",)
    with pytest.raises(CorpusError, match="min_count = 9 leaves no label"):
        LabelSet.from_counter(counter, min_count=9)
    with pytest.raises(CorpusError, match="no document has a label"):
        LabelSet.from_counter(Counter())


def test_names_survive_the_file(tmp_path):
    names = {"with, comma": 4, "ünï": 3, "line\u2028separator\x85": 2, "<script>": 1, '"quoted"': 1}
    labels = LabelSet.from_counter(Counter(names))
    labels.save(tmp_path)
    loaded = LabelSet.load(tmp_path, len(names), {})
    assert loaded.names == labels.names
    assert loaded.counts.tolist() == labels.counts.tolist()


def test_unseen_labels_get_ids_beyond_the_set():
    labels = LabelSet.from_counter(Counter({"a": 2, "b": 1}))
    unseen: dict[str, int] = {}
    assert labels.encode(["b", "x"]) == [1]
    assert labels.encode_all(["b", "x", "y"], unseen) == [1, 2, 3]
    assert labels.encode_all(["y", "z"], unseen) == [3, 4]


def test_files_that_disagree_are_refused(tmp_path):
    LabelSet.from_counter(Counter({"a": 2, "b": 1})).save(tmp_path)
    np.save(tmp_path / "label_counts.npy", np.array([1, 2, 3]))
    with pytest.raises(ModelError, match=r"expected 2 counts"):
        LabelSet.load(tmp_path, 2, {})
    with pytest.raises(ModelError, match=r"2 names, config.json 3 labels"):
        LabelSet.load(tmp_path, 3, {})
