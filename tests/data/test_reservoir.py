"""Guards reservoir sampling: uniform, reproducible, and no larger than asked for."""

from collections import Counter

from aplc.data.reservoir import Reservoir


def sample(size, seed, n=10):
    reservoir = Reservoir(size, seed)
    for i in range(n):
        reservoir.add(i)
    assert reservoir.n_seen == n
    return reservoir.items


def test_every_item_is_equally_likely():
    counts = Counter(i for seed in range(3000) for i in sample(3, seed))
    assert counts.total() == 3 * 3000
    assert all(abs(counts[i] - 900) < 125 for i in range(10))  # five standard deviations


def test_same_seed_gives_the_same_sample():
    assert sample(3, 7) == sample(3, 7) != sample(3, 8)


def test_short_streams_are_kept_whole_and_size_0_keeps_nothing():
    assert sample(5, 0, n=4) == [0, 1, 2, 3]
    assert sample(0, 0) == []
