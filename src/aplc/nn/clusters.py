"""Adaptive probabilistic label clusters (APLC): an output layer for very many labels of which few are right.

The idea: labels follow Zipf's law. The frequent ones form a head that every sample evaluates at full width. The others
are cut into tails, each behind a root node and a narrower projection, and in training a sample evaluates a tail only if
one of its own labels is in there. The price: a rare label's probability is multiplied by its root's, and it is computed
from fewer dimensions.

This is the multi-label sequel to `torch.nn.AdaptiveLogSoftmaxWithLoss`. Equation numbers are those of the paper,
APLC-XLNet (ICML 2020); docs/clusters.md walks from there to here.

A row is one hidden state of the batch. Shapes: B rows of the batch, D in_features, P labels of a row (padded), K tails,
L labels, N positive (label, row) pairs, R rows that visit a tail, C labels of a chunk.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from aplc.nn.checks import check_at_least, check_layer, check_tail_widths, falling_counts, whole_numbers
from aplc.nn.fused import ClusterLoss, KeptGradients, Settings, product_dtype, softplus
from aplc.nn.partial import listed_loss, rejected_pairs, split_targets
from aplc.nn.partition import Partition, tail_width
from aplc.nn.tail import Tail
from aplc.nn.targets import Pairs, Targets, check_hidden, edges, labels_evaluated, log_odds, make_targets
from aplc.nn.topk import RunningTopK, TopK, check_allowed, chunks, outputs_of, sigmoid_


class LabelClusters(nn.Module):
    """Output layer, loss and exact top-k for extreme multi-label classification.

    Label ids must be sorted by falling training frequency. `cutoffs` cut them into a head and K tails: with
    `cutoffs=[1978]` and `n_labels=3956`, ids 0..1977 are the head and 1978..3955 the one tail. The head is one linear
    map to its labels and to the K roots; tail t narrows the hidden state to `in_features // div_value**t` first. Then,
    by Equation 2,

        p(label) = sigmoid(z)                      for a label of the head,
        p(label) = sigmoid(c_t) * sigmoid(z)       for a label of tail t with root logit c_t.

    The loss of a sample is the binary cross-entropy over the labels of the head and of the tails that hold one of its
    own labels (Eq. 3-5); the other tails cost nothing. Loss and gradients are computed together, in chunks of labels,
    so that no tensor of size batch x labels exists, and they are finite for any finite logits.

    Example, the paper's setting for EURLex-4k::

        layer = LabelClusters(in_features=768, cutoffs=[1978], n_labels=3956, div_value=2.0)
        labels = torch.tensor([[3, 2500, -100], [0, 17, 1977]])     # padded with -100, in any order
        loss = layer(hidden, labels)                                # hidden: (2, 768)
        loss.backward()
        probs, ids = layer.topk(hidden, k=5)                        # (2, 5) each, exact

    A tail that no sample of the batch touches is skipped, and its weights' gradients stay None:
    `DistributedDataParallel` needs `find_unused_parameters=True`. Weights and biases start as those of `nn.Linear`,
    uniform in +-1/sqrt(fan-in), unless `init_bias` sets the biases.

    Args:
        in_features: d, width of the hidden state.
        cutoffs: where tails begin, rising, each between 1 and `n_labels - 1`. Empty: a head alone.
        n_labels: L, size of the whole label set.
        div_value: q >= 1, the factor by which each further tail is narrower.
        objective: "released" is what the authors' code does and what produced the paper's table: the mean over samples
            of loss / L_i, where the root of a tail that the sample does not touch is one more negative label. "paper"
            is Equation 5: the batch's loss / the batch's sum of L_i, without a term for such roots.
        tail: inside a tail's projection, "norm-relu" (released: linear, LayerNorm, ReLU) or "linear" (paper).
        bias: add `head.bias` and `tails.{t}.output.bias`; see `init_bias`. The paper has none (Eq. 6).
        tail_dropout: dropout after a tail's projection, one number or one per tail. Small tails overfit first.
        min_tail_width: floor for a tail's width, for many tails or a small `in_features`. 1 is the paper's layer; with
            "norm-relu" a tail of width 1 is refused, since LayerNorm of one number is always 0.
        added: sizes of later additions to the label set, the last ids of `n_labels`. Each is a cluster of its own, at
            full width, with biases and without a root, `added.{i}`: p = sigmoid(z). So the other labels'
            probabilities stay as they are, and a new label does not depend on a root that was trained without it.
        chunk_size: labels evaluated at a time. 4096 keeps a chunk's weights, logits and gradients in cache; results
            depend on it only by rounding. The compiled sweep (docs/clusters.md) has its own chunk size.
    """

    def __init__(
        self,
        in_features: int,
        cutoffs: Sequence[int],
        n_labels: int,
        *,
        div_value: float = 2.0,
        objective: Literal["released", "paper"] = "released",
        tail: Literal["norm-relu", "linear"] = "norm-relu",
        bias: bool = False,
        tail_dropout: float | Sequence[float] = 0.0,
        min_tail_width: int = 1,
        added: Sequence[int] = (),
        chunk_size: int = 4096,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(cutoffs, Partition):
            raise ValueError("cutoffs is a Partition; use LabelClusters.from_partition(partition, in_features=...)")
        cutoffs, added = whole_numbers("cutoffs", cutoffs), whole_numbers("added", added)
        dropouts = [tail_dropout] * len(cutoffs) if isinstance(tail_dropout, int | float) else list(tail_dropout)
        check_layer(
            in_features=in_features,
            cutoffs=cutoffs,
            n_labels=n_labels,
            added=added,
            div_value=div_value,
            objective=objective,
            tail=tail,
            tail_dropout=dropouts,
            min_tail_width=min_tail_width,
            chunk_size=chunk_size,
        )
        widths = [tail_width(in_features, div_value, t, min_tail_width) for t in range(1, len(cutoffs) + 1)]
        check_tail_widths(widths, tail, in_features=in_features, div_value=div_value)

        self.options = {
            **{"in_features": in_features, "cutoffs": cutoffs, "n_labels": n_labels, "div_value": div_value},
            **{"objective": objective, "tail": tail, "bias": bias, "tail_dropout": tail_dropout},
            **{"min_tail_width": min_tail_width, "added": added, "chunk_size": chunk_size},
        }
        self.in_features, self.n_labels, self.cutoffs = in_features, n_labels, cutoffs
        self.div_value, self.objective, self.tail, self.chunk_size = float(div_value), objective, tail, chunk_size
        # Cluster i holds labels bounds[i] to bounds[i + 1]: the head, the tails, the additions.
        self.bounds = [0, *cutoffs, *accumulate(added, initial=n_labels - sum(added))]
        self.head_size = self.bounds[1]
        self.head = nn.Linear(in_features, self.head_size + len(cutoffs), bias=bias, device=device, dtype=dtype)
        normed = tail == "norm-relu"
        self.tails = nn.ModuleList(
            Tail(in_features, width, size, bias=bias, normed=normed, dropout=dropout, device=device, dtype=dtype)
            for width, size, dropout in zip(widths, np.diff(self.bounds[1:]).tolist(), dropouts, strict=False)
        )
        self.added = nn.ModuleList(nn.Linear(in_features, size, device=device, dtype=dtype) for size in added)
        self._kept = KeptGradients()

    @classmethod
    def from_partition(cls, partition: Partition, *, in_features: int, **options: Any) -> Self:
        """The layer that `partition` describes: its cut-offs, `div_value` and `min_tail_width`.

        `options` are the constructor's others, such as `bias`; labels in `added` come on top of the partition's.
        """
        n_labels = partition.n_labels + sum(whole_numbers("added", options.get("added", ())))
        widths: Any = {"div_value": partition.div_value, "min_tail_width": partition.min_tail_width}
        return cls(in_features, partition.cutoffs, n_labels, **widths, **options)

    @torch.no_grad()
    def init_bias(self, label_counts: ArrayLike | Tensor, n_documents: int, tail_documents: ArrayLike | Tensor) -> None:
        """Set biases to the log-odds of the training data, so that the untrained layer predicts the label frequencies.

        Args:
            label_counts: documents with each label, (L,), in the order of ids: falling, `added` ones in any order.
            n_documents: the number of documents.
            tail_documents: documents with at least one label of tail t, (K,); a tail's labels start at their log-odds
                among these. Counts are clamped half a document away from none and from all, so every bias is finite.
        """
        if self.head.bias is None:
            raise ValueError("init_bias needs biases, but bias is False; make the layer with bias=True")
        count_L = torch.as_tensor(label_counts, dtype=torch.float64)
        tail_K = torch.as_tensor(tail_documents, dtype=torch.float64)
        if count_L.shape != (self.n_labels,):
            raise ValueError(f"label_counts has shape {tuple(count_L.shape)}, but must be ({self.n_labels},)")
        if tail_K.shape != (len(self.tails),):
            raise ValueError(f"tail_documents has shape {tuple(tail_K.shape)}, but must be ({len(self.tails)},)")
        falling_counts(count_L[: self.bounds[1 + len(self.tails)]].cpu().numpy(), n_documents)
        if not ((tail_K >= 0) & (tail_K <= n_documents)).all():
            raise ValueError(f"tail_documents is {tail_K.tolist()}, but must be from 0 to n_documents ({n_documents})")
        self.head.bias.copy_(log_odds(torch.cat([count_L[: self.head_size], tail_K]), n_documents))
        for t, tail in enumerate(self._tails):
            start, stop = self.bounds[t + 1 : t + 3]
            tail.output.bias.copy_(log_odds(count_L[start:stop], max(float(tail_K[t]), 1.0)))

    def forward(
        self, hidden_BD: Tensor, labels_BP: Tensor, *, partial: Tensor | None = None, rejected: Tensor | None = None
    ) -> Tensor:
        """The loss, a scalar. `labels_BP`: label ids (B, P) in any order, padded with -100; repeats count once.

        Of rows that are `partial`, (B,) booleans, only two kinds of labels are known: their own, and those in
        `rejected`, ids (B, Q) padded with -100, which are wrong. All others leave no trace in the loss of such a row.
        """
        check_hidden(hidden_BD, self.in_features)
        if partial is not None and partial.any():
            return self._partial_loss(hidden_BD, labels_BP, partial, rejected)
        targets = self._targets(labels_BP, hidden_BD.shape[0])
        loss, roots_BK = self._leaf_loss(hidden_BD, targets)
        return loss + self._root_loss(roots_BK, targets)

    def _partial_loss(self, hidden_BD: Tensor, labels_BP: Tensor, partial_B: Tensor, rejected: Tensor | None) -> Tensor:
        """The loss of a batch with partial rows: of the labels that these list, and of the other rows as usual."""
        pairs = rejected_pairs(partial_B, rejected, len(hidden_BD), self.n_labels)
        targets = self._targets(labels_BP, len(hidden_BD), pairs)
        whole, listed = split_targets(targets, pairs, partial_B.cpu().numpy())
        outputs = [linear for _, linear, _, _ in self._clusters()]
        loss = listed_loss(hidden_BD, listed, targets.row_weight_B, outputs, self._tails, self.bounds)
        if not partial_B.all():
            part, roots_BK = self._leaf_loss(hidden_BD[~partial_B], whole)
            loss = loss + part + self._root_loss(roots_BK, whole)
        return loss

    def _leaf_loss(self, hidden_BD: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Loss of all labels in the clusters that rows touch, and the roots' logits c_BK."""
        label_N, row_N, touched_BK, row_weight_B = targets
        first = edges(label_N, self.bounds)
        positives = label_N[: first[1]], row_N[: first[1]]
        loss, roots_BK = self._cluster_loss(self.head, hidden_BD, None, *positives, row_weight_B)
        for t, tail in enumerate(self._tails):
            inside = slice(first[t + 1], first[t + 2])
            touched_B = touched_BK[:, t]
            if not touched_B.any():
                continue
            rows = np.flatnonzero(touched_B)
            place_B = touched_B.cumsum(dtype=np.int64) - 1  # from a row's index in the batch to its index in `rows`
            rows_R = torch.from_numpy(rows).to(hidden_BD.device)
            narrow = F.dropout(tail.narrow(hidden_BD.index_select(0, rows_R)), tail.dropout, self.training)
            roots_R = roots_BK[:, t].index_select(0, rows_R)
            positives = label_N[inside] - self.bounds[t + 1], place_B[row_N[inside]]
            loss = loss + self._cluster_loss(tail.output, narrow, roots_R, *positives, row_weight_B[rows])[0]
        for i, addition in enumerate(self._additions, start=1 + len(self.tails)):
            begin, end = first[i : i + 2]
            positives = label_N[begin:end] - self.bounds[i], row_N[begin:end]
            loss = loss + self._cluster_loss(addition, hidden_BD, None, *positives, row_weight_B)[0]
        return loss, roots_BK

    def _root_loss(self, roots_BK: Tensor, targets: Targets) -> Tensor | float:
        """The released code's term for the roots of tails that a row does not touch: BCE(c_t, 0)."""
        if self.objective == "paper" or not len(self.tails):
            return 0.0
        weight_BK = torch.from_numpy(~targets.touched_BK * targets.row_weight_B[:, None]).to(roots_BK.device)
        return (softplus(roots_BK) * weight_BK).sum().to(roots_BK.dtype)

    def loss_weight(self, labels_BP: Tensor, *, partial: Tensor | None = None, rejected: Tensor | None = None) -> float:
        """How much this batch's loss counts in a mean over batches, so that it is the loss of all their rows."""
        if self.objective == "released":
            return float(len(labels_BP))
        pairs = None if partial is None else rejected_pairs(partial, rejected, len(labels_BP), self.n_labels)
        touched_BK = self._targets(labels_BP, len(labels_BP), pairs).touched_BK
        return float(labels_evaluated(touched_BK, self.bounds).sum())

    def logits(self, hidden_BD: Tensor) -> tuple[Tensor, ...]:
        """Of each cluster, (B, its labels); the head's end with the K roots. Whole, for export: `topk` needs fewer."""
        tails = (tail.output(tail.narrow(hidden_BD)) for tail in self._tails)
        return self.head(hidden_BD), *tails, *(addition(hidden_BD) for addition in self._additions)

    @torch.no_grad()
    def probabilities(self, hidden_BD: Tensor) -> Tensor:
        """Every label's probability, (B, L), Equation 2. For small label sets and tests; `topk` never builds it."""
        check_hidden(hidden_BD, self.in_features)
        roots_KB = self._roots(hidden_BD)
        probs_BL = roots_KB.new_empty(hidden_BD.shape[0], self.n_labels)
        for start, linear, size, t in self._clusters():
            rows = hidden_BD if t is None else self._tails[t].narrow(hidden_BD)
            for chunk in chunks(size, self.chunk_size):
                probs_CB = sigmoid_(outputs_of(rows, linear, chunk))
                if t is not None:
                    probs_CB.mul_(roots_KB[t])
                probs_BL[:, start + chunk.start : start + chunk.stop] = probs_CB.t()
        return probs_BL

    @torch.no_grad()
    def probability_of(self, hidden_BD: Tensor, label: int) -> Tensor:
        """One label's probability for each row, (B,): Equation 2 without the other labels."""
        check_hidden(hidden_BD, self.in_features)
        if not 0 <= label < self.n_labels:
            raise ValueError(f"label is {label}, but ids must be from 0 to {self.n_labels - 1} (n_labels - 1)")
        start, linear, _, t = list(self._clusters())[bisect_right(self.bounds, label) - 1]
        rows = hidden_BD if t is None else self._tails[t].narrow(hidden_BD)
        probs_B = sigmoid_(outputs_of(rows, linear, slice(label - start, label - start + 1)))[0]
        return probs_B if t is None else probs_B * self._roots(hidden_BD)[t]

    @torch.no_grad()
    def topk(self, hidden_BD: Tensor, k: int = 5, *, allowed: Tensor | None = None) -> TopK:
        """The k most probable labels of each row: `probs, ids`, each (B, min(k, n_labels)), best first.

        The same as sorting `probabilities(hidden)` up to rounding, with ties to the lower id, but a row visits a tail
        only if the tail's root exceeds the row's k-th probability. The result also has `visits` and `saved_visits`,
        counted in (row, tail) pairs.

        `allowed`, a boolean (n_labels,), is False for labels to leave out. If fewer than k remain, the end of a row is
        filled with -1 in both ids and probabilities; so is all of a row whose hidden state has a NaN.
        """
        check_hidden(hidden_BD, self.in_features)
        check_at_least("k", k, 1)
        if allowed is not None:
            check_allowed(allowed, self.n_labels)
        n_rows = hidden_BD.shape[0]
        roots_KB = self._roots(hidden_BD)
        best = RunningTopK(n_rows, min(k, self.n_labels), roots_KB.dtype, roots_KB.device)
        visits = 0
        for start, linear, size, t in self._clusters():
            rows, rows_S, root_S = hidden_BD, None, None
            if t is not None:
                if allowed is not None and not allowed[start : start + size].any():
                    continue
                rows_S = best.rows_below(roots_KB[t])
                visits += len(rows_S)
                if not len(rows_S):
                    continue
                rows, root_S = self._tails[t].narrow(hidden_BD[rows_S]), roots_KB[t, rows_S]
            for chunk in chunks(size, self.chunk_size):
                best.update(outputs_of(rows, linear, chunk), start + chunk.start, rows_S, root_S, allowed)
        result = TopK(best.probs_Bk, best.ids_Bk)
        result.visits, result.saved_visits = visits, n_rows * len(self.tails) - visits
        return result

    def own_rows(self, name: str) -> int:
        """For how many of a parameter's first outputs only this process has weights; see `ShardedLabelClusters`."""
        return 0

    def extra_repr(self) -> str:
        defaults = {"bias": False, "tail_dropout": 0.0, "min_tail_width": 1, "added": []}
        others = (f", {name}={self.options[name]}" for name in defaults if self.options[name] != defaults[name])
        return (
            f"in_features={self.in_features}, cutoffs={self.cutoffs}, n_labels={self.n_labels}, "
            f"div_value={self.div_value:g}, objective={self.objective!r}, tail={self.tail!r}{''.join(others)}"
        )

    @property
    def _tails(self) -> Sequence[Tail]:
        return cast(Sequence[Tail], self.tails)

    @property
    def _additions(self) -> Iterable[nn.Linear]:
        return cast(Iterable[nn.Linear], self.added)

    def _clusters(self) -> Iterator[tuple[int, nn.Linear, int, int | None]]:
        """(first id, output layer, labels, tail) of each cluster in the order of ids; None for what is not a tail."""
        outputs = [self.head, *(tail.output for tail in self._tails), *self._additions]
        for i, (linear, (start, stop)) in enumerate(zip(outputs, pairwise(self.bounds), strict=True)):
            yield start, linear, stop - start, i - 1 if 1 <= i <= len(self.tails) else None

    def _roots(self, hidden_BD: Tensor) -> Tensor:
        """The roots' probabilities, (K, B)."""
        return sigmoid_(outputs_of(hidden_BD, self.head, slice(self.head_size, None)))

    def _cluster_loss(self, linear: nn.Linear, rows_RD: Tensor, roots_R: Tensor | None, *rest: NDArray) -> list[Tensor]:
        wanted = any(x is not None and x.requires_grad for x in (rows_RD, roots_R, linear.weight, linear.bias))
        settings = Settings(
            n_leaves=self.head_size if linear is self.head else linear.out_features,
            chunk_size=self.chunk_size * max(1, self.in_features // linear.in_features),  # as many weights as the head
            product_dtype=product_dtype(rows_RD, linear.weight),
            with_gradients=wanted and torch.is_grad_enabled(),
            with_weight=linear.weight.requires_grad,
            kept=self._kept,
            name=id(linear),
        )
        positives_and_weights = (torch.from_numpy(x).to(rows_RD.device) for x in rest)
        return ClusterLoss.apply(settings, rows_RD, roots_R, linear.weight, linear.bias, *positives_and_weights)

    def _targets(self, labels_BP: Tensor, n_rows: int, rejected: Pairs | None = None) -> Targets:
        return make_targets(labels_BP, n_rows, self.bounds, len(self.tails), self.objective, rejected)
