"""Guards tokenizers: XLNet's special tokens, the template around a text, and the same pieces for the same texts."""

import json

import pytest

from aplc.data.tokenizer import SPECIALS, Tokenizer
from aplc.errors import ModelError

TEXTS = ["the quick brown fox", "jumps over the lazy dog", "  ", "the the the\nfox\tdog"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS * 20, 60)


def test_special_tokens_are_xlnets(tokenizer):
    assert [tokenizer.fast.id_to_token(i) for i in range(len(SPECIALS))] == SPECIALS
    encoding = tokenizer.fast.encode("the fox")
    assert encoding.tokens[-2:] == ["<sep>", "<cls>"]
    assert encoding.type_ids[-2:] == [0, 2]
    assert tokenizer.template.suffix == (4, 3)
    assert tokenizer.template.prefix == ()


def test_whitespace_does_not_matter(tokenizer):
    assert tokenizer.encode(["the fox"]) == tokenizer.encode(["  the\n\tfox \r\n"])
    assert tokenizer.encode([" ", ""]) == [[], []]


def test_same_texts_give_the_same_pieces_in_the_same_order():
    texts = [f"{text} {chr(0x4E00 + row)}" for row, text in enumerate(TEXTS * 10)]  # characters too rare to be learned
    first, *others = (Tokenizer.train(texts, 100) for _ in range(4))
    assert first.vocab_size > len(texts)
    assert [other.fast.to_str() for other in others] == [first.fast.to_str()] * 3


def test_special_tokens_in_texts_keep_their_ids(tmp_path):
    """A corpus about markup may have "<sep>" often enough for a piece."""
    texts = [f"{chr(0x4E00 + i)}<sep>{chr(0x5E00 + i)} the fox" for i in range(60)]  # nothing else is frequent
    trained = Tokenizer.train(texts, 300)
    trained.save(tmp_path)
    for tokenizer in (trained, Tokenizer.load(tmp_path)):
        assert [tokenizer.fast.token_to_id(name) for name in SPECIALS] == list(range(len(SPECIALS)))
        assert tokenizer.template.suffix == (SPECIALS.index("<sep>"), SPECIALS.index("<cls>"))
        assert tokenizer.fingerprint == trained.fingerprint
    assert len({piece for piece, _ in json.loads(trained.fast.to_str())["model"]["vocab"]}) == trained.vocab_size


def test_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert loaded.template == tokenizer.template


def test_template_of_another_family_is_found(tmp_path):
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import models, pre_tokenizers, processors

    fast = FastTokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": 3, "a": 4}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    template = Tokenizer(fast).template
    assert (template.prefix, template.suffix, template.pad) == ((1,), (2,), 3)


def test_files_that_are_no_tokenizer(tmp_path):
    with pytest.raises(ModelError, match=r"no tokenizer.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="not a tokenizer"):
        Tokenizer.load(tmp_path)
