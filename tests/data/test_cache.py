"""Guards tokens: the template around a text, a cache that is never stale or half-built, and batches."""

import json
from collections import Counter

import numpy as np
import pytest

from aplc.data.batches import Batches, Collator, by_length, prefetch
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.tokenizer import SPECIALS, Tokenizer
from aplc.data.tokens import TokenCache
from aplc.errors import CorpusError, ModelError

TEXTS = ["the quick brown fox", "jumps over the lazy dog", "  ", "the the the\nfox\tdog"]
LABELS = LabelSet.from_counter(Counter({"a": 3, "b": 2, "c": 1}))


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS * 20, 60)


def documents(texts=TEXTS):
    return [Document(text, labels=["a", "c"][: i % 3]) for i, text in enumerate(texts)]


def test_specials_are_xlnets(tokenizer):
    assert [tokenizer.fast.id_to_token(i) for i in range(len(SPECIALS))] == SPECIALS
    encoding = tokenizer.fast.encode("the fox")
    assert encoding.tokens[-2:] == ["<sep>", "<cls>"]
    assert encoding.type_ids[-2:] == [0, 2]
    assert tokenizer.template.suffix == (4, 3)
    assert tokenizer.template.prefix == ()


def test_white_space_does_not_matter(tokenizer):
    assert tokenizer.encode(["the fox"]) == tokenizer.encode(["  the\n\tfox \r\n"])
    assert tokenizer.encode([" ", ""]) == [[], []]


def test_same_texts_give_the_same_pieces_in_the_same_order():
    texts = [f"{text} {chr(0x4E00 + row)}" for row, text in enumerate(TEXTS * 10)]  # signs too rare to be learned
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


def test_template_of_another_family_is_read_off(tmp_path):
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


def test_cache_holds_whole_documents(tokenizer, tmp_path):
    cache = TokenCache.build(tmp_path / "cache", documents(), tokenizer, LABELS)
    assert len(cache) == len(TEXTS)
    for i, (ids, document) in enumerate(zip(tokenizer.encode(TEXTS), documents(), strict=True)):
        tokens, labels = cache.row(i)
        assert tokens.tolist() == ids
        assert labels.tolist() == LABELS.encode(document.labels)


def test_half_built_cache_is_never_used(tokenizer, tmp_path):
    def breaking():
        yield from documents()
        raise CorpusError("broken row")

    with pytest.raises(CorpusError):
        TokenCache.build(tmp_path / "cache", breaking(), tokenizer, LABELS)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert len(TokenCache.build(tmp_path / "cache", documents(), tokenizer, LABELS)) == len(TEXTS)


@pytest.mark.parametrize("stop", [0, 3, 70, 99, 139])
def test_build_cut_short_goes_on_where_it_stopped(tokenizer, tmp_path, monkeypatch, stop):
    """The killed process leaves more on disk than it noted: the rest is cut off and written again."""
    monkeypatch.setattr("aplc.data.tokens.BLOCK", 7)
    monkeypatch.setattr("aplc.data.tokens.NOTE_EVERY", 2)
    many = documents(TEXTS * 35)

    def killed():
        yield from many[:stop]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TokenCache.build(tmp_path / "parts", killed(), tokenizer, LABELS)
    advanced = []
    parts = TokenCache.build(tmp_path / "parts", iter(many), tokenizer, LABELS, advanced.append)
    whole = TokenCache.build(tmp_path / "whole", many, tokenizer, LABELS)
    assert advanced[0] == stop // 14 * 14
    assert sum(advanced) == len(many)
    for name in ("tokens", "offsets", "label_ids", "label_offsets"):
        assert getattr(parts, name).tolist() == getattr(whole, name).tolist()
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {p.name for p in (tmp_path / "whole").iterdir()}


def test_cache_of_empty_texts(tokenizer, tmp_path):
    cache = TokenCache.build(tmp_path / "cache", documents([" ", ""]), tokenizer, LABELS)
    assert cache.row(0)[0].tolist() == []


def test_collator_pads_left_and_keeps_the_specials(tokenizer):
    collate = Collator(tokenizer.template, max_length=6)
    batch = collate([[10, 11, 12, 13, 14, 15, 16], [10], []], [[2, 0], [], [1]])
    assert batch.input_ids.tolist() == [[10, 11, 12, 13, 4, 3], [5, 5, 5, 10, 4, 3], [5, 5, 5, 5, 4, 3]]
    assert batch.attention_mask.tolist() == [[1] * 6, [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 0, 2]] * 3
    assert batch.labels.tolist() == [[2, 0], [-100, -100], [1, -100]]
    right = Collator(tokenizer.template, max_length=6, pad_left=False)([[10], [10, 11]], [[], []])
    assert right.input_ids.tolist() == [[10, 4, 3, 5], [10, 11, 4, 3]]


@pytest.fixture
def batches(tokenizer, tmp_path):
    rng = np.random.default_rng(0)
    texts = [" ".join(["fox"] * rng.integers(0, 40)) for _ in range(230)]
    cache = TokenCache.build(tmp_path / "cache", documents(texts), tokenizer, LABELS)
    return Batches(cache, np.arange(0, 230, 2), Collator(tokenizer.template, 30), batch_size=8, seed=3)


def test_epoch_has_every_row_once_in_an_order_from_the_seed(batches):
    orders = [batches.order(epoch) for epoch in (0, 0, 1)]
    assert len(orders[0]) == len(batches) == 15
    flat = [np.concatenate(order).tolist() for order in orders]
    assert sorted(flat[0]) == list(range(0, 230, 2))
    assert flat[0] == flat[1] != flat[2]


def test_batches_hold_like_lengths(batches):
    spread = [np.ptp(np.minimum(batches.cache.lengths[rows], 30)) for rows in batches.order(0)]
    assert np.mean(spread) < 10  # without buckets about 30


def test_epoch_can_start_in_the_middle(batches):
    whole, rest = list(batches.epoch(0)), list(batches.epoch(0, start=4))
    assert len(rest) == len(whole) - 4
    for a, b in zip(whole[4:], rest, strict=True):
        assert all((x == y).all() for x, y in zip(a, b, strict=True))


def test_split_batch_has_the_same_documents(batches):
    batch = next(batches.epoch(0))
    parts = batch.split(3)
    assert [len(part) for part in parts] == [3, 3, 2]
    assert [row for part in parts for row in part.input_ids.tolist()] == batch.input_ids.tolist()


def test_by_length_covers_all_indices():
    groups = by_length([5, 1, 9, 3], 2)
    assert [group.tolist() for group in groups] == [[2, 0], [3, 1]]


def test_prefetch_keeps_order_and_raises():
    assert list(prefetch(lambda x: x * x, range(5))) == [0, 1, 4, 9, 16]
    with pytest.raises(ZeroDivisionError):
        list(prefetch(lambda x: 1 // x, [1, 0]))
