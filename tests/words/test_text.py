"""Guards words read off tokens: the same word is the same row under every tokenizer's marks, and counts are right."""

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers

from aplc.data.tokenizer import Tokenizer
from aplc.words.text import PAIR_ROWS, ROWS, WordHasher


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
    hasher = WordHasher.of(tokenizer)
    return lambda text: dict(zip(*map(np.ndarray.tolist, hasher(tokenizer.encode([text])[0])), strict=True))


def words_of(found):
    return {row: count for row, count in found.items() if row < ROWS}


def test_words_and_pairs_are_counted(read):
    (cat,), (mat,) = read("cat"), read("mat")
    many = read("cat mat cat mat mat")
    assert words_of(many) == {cat: 2, mat: 3}
    (cat_mat,), (mat_cat,) = (read(text).keys() - {cat, mat} for text in ("cat mat", "mat cat"))
    (mat_mat,) = read("mat mat").keys() - {mat}
    assert {row: count for row, count in many.items() if row >= ROWS} == {cat_mat: 2, mat_cat: 1, mat_mat: 1}


def test_order_matters_within_words_and_pairs(read):
    assert words_of(read("cat mat")) == words_of(read("mat cat"))
    assert read("cat mat") != read("mat cat")
    assert not read("tac").keys() & read("cat").keys()


def test_a_word_is_no_part_of_another(read):
    assert not read("mats").keys() & read("mat").keys()


@pytest.mark.parametrize("text", ["", " ", ",", ", ,"])
def test_nothing_in_nothing_out(read, text):
    assert read(text) == {}


def test_punctuation_and_case_make_no_other_word(unigram):
    hasher = WordHasher.of(unigram)
    rows = [hasher(unigram.encode([text])[0])[0].tolist() for text in ("the cat sat", "the cat, sat", "the cat ,sat,")]
    assert rows[0] == rows[1] == rows[2]


def test_signs_in_pieces_make_no_other_word():
    """Pieces with letters and signs, as a tokenizer of 8,000 pieces has them."""
    pieces = [
        "<unk>",
        "<pad>",
        "▁",
        *"abcdefghijklmnopqrstuvwxyz.,()-\u0301",
        "▁rats.",
        "▁rats",
        "▁(mice",
        "s)",
        "-induced",
    ]
    unigram = models.Unigram([(piece, -1.0 - (len(piece) == 1)) for piece in pieces], unk_id=0)
    fast = FastTokenizer(unigram)
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = Tokenizer(fast)
    hasher = WordHasher.of(tokenizer)

    def read(text):
        ids = tokenizer.encode([text])[0]
        return [fast.id_to_token(i) for i in ids], hasher(ids)[0].tolist()

    assert len(read("e\u0301a")[1]) == 1  # an accent of its own is part of its word
    for text, plain, piece in (
        ("rats. mice", "rats mice", "▁rats."),
        ("a (mice", "a mice", "▁(mice"),
        ("(dogs) a", "dogs a", "s)"),
        ("drug-induced", "drug induced", "-induced"),
    ):
        assert piece in read(text)[0]
        assert read(text)[1] == read(plain)[1]


def test_letters_that_are_several_bytes_are_no_signs():
    pieces = ["<pad>", *"Ġabcdefghijklmnopqrstuvwxyz,Ã©¨"]
    fast = FastTokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = Tokenizer(fast)
    hasher = WordHasher.of(tokenizer)
    words = [hasher(tokenizer.encode([text])[0])[0].tolist() for text in ("cafés", "cafès", "cafés,", "caf s")]
    assert [len(rows) for rows in words] == [1, 1, 1, 3]
    assert words[0] == words[2] != words[1]


def test_pieces_are_words_where_a_script_has_no_blanks():
    pieces = ["<unk>", "<pad>", "▁", "▁模型", "模型", "训练", "▁the", "cat"]
    fast = FastTokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    hasher = WordHasher.of(Tokenizer(fast))
    (model,), (learning,) = hasher([4])[0], hasher([5])[0]
    assert hasher([3])[0].tolist() == [model]
    rows = hasher([3, 5, 4])[0].tolist()
    assert [row for row in rows if row < ROWS] == sorted([model, learning])
    assert len(rows) == 4, "and pairs of them are pairs"
    assert len(hasher([6, 7])[0]) == 1, "one word in pieces"


def test_what_a_tokenizer_does_not_know_is_no_part_of_a_word(unigram):
    hasher = WordHasher.of(unigram)
    assert "<unk>" in [unigram.fast.id_to_token(i) for i in unigram.encode(["cat; mat"])[0]]
    assert hasher(unigram.encode(["cat; mat"])[0])[0].tolist() == hasher(unigram.encode(["cat mat"])[0])[0].tolist()


def test_signs_of_the_text_are_no_marks(unigram):
    """A piece ## of headlines in a corpus does not make the tokenizer one of WordPiece's kind."""
    texts = ["## the cat sat on a mat, the end of the cats and mats"] * 20
    other = Tokenizer.train(texts, 60)
    found = [WordHasher.of(t)(t.encode(["the cats on mats"])[0])[0].tolist() for t in (unigram, other)]
    assert found[0] == found[1]


def test_a_word_is_the_same_however_it_is_cut(unigram, wordpiece):
    """The one tokenizer knows words, the other letters only."""
    texts = ["the cat sat on a mat", "end of the mats"]
    for text in texts:
        found = [WordHasher.of(t)(t.encode([text])[0])[0].tolist() for t in (unigram, wordpiece)]
        assert found[0] == found[1]
    assert len(unigram.encode(texts)[0]) < len(wordpiece.encode(texts)[0])


def test_words_and_pairs_have_rows_of_their_own(wordpiece):
    hasher = WordHasher.of(wordpiece)
    names = [a + b for a in "abcdefgh" for b in "abcdefgh"]
    rows, counts = hasher(wordpiece.encode([" ".join(names)])[0])
    assert (np.diff(rows) > 0).all()
    assert (counts[rows < ROWS].sum(), counts[rows >= ROWS].sum()) == (64, 63)
    assert len(rows) == 127
    assert rows.max() < ROWS + PAIR_ROWS
