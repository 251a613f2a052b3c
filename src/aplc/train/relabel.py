"""Label sets that live on after training: add, rename, merge and retire labels of a model, without a retrain.

    changed = add_labels(trained, documents, ["COVID-19"])       # learned from examples, in seconds to minutes
    changed = rename_label(trained, "Sex Factors", "Sex Characteristics")

Each function gives a new `TrainedTagger` with the next label-set version. What is not changed keeps its predictions.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from aplc.data.examples import Examples
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.reservoir import Reservoir
from aplc.errors import AplcError
from aplc.models.base import function_for
from aplc.models.trained import TrainedTagger
from aplc.predict.decide import find_labels, unknown

MAX_OTHERS = 20_000
"""Documents without a new label that are used, drawn at random: beyond that they add time, and little else."""
REPORTED, UNSURE = 5, 0.5
"""At most `REPORTED` labels are named whose examples, left out, are less probable than `UNSURE`."""

Advance = Callable[[int], None]


def add_labels(
    trained: TrainedTagger,
    documents: Iterable[Document],
    names: Sequence[str],
    *,
    advance: Advance = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> TrainedTagger:
    """The model with labels it did not have, learned from documents that carry them and from others that don't.

    A label without an example starts from its name. `advance` is called as the work goes on, `say` with labels that
    have too few examples to be found.
    """
    enlarge = function_for(trained.model.kind, "add_labels")
    names = list(dict.fromkeys(names))
    _check_new(trained.labels, names)
    place = {name: j for j, name in enumerate(names)}
    texts, truth, weights, counts = _examples(documents, place)
    examples = Examples(names, texts, truth, weights, trained.labels, trained.n_documents)
    model, left_out = enlarge(trained.model, trained.config, examples, advance)
    for j, probability in sorted(left_out.items(), key=lambda item: item[1])[:REPORTED]:
        if counts[j] and probability < UNSURE:
            say(
                f"{names[j]}: too few examples ({counts[j]:,}): one that is left out gets a probability of "
                f"{probability:.3f}, so the label will seldom be found; add more examples"
            )
    labels = trained.labels
    aliases = {name: target for name, target in labels.aliases.items() if name not in place}
    grown = replace(
        labels,
        names=(*labels.names, *names),
        counts=np.concatenate([labels.counts, np.array(counts, dtype=np.int64)]),
        aliases=aliases,
    )
    return replace(trained, model=model, labels=_next_version(grown, "add", names))


def rename_label(trained: TrainedTagger, old: str, new: str) -> TrainedTagger:
    """The model with another name for a label. The old name still stands for it in corpora and lists."""
    labels = trained.labels
    label_id = _own(labels, old)
    _check_new(labels, [new])
    names = (*labels.names[:label_id], new, *labels.names[label_id + 1 :])
    aliases = {name: new if target == old else target for name, target in labels.aliases.items() if name != new}
    changed = replace(labels, names=names, aliases=aliases | {old: new})
    vocabulary = trained.vocabulary and trained.vocabulary.renamed(old, new)
    return replace(trained, labels=_next_version(changed, "rename", [old], to=new), vocabulary=vocabulary)


def merge_labels(trained: TrainedTagger, names: Sequence[str], into: str) -> TrainedTagger:
    """The model with `names` as parts of the label `into`, whose probability becomes the highest of them all."""
    labels = trained.labels
    if into not in labels.index:
        raise AplcError(f"labels: {unknown(labels, into)}; merge into a label that the model has, and rename that")
    target = _own(labels, into)
    counts = labels.counts.copy()
    aliases = dict(labels.aliases)
    for name in dict.fromkeys(names):
        if name == into:
            raise AplcError(f"can't merge {name!r} into itself; leave it out of the labels to merge")
        counts[target] += labels.counts[_own(labels, name)]
        aliases = {a: into if t == name else t for a, t in aliases.items()} | {name: into}
    counts[target] = min(int(counts[target]), trained.n_documents)
    changed = replace(labels, counts=counts, aliases=aliases)
    return replace(trained, labels=_next_version(changed, "merge", list(names), to=into))


def retire_labels(trained: TrainedTagger, names: Sequence[str]) -> TrainedTagger:
    """The model without ever predicting these labels again."""
    labels = trained.labels
    gone = set(labels.retired)
    for name in names:
        _own(labels, name)
        gone |= {name, *(a for a, target in labels.aliases.items() if target == name and a in labels.names)}
    aliases = {name: target for name, target in labels.aliases.items() if target not in gone}
    changed = replace(labels, aliases=aliases, retired=frozenset(gone))
    if not changed.n_in_use:
        raise AplcError("retire: that would leave no label to predict")
    return replace(trained, labels=_next_version(changed, "retire", list(names)))


def _own(labels: LabelSet, name: str) -> int:
    """The id of a label in use; an alias is refused with what it stands for."""
    (label_id,) = find_labels(labels, [name], "labels")
    if labels.names[label_id] != name:
        raise AplcError(f"labels: {name!r} stands for {labels.names[label_id]!r} already")
    return label_id


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
            waiting = not labels.counts[labels.names.index(name)]
            cure = ", without training documents: train again with --more FILE to give it some" if waiting else ""
            raise AplcError(f"labels: the model has a label {name!r} already{cure}")


def _next_version(labels: LabelSet, change: str, names: list[str], **details: str) -> LabelSet:
    version = labels.version + 1
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    entry = {"version": version, "date": date, "change": change, "labels": names, **details}
    return replace(labels, version=version, history=(*labels.history, entry))


def _examples(
    documents: Iterable[Document], place: dict[str, int]
) -> tuple[list[str], list[list[int]], list[float], list[int]]:
    """Texts, their new labels and weights, and documents per new label: all that carry one, a sample of the rest."""
    carrying: list[tuple[str, list[int]]] = []
    others = Reservoir[str](MAX_OTHERS, seed=0)
    counts = [0] * len(place)
    for document in documents:
        if document.partial:
            raise AplcError(
                f"labels: line {document.line} is feedback, which says nothing of most labels; to add labels takes "
                "documents with all of theirs, or train again with --more"
            )
        own = [place[name] for name in document.labels if name in place]
        for j in own:
            counts[j] += 1
        if own:
            carrying.append((document.text, own))
        else:
            others.add(document.text)
    texts = [text for text, _ in carrying] + others.items
    truth = [own for _, own in carrying] + [[] for _ in others.items]
    each = others.n_seen / max(len(others.items), 1)
    return texts, truth, [1.0] * len(carrying) + [each] * len(others.items), counts
