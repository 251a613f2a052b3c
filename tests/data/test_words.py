"""Guards words read off tokens: the same word is the same row under every tokenizer's marks, and counts are right."""

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers

from aplc.data.tokenizer import Tokenizer
from aplc.data.words import WordHasher

SIZE = 1 << 20


@pytest.fixture(scope="module")
def unigram():
    return Tokenizer.train(["the cat sat on a mat, the end of the cats and mats"] * 20, 60)


@pytest.fixture(scope="module")
def wordpiece():
    pieces = ["[UNK]", "[PAD]", *"abcdefghijklmnopqrstuvwxyz,", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    fast = FastTokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Tokenizer(fast)


@pytest.fixture(params=["unigram", "wordpiece"])
def read(request):
    tokenizer = request.getfixturevalue(request.param)
    hasher = WordHasher.of(tokenizer, SIZE)
    return lambda text: dict(zip(*map(np.ndarray.tolist, hasher(tokenizer.encode([text])[0])), strict=True))


def test_words_and_pairs_are_counted(read):
    once, pair = read("cat"), read("cat mat")
    assert list(once.values()) == [1]
    assert len(pair) == 3
    assert once.items() <= pair.items()
    (cat,) = once
    (mat,) = read("mat")
    many = read("cat mat cat mat mat")
    assert (many[cat], many[mat]) == (2, 3)
    assert sum(many.values()) == 5 + 4


def test_order_matters_in_pairs_and_within_words_only(read):
    there, back = read("cat mat"), read("mat cat")
    assert len(there.keys() & back.keys()) == 2
    assert not read("tac").keys() & read("cat").keys()


def test_a_word_is_no_part_of_another(read):
    assert not read("mats").keys() & read("mat").keys()


def test_nothing_in_nothing_out(read):
    assert read("") == {}


def test_punctuation_is_no_word(wordpiece):
    hasher = WordHasher.of(wordpiece, SIZE)
    with_comma, without = (hasher(wordpiece.encode([text])[0])[0].tolist() for text in ("cat, mat", "cat mat"))
    assert with_comma == without


def test_rows_stay_inside_the_table():
    hasher = WordHasher(np.ones(1000, dtype=bool), np.ones(1000, dtype=bool), size=7)
    rows, counts = hasher(np.arange(1000))
    assert rows.tolist() == list(range(7))
    assert counts.sum() == 1999
