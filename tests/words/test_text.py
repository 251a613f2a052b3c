"""Guards words read from text: what a word is, what is counted, and that buckets match a slow twin."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aplc.data.cache import DocumentCache
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.words.text import BUCKETS, ENTRY, STARTS, count_slowly, count_words, entries_of, runs_of, words_of
from reference import word_counts

NO_LABELS = LabelSet((), np.empty(0, dtype=np.int64))


def counts_of(text):
    """{bucket: how often}."""
    row = count_words([text], runs=False)
    return dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))


def words_in(counts):
    return {bucket: count for bucket, count in counts.items() if bucket < STARTS[1]}


def pairs_in(counts):
    return {bucket: count for bucket, count in counts.items() if bucket >= STARTS[1]}


def test_words_and_pairs_are_counted():
    (cat,), (mat,) = counts_of("cat"), counts_of("mat")
    many = counts_of("cat mat cat mat mat")
    assert words_in(many) == {cat: 2, mat: 3}
    (cat_mat,), (mat_cat,), (mat_mat,) = (pairs_in(counts_of(text)) for text in ("cat mat", "mat cat", "mat mat"))
    assert pairs_in(many) == {cat_mat: 2, mat_cat: 1, mat_mat: 1}


def test_order_matters_within_words_and_pairs():
    assert words_in(counts_of("cat mat")) == words_in(counts_of("mat cat"))
    assert counts_of("cat mat") != counts_of("mat cat")
    assert not counts_of("tac").keys() & counts_of("cat").keys()


def test_a_word_is_no_part_of_another():
    assert not counts_of("mats").keys() & counts_of("mat").keys()
    assert not counts_of("cat mat").keys() & counts_of("catmat").keys()


@pytest.mark.parametrize("text", ["", " ", ",", ", ,", "\n\t", "_", "😀 …", "\u0301"])
def test_texts_without_words(text):
    assert words_of(text) == []
    assert counts_of(text) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat, sat.", ["the", "cat", "sat"]),
        ("(mice) drug-induced e.g.", ["mice", "drug", "induced", "e", "g"]),
        ("snake_case __init__", ["snake", "case", "init"]),
        ("5-HT3 and H2O in 2026", ["5", "ht3", "and", "h2o", "in", "2026"]),
        ("it's Ärzte ПРИВЕТ", ["it", "s", "ärzte", "привет"]),
        ("ﬁn ＡＢＣ １２", ["fin", "abc", "12"]),  # a ligature, and characters of full width
        ("ｶﾞ", ["ガ"]),  # half width, two characters that are one
        ("e\u0301té", ["été"]),  # a letter and its accent, composed
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs are part of their word
        ("\u0301a q\u0301x \u0651", ["a", "q\u0301x"]),  # marks alone are none
        ("q\u0301\u0e31x", ["q\u0301", "\u0e31", "x"]),  # a mark of Thai is a word of its own, as its letters are
        ("東京の hotel", ["東", "京", "の", "hotel"]),
        ("covid病毒19", ["covid", "病", "毒", "19"]),
        ("ฝนตก", list("ฝนตก")),  # Thai
        ("ភ្លៀង rain", [*"ភ្លៀង", "rain"]),  # Khmer
        ("မိုး", list("မိုး")),  # Burmese
        ("fröhlich 한국어", ["fröhlich", "한국어"]),  # Korean has spaces between words
    ],
)
def test_what_a_word_is(text, words):
    assert words_of(text) == words


def test_punctuation_case_and_whitespace_make_no_other_words():
    plain = counts_of("the cat sat")
    for text in ("The CAT, sat", "the cat\nsat.", " (the)  cat ,sat,"):
        assert counts_of(text) == plain


def test_pairs_of_scripts_without_spaces_are_neighbouring_characters():
    found = counts_of("東京都")
    assert (len(words_in(found)), len(pairs_in(found))) == (3, 2)
    assert pairs_in(found) == pairs_in(counts_of("東京")) | pairs_in(counts_of("京都"))


def test_pairs_have_the_buckets_behind_the_words():
    names = [a + b for a in "abcdefgh" for b in "abcdefgh"]
    counts = count_words([" ".join(names), "", "aa"], runs=False)
    assert counts.shape == (3, BUCKETS)
    buckets, found = counts.indices[: counts.indptr[1]], counts.data[: counts.indptr[1]]
    assert (np.diff(buckets) > 0).all()
    assert (found[buckets < STARTS[1]].sum(), found[buckets >= STARTS[1]].sum()) == (64, 63)
    assert np.diff(counts.indptr).tolist() == [127, 0, 1]


TEXTS = st.text(
    st.sampled_from("abAB1 ,_-ﬁé\u0301\u093fह東のฝ\u0e31ភ\n") | st.characters(exclude_categories=["Cs"]), max_size=40
)


def test_runs_find_what_words_share():
    assert runs_of("haus") == ["<hau", "haus", "aus>"]
    assert runs_of("tee") == []
    house, building = (set(count_words([word], runs=True).indices.tolist()) for word in ("fachwerkhaus", "fachwerkbau"))
    assert len(house & building) == len(runs_of("fachwerk")) - 1  # all but the one at its end
    assert max(house) >= STARTS[2]


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans())
def test_counts_match_reference(texts, runs):
    for counts in count_words(texts, runs=runs), count_slowly([words_of(text) for text in texts], runs=runs):
        for text, start, stop in zip(texts, counts.indptr[:-1], counts.indptr[1:], strict=True):
            found = dict(zip(counts.indices[start:stop].tolist(), counts.data[start:stop].tolist(), strict=True))
            assert found == word_counts(text, runs=runs)


def test_the_cache_holds_what_was_counted(tmp_path):
    texts = ["the cat sat on the cat", "", "rain " * 70_000, "東京 rain"]
    documents = [Document(text) for text in texts]
    cache = DocumentCache.build(tmp_path / "cache", documents, partial(entries_of, runs=False), ENTRY, NO_LABELS)
    assert len(cache) == len(texts)
    for i, text in enumerate(texts):
        entries, _ = cache.document(i)
        expected = {bucket: min(count, 65_535) for bucket, count in counts_of(text).items()}
        assert dict(zip(entries["bucket"].tolist(), entries["count"].tolist(), strict=True)) == expected


@given(st.lists(TEXTS.map(lambda text: 9 * f"{text} "), min_size=1, max_size=3), st.booleans())
def test_the_lead_is_counted_apart(texts, runs):
    for text, entries in zip(texts, entries_of(texts, runs=runs), strict=True):
        lead = word_counts(text, runs=runs, first=32)
        assert {entry["bucket"]: entry["lead"] for entry in entries if entry["lead"]} == lead
