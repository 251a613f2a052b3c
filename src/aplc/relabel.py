"""Label sets that live on after training: add, rename, merge and retire labels of a model, without a retrain.

    changed = add_labels(folder, documents, ["COVID-19"])       # learned from examples, in seconds to minutes
    changed = rename_label(folder, "Sex Factors", "Sex Characteristics")

Each function gives a new `ModelFolder` with the next label-set version. What is not changed keeps its predictions to
the last digit. Added labels become a cluster of their own beside head and tails (`LabelClusters.added`), so that no old
weight and no old matrix product is touched; the encoder is frozen and runs once over the examples. With its states
fixed, each new label is a logistic regression of its own, which has one optimum and needs no schedule. The price: new
labels see the text through a representation that was learned without them.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aplc.data.batches import by_length
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.decide import find_labels, unknown
from aplc.errors import AplcError, CorpusError, ModelError
from aplc.folder import ModelFolder
from aplc.nn.model import TaggingModel
from aplc.nn.words import WordModel

MAX_OTHERS = 20_000
"""Documents without a new label that are used, drawn at random: beyond that they add time, and little else."""
LEAST_OTHERS = 1_000
"""Where there are fewer, names of the model's other labels stand in for documents about something else."""
PENALTY = 1.0
"""Weight of the squared norm, in documents: as scikit-learn's LogisticRegression(C=1)."""
BLOCK = 512
"""New labels learned at a time."""
ITERATIONS = 100

Advance = Callable[[int], None]


def add_labels(
    folder: ModelFolder, documents: Iterable[Document], names: Sequence[str], *, advance: Advance = lambda _: None
) -> ModelFolder:
    """The model with labels it did not have, learned from documents that carry them and from others that don't.

    A label without an example starts from its name, as if it were a text. `advance` hears of each document encoded.
    """
    check_learns(folder)
    names = list(dict.fromkeys(names))
    _check_new(folder.labels, names)
    place = {name: j for j, name in enumerate(names)}
    texts, truth, weights, counts = _examples(documents, place)
    for name in names:  # a name is one more example of its label
        texts.append(name)
        truth.append([place[name]])
        weights.append(1.0)
    n_others = sum(not row for row in truth)
    if n_others < LEAST_OTHERS:
        used = [name for name, active in zip(folder.labels.names, folder.labels.active, strict=True) if active]
        drawn = np.random.default_rng(0).permutation(len(used))[: LEAST_OTHERS - n_others]
        texts += [used[i] for i in drawn]
        truth += [[] for _ in drawn]
        weights += [1.0] * len(drawn)
    hidden_ND = _represent(folder, texts, advance)
    weight_LD, bias_L = _regress(hidden_ND, truth, torch.tensor(weights), len(names))

    model = _extended(folder, weight_LD, bias_L)
    labels = folder.labels
    aliases = {name: target for name, target in labels.aliases.items() if name not in place}
    grown = replace(
        labels,
        names=(*labels.names, *names),
        counts=np.concatenate([labels.counts, np.array(counts, dtype=np.int64)]),
        aliases=aliases,
    )
    return replace(folder, model=model, labels=_next_version(grown, "add", names))


def rename_label(folder: ModelFolder, old: str, new: str) -> ModelFolder:
    """The model with another name for a label. The old name still stands for it in corpora and lists."""
    labels = folder.labels
    row = _own(labels, old)
    _check_new(labels, [new])
    names = (*labels.names[:row], new, *labels.names[row + 1 :])
    aliases = {name: new if target == old else target for name, target in labels.aliases.items() if name != new}
    changed = replace(labels, names=names, aliases=aliases | {old: new})
    return replace(folder, labels=_next_version(changed, "rename", [old], to=new))


def merge_labels(folder: ModelFolder, names: Sequence[str], into: str) -> ModelFolder:
    """The model with `names` as parts of the label `into`, whose probability becomes the highest of them all."""
    labels = folder.labels
    if into not in labels.index:
        raise AplcError(f"labels: {unknown(labels, into)}; merge into a label that the model has, and rename that")
    target = _own(labels, into)
    counts = labels.counts.copy()
    aliases = dict(labels.aliases)
    for name in dict.fromkeys(names):
        if name == into:
            raise AplcError(f"can't merge {name!r} into itself")
        counts[target] += labels.counts[_own(labels, name)]
        aliases = {a: into if t == name else t for a, t in aliases.items()} | {name: into}
    counts[target] = min(int(counts[target]), folder.n_documents)
    changed = replace(labels, counts=counts, aliases=aliases)
    return replace(folder, labels=_next_version(changed, "merge", list(names), to=into))


def retire_labels(folder: ModelFolder, names: Sequence[str]) -> ModelFolder:
    """The model without ever predicting these labels again."""
    labels = folder.labels
    gone = set(labels.retired)
    for name in names:
        _own(labels, name)
        gone |= {name, *(a for a, target in labels.aliases.items() if target == name and a in labels.names)}
    aliases = {name: target for name, target in labels.aliases.items() if target not in gone}
    changed = replace(labels, aliases=aliases, retired=frozenset(gone))
    if not changed.n_in_use:
        raise AplcError("retire: that would leave no label to predict")
    return replace(folder, labels=_next_version(changed, "retire", list(names)))


def _own(labels: LabelSet, name: str) -> int:
    """The row of a label in use; an alias is refused with what it stands for."""
    (row,) = find_labels(labels, [name], "labels")
    if labels.names[row] != name:
        raise AplcError(f"labels: {name!r} stands for {labels.names[row]!r} already")
    return row


