"""How labels are cut into a head and tails, and what that costs by the paper's own model (Equations 6-14).

    Partition.from_proportions(3956, (0.5, 0.5))                    the paper's way
    Partition.from_cutoffs(3956, [1978])                            the same, by hand
    Partition.automatic(label_counts, n_documents=15539, in_features=768, batch_size=12, max_parameters=2_000_000)

Cost is in multiplications of a forward pass. The paper counts a tail for the whole batch as soon as one sample touches
it (p_i is the probability that a batch does); `LabelClusters` computes it only for those samples, so it costs less.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aplc.nn.checks import (
    check_at_least,
    check_cutoffs,
    check_div_value,
    check_reached,
    falling_counts,
    whole_numbers,
)

GRID = (0.01, 0.02, 0.03, 0.05, 0.07, *(step / 20 for step in range(2, 20)))
"""Where `automatic` may cut, as shares of the labels: finer among the frequent ones, which have most occurrences."""

BYTES_PER_PARAMETER = 16
"""Training in float32 with AdamW: the weight, its gradient and two moments, four bytes each."""


def tail_width(in_features: int, div_value: float, t: int, min_tail_width: int = 1) -> int:
    """d // q^t, the width of tail t (from 1)."""
    return max(int(in_features // div_value**t), min_tail_width)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A cut of `n_labels` labels, sorted by falling frequency, into a head and K = len(cutoffs) tails."""

    n_labels: int
    """L."""
    cutoffs: tuple[int, ...] = ()
    """The first label of each tail, rising. Empty: only a head, which is a flat layer."""
    div_value: float = 2.0
    """q: tail t works on d // q^t dimensions."""
    min_tail_width: int = 1
    """The least width of a tail."""
    reason: str = ""
    """Why it is cut like this, in words for the user."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cutoffs", tuple(whole_numbers("cutoffs", self.cutoffs)))
        check_at_least("n_labels", self.n_labels, 1)
        check_cutoffs(self.cutoffs, self.n_labels)
        check_div_value(self.div_value)
        check_at_least("min_tail_width", self.min_tail_width, 1)

    @classmethod
    def from_cutoffs(
        cls, n_labels: int, cutoffs: Sequence[int], *, div_value: float = 2.0, min_tail_width: int = 1
    ) -> "Partition":
        cutoffs = whole_numbers("cutoffs", cutoffs)
        reason = f"cut-offs {cutoffs} as given"
        return cls(
            n_labels=n_labels,
            cutoffs=tuple(cutoffs),
            div_value=div_value,
            min_tail_width=min_tail_width,
            reason=reason,
        )

    @classmethod
    def from_proportions(
        cls, n_labels: int, proportions: Sequence[float], *, div_value: float = 2.0, min_tail_width: int = 1
    ) -> "Partition":
        """Clusters of the given shares of the label set, the head's first, as in the paper's Table 2: (0.5, 0.5), ...

        A cut is at floor(L x the sum of the shares before it). No cluster is ever empty: cuts are moved if necessary,
        and with fewer labels than shares there are as many clusters as labels.
        """
        check_at_least("n_labels", n_labels, 1)
        if not proportions or min(proportions) <= 0 or abs(sum(proportions) - 1) > 1e-6:
            raise ValueError(f"proportions is {list(proportions)}, but must be positive numbers with the sum 1")
        n_clusters = min(len(proportions), n_labels)
        cutoffs: list[int] = []
        for i in range(1, n_clusters):
            cut = math.floor(n_labels * sum(proportions[:i]) + 1e-6)  # 0.7 + 0.2 is a little below 0.9
            lowest, highest = (cutoffs[-1] if cutoffs else 0) + 1, n_labels - (n_clusters - i)
            cutoffs.append(min(max(cut, lowest), highest))
        shares = ", ".join(f"{share:g}" for share in proportions)
        return cls(
            n_labels=n_labels,
            cutoffs=tuple(cutoffs),
            div_value=div_value,
            min_tail_width=min_tail_width,
            reason=f"{_clusters(n_clusters)} of {n_labels:,} labels in the proportions {shares}",
        )

    @classmethod
    def automatic(
        cls,
        label_counts: ArrayLike,
        *,
        n_documents: int,
        in_features: int,
        batch_size: int,
        max_parameters: float | None = None,
        max_seconds: float | None = None,
        max_bytes: float | None = None,
        flops: float = 1e11,
        div_values: Sequence[float] = (2.0, 4.0),
        max_tails: int = 4,
        min_tail_width: int = 1,
    ) -> "Partition":
        """The best partition within a budget.

        Best means: the fewest clusters that fit, since each further one cost precision in the paper's Figure 4; among
        these, the most dimensions for an average label occurrence, sum over clusters of mass x width / d, since a wider
        head did better in Figure 5. Budgets are checked with Equations 6 and 11, with p_i from `label_counts`. A tail
        is never of width 1, which the default `tail` of `LabelClusters` can't have.

        Args:
            label_counts: documents with each label, falling.
            n_documents: training documents.
            max_parameters: budget for the layer's weights. With no budget at all, half of a flat layer's.
            max_seconds: budget for a training step of the layer: three times Equation 11, two operations each.
            max_bytes: budget for weights, gradients and AdamW's moments, 16 bytes a parameter.
            flops: operations a second for `max_seconds`; 1e11 is about two CPU cores.
            div_values: choices for q.
        """
        counts = falling_counts(label_counts, n_documents)
        check_at_least("in_features", in_features, 1)
        check_at_least("batch_size", batch_size, 1)
        limits = _Limits(max_parameters, max_seconds, max_bytes, flops, in_features, batch_size)
        if not limits.given:
            limits = _Limits(in_features * len(counts) / 2, None, None, flops, in_features, batch_size)
        histogram = _Histogram(counts, n_documents, batch_size)
        smallest = None
        for n_tails in range(max_tails + 1):
            best, best_quality = None, -1.0
            for partition in _candidates(len(counts), n_tails, div_values, min_tail_width):
                if 1 in partition.widths(in_features)[1:]:
                    continue
                reached = histogram.reach(partition)
                size = partition.parameters(in_features)
                if smallest is None or size < smallest.parameters(in_features):
                    smallest = partition
                if limits.hold(size, partition.cost(in_features, batch_size, reached)):
                    quality = histogram.quality(partition, in_features)
                    if quality > best_quality:
                        best, best_quality = partition, quality
            if best is not None:
                return best._explained(in_features, batch_size, histogram, f"the fewest clusters within {limits}")
        assert smallest is not None
        if (max_parameters, max_seconds, max_bytes) != (None, None, None):
            raise ValueError(
                f"{limits} is out of reach for {len(counts)} labels, in_features {in_features}, max_tails {max_tails}: "
                f"the smallest layer has {smallest.parameters(in_features):,} parameters; raise the budget, max_tails "
                "or div_values"
            )
        why = "the smallest layer; none is half as large as a flat one"
        return smallest._explained(in_features, batch_size, histogram, why)

    def _explained(self, in_features: int, batch_size: int, histogram: "_Histogram", why: str) -> "Partition":
        reached = histogram.reach(self)
        size = self.parameters(in_features)
        sizes = ", ".join(f"{size:,}" for size in self.sizes)
        chances = ", ".join(f"{p:.2f}" for p in reached) or "none"
        reason = (
            f"{_clusters(self.n_clusters)} of {sizes} labels, q {self.div_value:g}: {why}. "
            f"{size:,} parameters, 1/{self.size_ratio(in_features):.2f} of a flat layer's (Eq. 6); "
            f"cost 1/{self.cost_ratio(reached):.2f} of it (Eq. 14) with p_i {chances} at batch {batch_size}; "
            f"an average label sees {histogram.quality(self, in_features):.0%} of {in_features} dimensions"
        )
        return replace(self, reason=reason)

    @property
    def n_clusters(self) -> int:
        return len(self.cutoffs) + 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """l_h, l_1, ..., l_K."""
        return tuple(stop - start for start, stop in pairwise([0, *self.cutoffs, self.n_labels]))

    def widths(self, in_features: int) -> tuple[int, ...]:
        """d, d_1, ..., d_K: the input width of each cluster's output."""
        tails = (tail_width(in_features, self.div_value, t, self.min_tail_width) for t in range(1, self.n_clusters))
        return (in_features, *tails)

    def parameters(self, in_features: int) -> int:
        """N_par, Equation 6, with d // q^i for d / q^i: exactly the layer's weights without LayerNorm and biases."""
        head_size, *tail_sizes = self.sizes
        tails = zip(self.widths(in_features)[1:], tail_sizes, strict=True)
        return in_features * (head_size + len(tail_sizes)) + sum(width * (in_features + size) for width, size in tails)

    def size_ratio(self, in_features: int) -> float:
        """N_0 / N_par, Equation 9, with N_par of Equation 6 rather than its approximation (7)."""
        return in_features * self.n_labels / self.parameters(in_features)

    def cost(self, in_features: int, batch_size: int, reached: Sequence[float] | NDArray[np.float64]) -> float:
        """C, Equation 11: expected multiplications of a batch's forward pass. `reached` holds p_1..p_K."""
        head_size, *tail_sizes = self.sizes
        check_reached(reached, len(tail_sizes))
        tails = zip(reached, self.widths(in_features)[1:], tail_sizes, strict=True)
        per_sample = in_features * (head_size + len(tail_sizes)) + sum(
            p * width * (size + in_features) for p, width, size in tails
        )
        return float(batch_size * per_sample)

    def flat_cost(self, in_features: int, batch_size: int) -> float:
        """C_0, Equation 13."""
        return float(batch_size * in_features * self.n_labels)

    def cost_ratio(self, reached: Sequence[float] | NDArray[np.float64]) -> float:
        """C_0 / C, Equation 14, the paper's approximation for d much smaller than the clusters."""
        head_size, *tail_sizes = self.sizes
        check_reached(reached, len(tail_sizes))
        tails = enumerate(zip(reached, tail_sizes, strict=True), start=1)
        return float(self.n_labels / (head_size + sum(p * size / self.div_value**i for i, (p, size) in tails)))

    def reach_from_counts(self, label_counts: ArrayLike, n_documents: int, batch_size: int) -> NDArray[np.float64]:
        """p_1..p_K from the label histogram, as if labels and documents were independent.

        A document touches tail i with f = 1 - product over its labels of (1 - n_j / N), a batch with 1 - (1 - f)^B.
        """
        counts = falling_counts(label_counts, n_documents)
        if len(counts) != self.n_labels:
            raise ValueError(f"label_counts has {len(counts)} entries, but n_labels is {self.n_labels}")
        check_at_least("batch_size", batch_size, 1)
        return _Histogram(counts, n_documents, batch_size).reach(self)

    def reach_from_documents(self, indptr: ArrayLike, ids: ArrayLike, batch_size: int) -> NDArray[np.float64]:
        """p_1..p_K from the documents' label lists: document n has ids[indptr[n]:indptr[n + 1]].

        Labels are not independent, so fewer documents touch a tail than `reach_from_counts` estimates.
        """
        n_documents = len(np.asarray(indptr)) - 1
        share = self.documents_touching(indptr, ids) / max(n_documents, 1)
        return 1 - (1 - share) ** batch_size

    def documents_touching(
        self, indptr: ArrayLike | Sequence[Sequence[int]], ids: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """How many documents have a label in each tail, (K,).

        Takes `indptr, ids` as `reach_from_documents` does, or a list of each document's label ids alone::

            Partition.from_cutoffs(6, [2, 4]).documents_touching([[0, 2], [1], [], [3, 5]])     # [2, 1]
        """
        if ids is None:
            lists = [np.asarray(row, dtype=np.int64) for row in cast(Sequence[Sequence[int]], indptr)]
            indptr, ids = np.cumsum([0, *map(len, lists)]), np.concatenate([*lists, np.empty(0, np.int64)])
        starts, labels = np.asarray(indptr, dtype=np.int64), np.asarray(ids, dtype=np.int64)
        if len(labels) and not 0 <= labels.min() <= labels.max() < self.n_labels:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise ValueError(f"ids holds {wrong}, but must be from 0 to {self.n_labels - 1} (n_labels - 1)")
        document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        cluster = np.searchsorted(np.asarray(self.cutoffs, dtype=np.int64), labels, side="right")
        pairs = np.unique(document * self.n_clusters + cluster)
        return np.bincount(pairs % self.n_clusters, minlength=self.n_clusters)[1:].astype(np.int64)


class _Histogram:
    """A label histogram with cumulative sums, from which a partition's p_i and mass follow at once."""

    def __init__(self, counts: NDArray[np.float64], n_documents: int, batch_size: int) -> None:
        rates = np.clip(counts / n_documents, 0.0, 1 - 1e-12)
        self.log_miss = np.concatenate([[0.0], np.cumsum(np.log1p(-rates))])  # log P(no label below this id)
        self.mass = np.concatenate([[0.0], np.cumsum(counts)]) / max(counts.sum(), 1e-300)
        self.batch_size = batch_size

    def reach(self, partition: Partition) -> NDArray[np.float64]:
        edges = np.array([*partition.cutoffs, partition.n_labels])
        return -np.expm1(self.batch_size * np.diff(self.log_miss[edges]))

    def quality(self, partition: Partition, in_features: int) -> float:
        """The share of the d dimensions from which an average label occurrence is computed."""
        mass = np.diff(self.mass[[0, *partition.cutoffs, partition.n_labels]])
        return float(mass @ np.array(partition.widths(in_features)) / in_features)


@dataclass(frozen=True)
class _Limits:
    parameters: float | None
    seconds: float | None
    bytes: float | None
    flops: float
    in_features: int
    batch_size: int

    @property
    def given(self) -> bool:
        return (self.parameters, self.seconds, self.bytes) != (None, None, None)

    def hold(self, size: int, cost: float) -> bool:
        """Forward and backward pass are three products of `cost` multiplications and as many additions each."""
        return (
            (self.parameters is None or size <= self.parameters)
            and (self.bytes is None or size * BYTES_PER_PARAMETER <= self.bytes)
            and (self.seconds is None or 6 * cost / self.flops <= self.seconds)
        )

    def __str__(self) -> str:
        parts = [
            None if self.parameters is None else f"{self.parameters:,.0f} parameters",
            None if self.seconds is None else f"{self.seconds:g} s a step",
            None if self.bytes is None else f"{self.bytes / 1e6:,.0f} MB in training",
        ]
        return "a budget of " + " and ".join(part for part in parts if part)


def _clusters(n: int) -> str:
    return "1 cluster" if n == 1 else f"{n} clusters"


def _candidates(n_labels: int, n_tails: int, div_values: Sequence[float], min_tail_width: int) -> Iterator[Partition]:
    cuts = sorted({cut for share in GRID if 0 < (cut := round(share * n_labels)) < n_labels})
    for cutoffs in combinations(cuts, n_tails):
        for div_value in div_values if n_tails else div_values[:1]:
            yield Partition(n_labels=n_labels, cutoffs=cutoffs, div_value=div_value, min_tail_width=min_tail_width)
