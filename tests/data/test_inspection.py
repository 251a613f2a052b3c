"""Guards `aplc inspect`: the columns of Table 1, and each warning where it is due and only there."""

import numpy as np
import pytest

from aplc.data.checks import hash_text
from aplc.data.corpus import Corpus
from aplc.data.inspection import Distinct, Length, inspect_corpus
from aplc.data.tokenizer import Tokenizer
from aplc.errors import AplcError
from aplc.evaluate.drawings import draw_labels
from helpers import write_rows


def corpus_of(folder, **parts):
    for part, rows in parts.items():
        write_rows(folder / f"{part}.jsonl", [{"text": text, "labels": labels} for text, labels in rows])
    return Corpus.open(folder)


CLEAN = {
    "train": [(f"text number {i}", [f"label {i % 4}"]) for i in range(8)],
    "test": [(f"another text {i}", [f"label {i % 4}"]) for i in range(4)],
}


def test_clean_corpus_has_no_warning(tmp_path):
    inspection = inspect_corpus(corpus_of(tmp_path, **CLEAN))
    assert inspection.warnings() == []
    assert "warning" not in inspection.render()
    assert inspection.n_words == 10
    assert inspection.parts["train"].documents == 8


@pytest.mark.parametrize(
    ("part", "row", "words"),
    [
        ("test", ("  TEXT number\t3", ["label 3"]), "1 of 5 documents of test have a text that is in train too"),
        ("train", ("Text  number 3", ["label 3"]), "1 document of train repeats the text of another"),
        ("test", (" \n", ["label 3"]), "1 texts of test are empty"),
        ("train", ("no label", []), "1 document of train has no label"),
        ("test", ("new", ["label 3", "novel"]), "1 of 6 label assignments (16.7%) of test are of labels never seen"),
    ],
    ids=["shared", "repeated", "empty", "unlabelled", "unseen"],
)
def test_each_fault_has_one_warning(tmp_path, part, row, words):
    parts = {**CLEAN, part: [*CLEAN[part], row]}
    (warning,) = inspect_corpus(corpus_of(tmp_path, **parts)).warnings()
    assert words in warning


def test_label_of_most_documents_has_a_warning(tmp_path):
    train = [(f"text {i}", ["always"] if i < 5 else ["other"]) for i in range(9)]
    (warning,) = inspect_corpus(corpus_of(tmp_path, train=train)).warnings()
    assert "always (56%)" in warning
    assert "other" not in warning


def test_empty_texts_are_not_duplicates_of_each_other(tmp_path):
    train = [(" ", ["a"]), ("", ["b"]), ("x", ["c"])]
    inspection = inspect_corpus(corpus_of(tmp_path, train=train, test=[("", ["a"])]))
    assert not any("repeat the text" in warning for warning in inspection.warnings())
    assert inspection.shared == {"test": 0}


def test_share_cut_in_words_is_a_lower_bound_of_that_in_tokens(tmp_path):
    train = [("unpronounceable words " * 10, ["a"]), ("short", ["b"]), ("tiny", ["c"])]
    corpus = corpus_of(tmp_path, train=train)
    words = inspect_corpus(corpus, Length(limit=12))
    assert words.first.cut == 1
    assert words.first.units_cut == 20 - (12 - 2)
    assert "at least 45%" in words.warnings()[0]
    assert ">= 33.3%" in words.render()
    tokenizer = Tokenizer.train([text for text, _ in train], vocab_size=24)
    tokens = inspect_corpus(corpus, Length(limit=12, tokenizer=tokenizer))
    lengths = [len(ids) for ids in tokenizer.encode([text for text, _ in train])]
    assert tokens.first.units == sum(lengths)
    assert tokens.first.units_cut == sum(max(n - 10, 0) for n in lengths) > words.first.units_cut
    assert ">=" not in tokens.render()


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([["Cats"], ["cats", "Dogs"]], "2 labels differ from another only in case, as 'Cats' and 'cats'"),
        ([["a|b"], ["b|c"]], "2 of them contain '|'"),
        ([["Cats, Dogs"], ["Dogs, Cows"]], "2 of them contain ','"),
        ([[], []], "no document of train has a label; if the column has another name, give --labels-column"),
    ],
)
def test_odd_label_names_have_a_warning(tmp_path, labels, words):
    found = inspect_corpus(corpus_of(tmp_path, train=[("one", labels[0]), ("two", labels[1])])).warnings()
    assert sum(words in warning for warning in found) == 1, found


def test_names_with_commas_are_fine_where_documents_have_several_labels(tmp_path):
    corpus = corpus_of(tmp_path, train=[("one", ["Cats, wild", "Dogs, wild"]), ("two", ["Cats, wild"])])
    assert not any("contain" in warning for warning in inspect_corpus(corpus).warnings())


def test_distinct_matches_set():
    rng = np.random.default_rng(0)
    distinct, known = Distinct(), set()
    distinct.buffer_size = 100
    for size in (10, 120, 5000, 5000, 3):
        values = rng.integers(-(2**62), 2**62, size) // 2**50
        distinct.update(values.tolist())
        known.update(values.tolist())
    assert len(distinct) == len(known)


def test_hash_ignores_case_whitespace_and_normal_form():
    assert hash_text("Caf\u00e9  au\nLAIT ") == hash_text("cafe\u0301 au lait")
    assert hash_text("a b") != hash_text("ab")


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_draws_svg_and_png(corpus, tmp_path, kind):
    draw_labels(inspect_corpus(Corpus.open(corpus)).counts, tmp_path / f"p.{kind}")
    assert (tmp_path / f"p.{kind}").read_bytes().startswith(b"\x89PNG" if kind == "png" else b"<svg")
    with pytest.raises(AplcError, match=r"\.svg or \.png"):
        draw_labels(inspect_corpus(Corpus.open(corpus)).counts, tmp_path / "p.pdf")