def check_learns(folder: ModelFolder) -> None:
    if not isinstance(folder.model, TaggingModel):
        words = (
            "a model of words (preset cpu) learns all labels at once: train it again with the new documents, "
            "aplc train CORPUS --preset cpu --out NEW"
        )
        exported = "an exported model can't learn; change the one it was exported from, and export that again"
        raise ModelError(words if isinstance(folder.model, WordModel) else exported)


def _check_new(labels: LabelSet, names: Sequence[str]) -> None:
    if not names:
        raise AplcError("labels: no new label to add; every label of the examples is in the model already")
    known = set(labels.names)
    for name in names:
        if not name.strip() or name != name.strip() or "\n" in name or "\r" in name:
            raise AplcError(f"labels: {name!r} is empty, begins or ends with a space, or has a line break")
        if name in labels.retired:
            raise AplcError(f"labels: {unknown(labels, name)}; choose another name")
        if name in known:
            raise AplcError(f"labels: the model has a label {name!r} already")


def _next_version(labels: LabelSet, change: str, names: list[str], **details: str) -> LabelSet:
    version = labels.version + 1
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    entry = {"version": version, "date": date, "change": change, "labels": names, **details}
    return replace(labels, version=version, history=(*labels.history, entry))


def _examples(
    documents: Iterable[Document], place: dict[str, int]
) -> tuple[list[str], list[list[int]], list[float], list[int]]:
    """Texts, their new labels and weights, and documents per new label: all that carry one, a sample of the rest."""
    rng = np.random.default_rng(0)
    carrying: list[tuple[str, list[int]]] = []
    others: list[str] = []
    n_others, counts = 0, [0] * len(place)
    for document in documents:
        own = [place[name] for name in document.labels if name in place]
        for j in own:
            counts[j] += 1
        if own:
            carrying.append((document.text, own))
            continue
        n_others += 1
        if len(others) < MAX_OTHERS:
            others.append(document.text)
        elif (at := int(rng.integers(n_others))) < MAX_OTHERS:  # a reservoir: each has the same chance to stay
            others[at] = document.text
    texts = [text for text, _ in carrying] + others
    truth = [own for _, own in carrying] + [[] for _ in others]
    each = n_others / max(len(others), 1)
    return texts, truth, [1.0] * len(carrying) + [each] * len(others), counts


@torch.inference_mode()
def _represent(folder: ModelFolder, texts: list[str], advance: Advance) -> Tensor:
    """The hidden states of texts, (N, D)."""
    model, collate = folder.model, folder.collator
    device = next(model.parameters()).device
    rows = folder.tokenizer.encode(texts)
    hidden_ND = torch.empty(len(rows), model.clusters.in_features)
    for members in by_length([min(len(row), collate.max_length) for row in rows], 32):
        batch = collate([rows[i] for i in members], [[]] * len(members))
        hidden_ND[torch.from_numpy(members)] = model.represent(batch.to(device)).float().cpu()
        advance(len(members))
    return hidden_ND


def _regress(
    hidden_ND: Tensor, truth: Sequence[Sequence[int]], weight_N: Tensor, n_labels: int
) -> tuple[Tensor, Tensor]:
    """Weights (L, D) and biases (L,) of one penalised logistic regression a label, by L-BFGS."""
    hidden_ND = hidden_ND.clone()  # out of inference mode
    pairs = torch.tensor([(i, j) for i, row in enumerate(truth) for j in row]).reshape(-1, 2)
    weight_LD, bias_L = torch.zeros(n_labels, hidden_ND.shape[1]), torch.zeros(n_labels)
    for start in range(0, n_labels, BLOCK):
        stop = min(start + BLOCK, n_labels)
        inside = (pairs[:, 1] >= start) & (pairs[:, 1] < stop)
        y_NC = torch.zeros(len(hidden_ND), stop - start)
        y_NC[pairs[inside, 0], pairs[inside, 1] - start] = 1.0
        total, positive_C = weight_N.sum(), weight_N @ y_NC
        linear = nn.Linear(hidden_ND.shape[1], stop - start)
        with torch.no_grad():
            linear.weight.zero_()
            linear.bias.copy_(torch.log(positive_C / (total - positive_C).clamp_min(0.5)))
        optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def closure(linear: nn.Linear = linear, y_NC: Tensor = y_NC, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            losses_NC = nn.functional.binary_cross_entropy_with_logits(linear(hidden_ND), y_NC, reduction="none")
            loss = (weight_N @ losses_NC).sum() + PENALTY / 2 * linear.weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        weight_LD[start:stop], bias_L[start:stop] = linear.weight.detach(), linear.bias.detach()
    if not (bool(weight_LD.isfinite().all()) and bool(bias_L.isfinite().all())):
        raise CorpusError("the new labels could not be learned: weights are not finite")
    return weight_LD, bias_L


def _extended(folder: ModelFolder, weight_LD: Tensor, bias_L: Tensor) -> TaggingModel:
    """A model with the same weights and one more cluster."""
    from aplc.nn.encoder import Encoder

    old = folder.model
    options: Any = old.clusters.options
    model = TaggingModel(
        Encoder.from_config(old.encoder.save_config()),
        folder.config,
        n_labels=old.clusters.n_labels + len(bias_L),
        cutoffs=tuple(options["cutoffs"]),
        added=(*options["added"], len(bias_L)),
    )
    last = f"clusters.added.{len(options['added'])}"
    model.load_state_dict(old.state_dict() | {f"{last}.weight": weight_LD, f"{last}.bias": bias_L})
    return model.eval().to(next(old.parameters()).device)
