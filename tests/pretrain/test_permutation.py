"""Guards factorization orders: how many targets, which ones, who sees whom, and text without gaps or repetition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models

from aplc.data.cache import DocumentCache
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.tokenizer import Tokenizer
from aplc.pretrain.config import ObjectiveConfig
from aplc.pretrain.permutation import CONTEXT, choose_targets, make_batch, perm_mask
from aplc.pretrain.segments import Segments, Text


@given(st.integers(2, 80), st.integers(2, 9), st.integers(1, 6), st.floats(0, 1), st.integers(0, 10**6))
def test_one_token_in_k_is_a_target_and_never_a_special_one(tokens, one_in, max_span, words, seed):
    rng = np.random.default_rng(seed)
    starts, allowed = rng.random(tokens) < words, rng.random(tokens) < 0.8
    found = choose_targets(starts, allowed, ObjectiveConfig(one_in=one_in, max_span=max_span), rng)
    assert len(found) == min(max(1, tokens // one_in), allowed.sum())
    assert len(set(found.tolist())) == len(found)
    assert allowed[found].all()


def test_targets_are_spans_of_whole_words_all_over_the_segment():
    """Words of three pieces: nearly all targets come as whole words, every position equally often."""
    rng, hits, whole, total = np.random.default_rng(0), np.zeros(120), 0, 0
    starts = np.arange(120) % 3 == 0
    for _ in range(2000):
        found = choose_targets(starts, np.ones(120, dtype=bool), ObjectiveConfig(), rng)
        hits[found] += 1
        words = np.bincount(found // 3, minlength=40)
        whole, total = whole + (words == 3).sum(), total + (words > 0).sum()
    assert whole / total > 0.7
    share = hits.reshape(4, 30).sum(1) / hits.sum()
    assert share == pytest.approx(0.25, abs=0.02)


def test_perm_mask_hides_targets_from_all_that_do_not_come_later():
    order = torch.tensor([[CONTEXT, 1, CONTEXT, 0]])
    expected = [  # rows: who looks
        [0, 1, 0, 1],
        [0, 1, 0, 0],
        [0, 1, 0, 1],
        [0, 1, 0, 1],
    ]
    assert perm_mask(order)[0].int().tolist() == expected


def test_batch_has_an_order_of_its_own_for_every_row():
    rng = np.random.default_rng(0)
    ids = [np.arange(60)] * 8
    special = np.arange(60) >= 50
    batch = make_batch(ids, ids, [special] * 8, np.ones(60, dtype=bool), ObjectiveConfig(), rng)
    assert batch.n_targets == 80
    assert torch.equal(batch.input_ids.gather(1, batch.places), batch.labels)
    assert (batch.order[:, 50:] == CONTEXT).all()
    for order, places in zip(batch.order, batch.places, strict=True):
        assert sorted(order[places].tolist()) == list(range(10))
    assert len({tuple(order.tolist()) for order in batch.order}) == 8


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Nine documents of 1 to 60 words, a cache and a tokenizer of theirs."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["red", "green", "blue", "yellow"], size=n)) for n in (3, 60, 1, 1, 25, 8, 40, 2, 7)]
    tokenizer = Tokenizer.train(texts, 60)
    folder = tmp_path_factory.mktemp("text") / "cache"
    no_labels = LabelSet((), np.empty(0, dtype=np.int64))
    cache = DocumentCache.build(folder, [Document(t) for t in texts], tokenizer.encode, np.dtype(np.uint16), no_labels)
    return cache, tokenizer


def whole_text(cache, rows, template):
    parts = [np.concatenate([cache.document(row)[0], template.suffix]) for row in rows]
    return np.concatenate(parts).astype(np.int64), np.concatenate([np.full(len(p), i) for i, p in enumerate(parts)])


def test_any_stretch_of_text_is_read_as_it_stands(text):
    cache, tokenizer = text
    rows = np.array([4, 2, 0, 1, 3])
    found, template = Text(cache, rows, tokenizer.template), tokenizer.template
    whole, owner = whole_text(cache, rows, template)
    assert len(found) == len(whole)
    for start in range(len(whole) - 1):
        for stop in (start + 1, min(start + 20, len(whole)), len(whole)):
            ids, types, functional = found.read(start, stop)
            assert ids.tolist() == whole[start:stop].tolist()
            assert functional.tolist() == [i in template.suffix for i in ids]
            cls = ids == template.suffix[-1]
            mine = owner[start:stop]
            for i in range(len(ids)):  # equal segment ids: the same document, <cls> apart from its text
                same = (mine == mine[i]) & (cls == cls[i])
                assert ((types == types[i]) == same).all()
            goes_on = start > 0 and owner[start - 1] == owner[start]
            assert (types[0] // 2 == 0) == goes_on  # memory is segment 0


def test_rows_of_a_batch_go_on_where_they_ended(text):
    cache, tokenizer = text
    rows = np.arange(len(cache))
    segments = Segments(cache, rows, tokenizer, ObjectiveConfig(), length=10, batch_size=3, seed=1)
    batches = list(segments.epoch(2))
    assert len(batches) == len(segments) > 2
    streams = torch.cat([batch.input_ids for batch in batches], 1)
    shuffled = np.random.default_rng([1, 2]).permutation(rows)
    whole, _ = whole_text(cache, shuffled, tokenizer.template)
    assert streams.flatten().tolist() == whole[: streams.numel()].tolist()
    (again,) = segments.epoch(2, start=len(segments) - 1)
    assert all(torch.equal(a, b) for a, b in zip(vars(again).values(), vars(batches[-1]).values(), strict=True))
    assert not torch.equal(next(segments.epoch(3)).input_ids, batches[0].input_ids)


def test_words_begin_where_the_tokenizer_says(text):
    cache, tokenizer = text
    segments = Segments(cache, np.arange(9), tokenizer, ObjectiveConfig(), length=10, batch_size=1, seed=0)
    for i, start in enumerate(segments.word_starts):
        assert start == tokenizer.fast.id_to_token(i).startswith("▁")


@pytest.mark.parametrize(
    ("pieces", "begins"),
    [(["▁rain", "s", "▁a"], [1, 0, 1]), (["Ġrain", "s", "Ġa"], [1, 0, 1]), (["rain", "##s", "a"], [1, 0, 1])],
    ids=["SentencePiece", "byte-level BPE", "WordPiece"],
)
def test_words_begin_where_any_kind_of_tokenizer_says(text, pieces, begins):
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "<unk>", "<pad>"])}
    tokenizer = Tokenizer(FastTokenizer(models.WordLevel(vocabulary, unk_token="<unk>")))
    segments = Segments(text[0], np.arange(9), tokenizer, ObjectiveConfig(), length=10, batch_size=1, seed=0)
    assert segments.word_starts[:3].tolist() == [bool(begin) for begin in begins]
