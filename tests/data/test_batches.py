"""Guards batches: special tokens and padding, documents of like length together, and an order that a seed fixes."""

import numpy as np
import pytest

from aplc.data.batches import Batches, Collator, by_length, prefetch
from aplc.data.cache import DocumentCache
from aplc.data.template import Template

TEMPLATE = Template(prefix=(), suffix=(4, 3), prefix_types=(), suffix_types=(0, 2), pad=5)


def test_collator_pads_left_and_keeps_the_special_tokens():
    collate = Collator(TEMPLATE, max_length=6)
    batch = collate([[10, 11, 12, 13, 14, 15, 16], [10], []], [[2, 0], [], [1]])
    assert batch.input_ids.tolist() == [[10, 11, 12, 13, 4, 3], [5, 5, 5, 10, 4, 3], [5, 5, 5, 5, 4, 3]]
    assert batch.attention_mask.tolist() == [[1] * 6, [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 0, 2]] * 3
    assert batch.labels.tolist() == [[2, 0], [-100, -100], [1, -100]]
    right = Collator(TEMPLATE, max_length=6, pad_left=False)([[10], [10, 11]], [[], []])
    assert right.input_ids.tolist() == [[10, 4, 3, 5], [10, 11, 4, 3]]


def test_partly_reviewed_documents_carry_what_they_reject():
    collate = Collator(TEMPLATE, max_length=6)
    assert collate([[10], [11]], [[1], []], [None, None]).partial is None
    batch = collate([[10], [11], [12]], [[1], [], [2]], [None, [4, 0], []])
    assert batch.partial.tolist() == [False, True, True]
    assert batch.rejected.tolist() == [[-100, -100], [4, 0], [-100, -100]]
    first, second = batch.split(2)
    assert (first.rejected.tolist(), second.partial.tolist()) == ([[-100, -100], [4, 0]], [True])
    assert len(batch.tensors()) == 6


@pytest.fixture
def batches():
    lengths, n_labels = np.random.default_rng(0).integers(0, 40, 230), np.arange(230) % 3
    offsets, label_offsets = (np.concatenate([[0], np.cumsum(sizes)]) for sizes in (lengths, n_labels))
    cache = DocumentCache(
        np.full(offsets[-1], 9, dtype=np.uint16), offsets, np.zeros(label_offsets[-1], dtype=np.int32), label_offsets
    )
    return Batches(cache, np.arange(0, 230, 2), Collator(TEMPLATE, 30), batch_size=8, seed=3)


def test_epoch_has_every_document_once_in_an_order_from_the_seed(batches):
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
        assert all((tensor == b.tensors()[name]).all() for name, tensor in a.tensors().items())


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
