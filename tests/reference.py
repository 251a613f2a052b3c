"""Slow, obvious versions of the package's fast paths, straight from the paper's equations, to test against."""

import math
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch
from sklearn.utils import murmurhash3_32
from torch import Tensor
from torch.nn import functional as F

from aplc.config import TrainConfig
from aplc.data.batches import Batch
from aplc.models.network import TaggingModel
from aplc.nn.clusters import LabelClusters
from aplc.pretrain.objective import PermutationLM
from aplc.words.names import stem

# ---------------------------------------------------------------------------------------------------------------------
# Label clusters: Equations 2-5, on a LabelClusters' own weights, in any dtype, with autograd doing the gradients.
# ---------------------------------------------------------------------------------------------------------------------


def cluster_logits(layer: LabelClusters, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Every label's own logit z (B, L), and the logit c (B, L) of the root above it, infinite for the head's labels."""
    head = F.linear(hidden, layer.head.weight, layer.head.bias)
    leaves, roots = head[:, : layer.head_size], head[:, layer.head_size :]
    z, c = [leaves], [torch.full_like(leaves, float("inf"))]
    for t, tail in enumerate(layer.tails):
        rows = F.linear(hidden, tail.project.weight)
        if layer.tail == "norm-relu":
            rows = F.relu(F.layer_norm(rows, rows.shape[1:], tail.norm.weight, tail.norm.bias))
        z.append(F.linear(rows, tail.output.weight, tail.output.bias))
        c.append(roots[:, t : t + 1].expand_as(z[-1]))
    for addition in layer.added:
        z.append(F.linear(hidden, addition.weight, addition.bias))
        c.append(torch.full_like(z[-1], float("inf")))
    return torch.cat(z, dim=1), torch.cat(c, dim=1)


def cluster_probabilities(layer: LabelClusters, hidden: Tensor) -> Tensor:
    """Equation 2."""
    z, c = cluster_logits(layer, hidden)
    return torch.sigmoid(c) * torch.sigmoid(z)


def multi_hot(labels: Tensor, n_labels: int) -> Tensor:
    y = torch.zeros(labels.shape[0], n_labels, dtype=torch.bool)
    for i, row in enumerate(labels.tolist()):
        for label in row:
            if label != -100:
                y[i, label] = True
    return y


def cluster_loss(
    layer: LabelClusters,
    hidden: Tensor,
    labels: Tensor,
    partial: Tensor | None = None,
    rejected: Tensor | None = None,
) -> Tensor:
    """Equations 3-5, or the released code's variant, sample by sample and cluster by cluster.

    Of partial samples only their own and the rejected labels have a term; all else is as if nothing were masked.
    """
    z, c = cluster_logits(layer, hidden)
    y, known = multi_hot(labels, layer.n_labels), torch.ones(len(hidden), layer.n_labels, dtype=torch.bool)
    touching = y.clone()
    for i in range(len(hidden)) if partial is not None else ():
        if partial[i]:
            known[i] = touching[i] = y[i] | multi_hot(rejected[i : i + 1], layer.n_labels)[0]
    losses, sizes = [], []
    for i in range(len(hidden)):
        loss, size = hidden.new_zeros(()), 0
        for cluster, (start, stop) in enumerate(pairwise(layer.bounds)):
            here = slice(start, stop)
            if cluster == 0 or cluster > len(layer.tails):
                log_p, log_not_p = F.logsigmoid(z[i, here]), F.logsigmoid(-z[i, here])
            elif touching[i, here].any():
                log_p, log_not_p = log_product(z[i, here], c[i, here])
            elif layer.objective == "released":
                masked = partial is not None and bool(partial[i])
                loss, size = loss - (0 if masked else F.logsigmoid(-c[i, start])), size + 1
                continue
            else:
                continue
            loss = loss - torch.where(y[i, here], log_p, log_not_p)[known[i, here]].sum()
            size += stop - start
        losses.append(loss)
        sizes.append(size)
    if layer.objective == "released":
        return torch.stack([loss / size for loss, size in zip(losses, sizes, strict=True)]).mean()
    return torch.stack(losses).sum() / sum(sizes)


def log_product(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """log p and log(1 - p) of p = sigmoid(c) sigmoid(z): 1 - p is the sum of the three other outcomes of two draws."""
    others = torch.stack([F.logsigmoid(-c) + F.logsigmoid(z), F.logsigmoid(c) + F.logsigmoid(-z)])
    neither = F.logsigmoid(-c) + F.logsigmoid(-z)
    return F.logsigmoid(c) + F.logsigmoid(z), torch.logsumexp(torch.cat([others, neither[None]]), dim=0)


def naive_cluster_loss(layer: LabelClusters, hidden: Tensor, labels: Tensor) -> Tensor:
    """The layer as one would first write it, whole tensors and autograd: what bench/clusters.py compares with."""
    y = torch.zeros(labels.shape[0], layer.n_labels)
    rows, places = (labels >= 0).nonzero(as_tuple=True)
    y[rows, labels[rows, places]] = 1.0
    head = F.linear(hidden, layer.head.weight, layer.head.bias)
    roots, edges = head[:, layer.head_size :], layer.bounds
    touched = torch.stack([y[:, a:b].any(dim=1) for a, b in pairwise(edges[1:])], dim=1)
    sizes = torch.tensor([b - a for a, b in pairwise(edges[1:])])
    total = F.binary_cross_entropy_with_logits(
        head[:, : layer.head_size], y[:, : layer.head_size], reduction="none"
    ).sum(dim=1)
    for t, tail in enumerate(layer.tails):
        here = touched[:, t].nonzero().squeeze(1)
        if len(here):
            z, c = tail.output(tail.narrow(hidden[here])), roots[here, t : t + 1]
            positive = F.softplus(-c) + F.softplus(-z)
            negative = positive - torch.logsumexp(torch.stack([(-c).expand_as(z), -z, -c - z]), dim=0)
            target = y[here, edges[t + 1] : edges[t + 2]]
            total = total.index_add(0, here, (target * positive + (1 - target) * negative).sum(dim=1))
    count = layer.head_size + (touched * sizes).sum(dim=1)
    if layer.objective == "paper":
        return total.sum() / count.sum()
    total = total + (F.softplus(roots) * ~touched).sum(dim=1)
    return (total / (count + (~touched).sum(dim=1))).mean()


# ---------------------------------------------------------------------------------------------------------------------
# Metrics (docs/metrics.md), one document and one label at a time
# ---------------------------------------------------------------------------------------------------------------------


def reference_metrics(
    ranked: list[list[int]],
    probs: list[list[float]],
    truths: list[set[int]],
    *,
    counts: Sequence[int],
    n_documents: int,
    ks: Sequence[int],
    threshold: float,
    ab: tuple[float, float],
    bins: int = 15,
) -> dict[str, float]:
    """All of `Metrics.result`. `ranked`: ids by document, without padding; `probs` beside them."""

    def mean(values: Iterable[float]) -> float:
        values = list(values)
        return sum(values) / len(values) if values else 0.0

    def ratio(x: float, y: float) -> float:
        return x / y if y else 0.0

    a, b = ab
    c = max(math.log(n_documents) - 1, 0) * (b + 1) ** a

    def weight(label: int) -> float:
        return 1 + c / ((counts[label] if label < len(counts) else 0) + b) ** a

    def dcg(gains: Iterable[float]) -> float:
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))

    result: dict[str, float] = {}
    for k in ks:
        top = [ids[:k] for ids in ranked]
        hits = [[float(label in true) for label in ids] for ids, true in zip(top, truths, strict=True)]
        ideal = [sorted(map(weight, true), reverse=True)[:k] for true in truths]
        gained = [
            [weight(label) if label in true else 0 for label in ids] for ids, true in zip(top, truths, strict=True)
        ]
        result[f"P@{k}"] = mean(sum(hit) / k for hit in hits)
        result[f"R@{k}"] = mean(ratio(sum(hit), len(true)) for hit, true in zip(hits, truths, strict=True))
        result[f"RP@{k}"] = mean(ratio(sum(hit), min(k, len(true))) for hit, true in zip(hits, truths, strict=True))
        norms = [dcg([1] * min(k, len(true))) for true in truths]
        result[f"nDCG@{k}"] = mean(ratio(dcg(hit), norm) for hit, norm in zip(hits, norms, strict=True))
        result[f"PSP@{k}"] = ratio(sum(map(sum, gained)), sum(map(sum, ideal)))
        result[f"PSnDCG@{k}"] = ratio(
            sum(ratio(dcg(gain), norm) for gain, norm in zip(gained, norms, strict=True)),
            sum(ratio(dcg(gain), norm) for gain, norm in zip(ideal, norms, strict=True)),
        )
        occurring = set().union(*truths)
        found = {label for ids, true in zip(top, truths, strict=True) for label in ids if label in true}
        result[f"coverage@{k}"] = ratio(len(found), len(occurring))
        pairs = [pair for row, hit in zip(probs, hits, strict=True) for pair in zip(row[:k], hit, strict=True)]
        gap = 0.0
        for i in range(bins):
            low = -1 if i == 0 else i / bins  # the first bin holds 0 as well
            inside = [(p, hit) for p, hit in pairs if low < p <= (i + 1) / bins]
            gap += abs(sum(p - hit for p, hit in inside))
        result[f"ECE@{k}"] = ratio(gap, len(pairs))

    chosen = [
        {label for label, p in zip(ids, row, strict=True) if p >= threshold}
        for ids, row in zip(ranked, probs, strict=True)
    ]
    both = list(zip(chosen, truths, strict=True))
    result["micro-F1"] = ratio(2 * sum(len(x & y) for x, y in both), sum(len(x) + len(y) for x, y in both))
    result["macro-F1"] = mean(
        2 * sum(label in x & y for x, y in both) / sum((label in x) + (label in y) for x, y in both)
        for label in sorted(set().union(*chosen, *truths))
    )
    return result


def reference_band(
    ranked: list[list[int]], truths: list[set[int]], k: int, inside: Container[int]
) -> tuple[int, int, int]:
    """True, predicted and hit pairs whose label is `inside` the band, for lists cut at k."""
    true = [(i, label) for i, labels in enumerate(truths) for label in labels if label in inside]
    predicted = [(i, label) for i, ids in enumerate(ranked) for label in ids[:k] if label in inside]
    return len(true), len(predicted), len(set(true) & set(predicted))


# ---------------------------------------------------------------------------------------------------------------------
# From probabilities to a document's labels, one label at a time
# ---------------------------------------------------------------------------------------------------------------------


def best_labels(probs: np.ndarray, k: int, allowed: Sequence[bool] | None = None) -> list[list[tuple[int, float]]]:
    """The k best labels of each document with their probabilities; (-1, 0) where none are left."""
    found = []
    for row in probs:
        ranked = sorted((-p, label) for label, p in enumerate(row) if allowed is None or allowed[label])
        found.append(([(label, -p) for p, label in ranked] + [(-1, 0.0)] * k)[:k])
    return found


def reference_ranking(
    probs: Sequence[float],
    curves: Sequence[Sequence[tuple[float, float]]],
    bounds: Sequence[int],
    merged: Sequence[int],
) -> list[tuple[int, float]]:
    """All labels of one document with final probabilities, best first: calibrated, then merged by the highest."""
    ranked = []
    for label, p in enumerate(probs):
        cluster = max(c for c, start in enumerate(bounds) if start <= label)
        final = p
        if cluster < len(curves):
            for (x0, y0), (x1, y1) in pairwise(curves[cluster]):
                if x0 <= p <= x1:
                    final = y0 + (p - x0) * (y1 - y0) / (x1 - x0)
        ranked.append((final, p, label))
    ranked.sort(key=lambda entry: (-entry[0], -entry[1], entry[2]))
    best: dict[int, float] = {}
    for final, _, label in ranked:
        best.setdefault(merged[label], final)
    return list(best.items())


def reference_f1_count(probs: Sequence[float]) -> int:
    """How many of the best labels promise the highest F1, by trying every number."""
    expected = [math.prod(1 - p for p in probs)]
    expected += [2 * sum(probs[:n]) / (n + sum(probs)) for n in range(1, len(probs) + 1)]
    return max(range(len(expected)), key=lambda n: expected[n])


def reference_threshold(
    calibrated: Sequence[float], hits: Sequence[bool], precision: float, steps: int
) -> float | None:
    """The lowest of `steps` thresholds at which so large a share of the predictions is right."""
    for i in range(steps + 1):
        chosen = [hit for p, hit in zip(calibrated, hits, strict=True) if p >= i / steps]
        if len(chosen) >= 50 and sum(chosen) / len(chosen) >= precision:
            return i / steps
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Permutation language modelling: the two streams of one segment, a token and a head at a time (Yang et al. 2019,
# sections 2.3 to 2.5), on a PermutationLM's own weights
# ---------------------------------------------------------------------------------------------------------------------


def two_streams(
    model: PermutationLM, ids: list[int], types: list[int], order: list[int], memory: list[Tensor] | None = None
) -> dict[int, Tensor]:
    """The query stream's last state at each target's position. `memory`: for each layer (M, D)."""
    body = model.transformer
    width, heads = body.config.d_model, body.config.n_head
    tokens, remembered = range(len(ids)), 0 if memory is None else len(memory[0])
    states = [body.word_embedding.weight[i] for i in ids]
    queries = {i: body.mask_emb[0, 0] for i in tokens if order[i] >= 0}
    kinds = [0] * remembered + types

    def sinusoid(distance: int) -> Tensor:
        angles = [distance / 10000 ** (2 * i / width) for i in range(width // 2)]
        return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)]).to(states[0])

    def visible(i: int, itself: bool) -> list[int]:
        earlier = [j for j in tokens if order[j] < 0 or order[j] < order[i] or (itself and j == i)]
        return [*range(remembered), *(remembered + j for j in earlier)]

    for number, layer in enumerate(body.layer):
        attention, forward = layer.rel_attn, layer.ff
        context = ([] if memory is None else list(memory[number])) + states

        def attend(state: Tensor, i: int, itself: bool, attention=attention, context=context) -> Tensor:
            out = torch.zeros_like(state)
            for head in range(heads):
                q = state @ attention.q[:, head]
                scores, values = [], []
                for j in visible(i, itself):
                    position = sinusoid(remembered + i - j) @ attention.r[:, head]
                    segment = attention.seg_embed[int(kinds[remembered + i] != kinds[j]), head]
                    content = (q + attention.r_w_bias[head]) @ (context[j] @ attention.k[:, head])
                    place = (q + attention.r_r_bias[head]) @ position
                    scores.append((content + place + (q + attention.r_s_bias[head]) @ segment) / len(q) ** 0.5)
                    values.append(context[j] @ attention.v[:, head])
                mixed = torch.softmax(torch.stack(scores), 0) @ torch.stack(values)
                out = out + attention.o[:, head] @ mixed
            return attention.layer_norm(out + state)

        def feed(state: Tensor, forward=forward) -> Tensor:
            return forward.layer_norm(forward.layer_2(F.gelu(forward.layer_1(state))) + state)

        queries = {i: feed(attend(state, i, False)) for i, state in queries.items()}
        states = [feed(attend(state, i, True)) for i, state in enumerate(states)]
    return queries


def int8_round_trip(weights, axis):
    """Each row along `axis`: steps of its largest weight / 127, every weight at the nearest."""
    turned = np.moveaxis(np.asarray(weights, dtype=np.float64), axis, 0).copy()
    for row in turned.reshape(len(turned), -1):
        step = max(abs(row)) / 127
        for i, weight in enumerate(row):
            row[i] = round(weight / step) * step if step else 0.0
    return np.moveaxis(turned, 0, axis)


# ---------------------------------------------------------------------------------------------------------------------
# The words model: a character, a word and a document at a time
# ---------------------------------------------------------------------------------------------------------------------

UNSPACED_SCRIPTS = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF))
"""Thai and Lao, Burmese, Khmer, Japanese kana, Chinese."""


def words_of_text(text: str) -> list[str]:
    """Runs of letters, digits and the marks on them, in lower case; single characters in scripts without spaces."""
    words, current = [], ""
    for character in unicodedata.normalize("NFKC", text).lower() + " ":
        unspaced = any(first <= ord(character) <= last for first, last in UNSPACED_SCRIPTS)
        mark = unicodedata.category(character).startswith("M") and ord(character) < 0x10000
        if not unspaced and (character.isalnum() or (mark and current)):
            current += character
            continue
        words += [current] * bool(current) + [character] * unspaced
        current = ""
    return words


def word_counts(text: str, *, runs: bool, first: int | None = None) -> dict[int, int]:
    """{bucket: how often}: 2^22 buckets of words, 2^24 of pairs, 2^22 of runs of four characters.

    With `first`, of the first words.
    """
    words, counts = words_of_text(text)[:first], Counter()
    pairs = [f"{a} {b}" for a, b in pairwise(words)]
    inside = []
    for word in words:
        if runs and len(word) >= 4:
            letters = ["<", *word, ">"]
            inside += ["".join(letters[i : i + 4]) for i in range(len(letters) - 3)]
    offset = 0
    for size, found in ((1 << 22, words), (1 << 24, pairs), (1 << 22, inside)):
        counts.update(offset + abs(murmurhash3_32(name)) % size for name in found)
        offset += size
    return dict(counts)


def ridge_weights(x: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    """W = (X'X + r I)^-1 X'Y."""
    return np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)


def neighbourhood(rare: np.ndarray, own: Sequence[int], most: int, reach: float = np.inf) -> list[int]:
    """A label's own documents, and the `most` others that share most rare words with them.

    Words count, the rarest first, until they have more than `reach` documents together; the rarest one always.
    """
    n_documents, looked_at, words = (rare > 0).sum(0), 0, []
    for word in sorted(np.flatnonzero(rare[own].sum(0)), key=lambda word: (n_documents[word], word)):
        looked_at += n_documents[word]
        if not words or looked_at <= reach:
            words.append(word)
    shared = {i: float(rare[i, words] @ rare[own][:, words].sum(0)) for i in range(len(rare)) if i not in own}
    others = sorted((i for i in shared if shared[i] > 0), key=lambda i: (-shared[i], i))
    return [*own, *others[:most]]


def local_answer(
    frequent: np.ndarray, rare: np.ndarray, own: Sequence[int], near: Sequence[int], ridge: float
) -> tuple[np.ndarray, np.ndarray]:
    """a of all documents and the weights of F: (X_F X_F' + diag(|x_R|^2 + r)) a = y, which gives the weights; then
    (X_R X_R' + r I) c = -(X_R X_R' without its diagonal) a among neighbours, and a + c."""
    near, y = list(near), np.isin(np.arange(len(rare)), own).astype(float)
    a = np.linalg.solve(frequent @ frequent.T + np.diag((rare**2).sum(1) + ridge), y)
    weight = frequent.T @ a
    meets = rare[near] @ rare[near].T
    others = meets - np.diag(np.diagonal(meets))
    a[near] -= np.linalg.solve(meets + ridge * np.eye(len(near)), others @ a[near])
    return a, weight


# ---------------------------------------------------------------------------------------------------------------------
# Training with a frozen encoder: the whole network, step by step
# ---------------------------------------------------------------------------------------------------------------------


def train_with_encoder_frozen(model: TaggingModel, batches: Sequence[Batch], config: TrainConfig) -> None:
    """The hidden layer and the clusters learn by AdamW at the rates of Equation 15, a tenth of the steps to warm up."""
    model.requires_grad_(False)
    rates = {model.hidden: config.lr_hidden, model.clusters: config.lr_clusters}
    groups = [{"params": list(part.requires_grad_().parameters()), "lr": rate} for part, rate in rates.items()]
    optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay, eps=config.adam_epsilon)
    warmup = len(batches) // 10
    for step, batch in enumerate(batches):
        factor = step / warmup if step < warmup else (len(batches) - step) / (len(batches) - warmup)
        for group, rate in zip(optimizer.param_groups, rates.values(), strict=True):
            group["lr"] = rate * factor
        optimizer.zero_grad()
        model(batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()


# ---------------------------------------------------------------------------------------------------------------------
# Words and a network, blended: a label at a time
# ---------------------------------------------------------------------------------------------------------------------


def blended_probability(curve: Sequence[float], words: float, probability: float) -> float:
    """sigmoid(a + b w + c v): w the words' logit, v the network's, from its probability."""
    a, b, c = curve
    held = min(max(float(probability), 1e-8), 1 - 1e-7)
    return 1 / (1 + math.exp(-(a + b * words + c * math.log(held / (1 - held)))))


def mentions_of(texts: list[list[str]], names: list[list[list[str]]]) -> dict[tuple[int, int], float]:
    """(document, label) and log(1 + place) where a text has all words of one of the label's names, by their stems.

    `place` is the number of words up to where a name is complete, at the earliest.
    """
    found = {}
    for i, words in enumerate(texts):
        first = {stem(word): place for place, word in reversed(list(enumerate(words, 1)))}
        for label, own in enumerate(names):
            for name in own:
                parts = {stem(word) for word in name}
                if parts and parts <= first.keys():
                    place = max(first[part] for part in parts)
                    found[i, label] = min(found.get((i, label), np.inf), np.log1p(place))
    return found


def review_order(doubts: Sequence[dict[int, float]], limit: int) -> list[tuple[int, float]]:
    """(document, value) pairs in the order of docs/feedback.md, each value computed anew for each choice."""
    left, asked, chosen = list(range(len(doubts))), Counter(), []
    for _ in range(min(limit, len(doubts))):
        values = {i: sum(doubt / (1 + asked[label]) for label, doubt in doubts[i].items()) for i in left}
        best = max(left, key=values.__getitem__)
        chosen.append((best, values[best]))
        left.remove(best)
        for label, doubt in doubts[best].items():
            asked[label] += 2 * doubt
    return chosen


def masked_ridge(x: np.ndarray, y: np.ndarray, listed: np.ndarray, ridge: float) -> np.ndarray:
    """Weights (V, L): each label by the documents of y, and by those of the rows behind that list it (1 or -1)."""
    weights = []
    for label in range(y.shape[1]):
        rows = np.concatenate([np.arange(len(y)), len(y) + np.flatnonzero(listed[:, label])])
        target = np.concatenate([y[:, label], listed[listed[:, label] != 0, label] > 0]) - y[:, label].mean()
        own = x[rows].astype(np.float64)
        weights.append(np.linalg.solve(own.T @ own + ridge * np.eye(x.shape[1]), own.T @ target))
    return np.stack(weights, 1)
