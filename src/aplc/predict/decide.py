"""How many labels a document gets: the best k, those probable enough, a target precision, or the best expected F1.

    Rule(top_k=5)                  the five most probable
    Rule(threshold=0.5)            all with at least this probability
    Rule(precision=0.8)            the threshold at which 80 % of the held-out predictions were right
    Rule(expected_f1=True)         for each document as many as give the highest expected F1

`top_k` beside another rule is a limit. A document of which no label qualifies gets none: the model abstains.
Allow-lists, deny-lists, schemes and branches (`schemes.py`) narrow the label set before anything is chosen, so that the
best k are those of what is left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aplc.data.labels import LabelSet
from aplc.data.vocabulary import Vocabulary
from aplc.errors import AplcError
from aplc.models.calibration import DEPTH, Calibration
from aplc.predict.schemes import narrowed, nearest

TOP_K = 5
"""Labels of a document where no rule is given."""


def check_top_k(top_k: object) -> None:
    """Refuse all but whole numbers of at least 1; also True, which Python takes for 1."""
    if isinstance(top_k, bool) or not isinstance(top_k, Integral):
        raise AplcError(f"top_k = {top_k!r}: must be a whole number, such as 5")
    if int(top_k) < 1:
        raise AplcError(f"top_k = {top_k}: must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is asked for. At most one of `threshold`, `precision` and `expected_f1`."""

    top_k: int | None = None
    """At most this many labels; 5 where no other rule is given, 100 otherwise."""
    threshold: float | None = None
    """Only labels with at least this probability."""
    precision: float | None = None
    """Only labels probable enough that this share of them is right on held-out documents."""
    expected_f1: bool = False
    """As many labels as give the highest expected F1."""
    allow: Sequence[str] | None = None
    """Only these labels."""
    deny: Sequence[str] = ()
    """None of these labels."""
    scheme: Sequence[str] = ()
    """Only labels of these schemes of the vocabulary."""
    not_scheme: Sequence[str] = ()
    """No label of these schemes."""
    below: Sequence[str] = ()
    """Only these labels and narrower ones, by the vocabulary's hierarchy."""

    def __post_init__(self) -> None:
        if self.top_k is not None:
            check_top_k(self.top_k)
        for name, number in (("threshold", self.threshold), ("precision", self.precision)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, Real)):
                raise AplcError(f"{name} = {number!r}: must be a number, such as 0.5")
        if not isinstance(self.expected_f1, bool | np.bool_):
            raise AplcError(f"expected_f1 = {self.expected_f1!r}: must be True or False")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise AplcError(f"threshold = {self.threshold}: must be between 0 and 1")
        if self.precision is not None and not 0 < self.precision <= 1:
            raise AplcError(f"precision = {self.precision}: must be above 0 and at most 1")
        if (self.threshold is not None) + (self.precision is not None) + self.expected_f1 > 1:
            raise AplcError("threshold, precision and expected_f1 can't be combined; give one of them")
        for name, value in (("allow", self.allow), ("deny", self.deny)):
            if isinstance(value, str):
                raise AplcError(f"{name}: give a list of label names, not one string")
        for name in ("scheme", "not_scheme", "below"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, (value,))
            elif not all(isinstance(one, str) for one in value):
                raise AplcError(f"{name}: give a name, or a list of names")

    @property
    def has_choice(self) -> bool:
        return self.threshold is not None or self.precision is not None or self.expected_f1

    @property
    def is_narrow(self) -> bool:
        """Whether it asks for a part of the vocabulary."""
        return bool(len(self.scheme) or len(self.not_scheme) or len(self.below))

    @property
    def limit(self) -> int:
        """Labels a document can get."""
        return self.top_k or (DEPTH if self.has_choice else TOP_K)


@dataclass(frozen=True)
class Decision:
    """A rule for a certain model."""

    limit: int
    depth: int
    """Candidates to look at."""
    threshold: float
    expected_f1: bool
    allowed: NDArray[np.bool_] | None
    """For each label id, whether it may be predicted; None where all may."""

    @classmethod
    def of(
        cls, rule: Rule, labels: LabelSet, calibration: Calibration | None, vocabulary: Vocabulary | None = None
    ) -> "Decision":
        threshold = rule.threshold or 0.0
        if rule.precision is not None:
            if calibration is None:
                raise AplcError(
                    f"precision = {rule.precision}: the model has no calibration.json to take the threshold from; "
                    f"train it with documents held out (data.validation), or give a threshold"
                )
            threshold = calibration.threshold_for(rule.precision)
        return cls(
            limit=min(rule.limit, len(labels)),
            depth=min(max(rule.limit, DEPTH) if rule.expected_f1 else rule.limit, len(labels)),
            threshold=threshold,
            expected_f1=rule.expected_f1,
            allowed=_allowed(rule, labels, vocabulary),
        )

    def counts(self, ids: NDArray, probs: NDArray) -> NDArray[np.int64]:
        """How many of each row's labels, best first, the document gets."""
        chosen = (ids >= 0) & (probs >= self.threshold)
        n = chosen.sum(axis=1)
        if self.expected_f1:
            n = np.minimum(n, best_f1_counts(np.where(ids >= 0, probs, 0.0)))
        return np.minimum(n, self.limit)


def _allowed(rule: Rule, labels: LabelSet, vocabulary: Vocabulary | None) -> NDArray[np.bool_] | None:
    """Which ids may be predicted by the rule's lists, schemes and branches; None if all may."""
    listed = allowed_labels(labels, rule.allow, rule.deny)
    if not rule.is_narrow:
        return listed
    mask = narrowed(labels, vocabulary, scheme=rule.scheme, not_scheme=rule.not_scheme, below=rule.below)
    mask &= labels.active if listed is None else listed
    if not mask.any():
        raise AplcError("allow and deny leave no label of these schemes and branches")
    return mask


def best_f1_counts(probs: NDArray) -> NDArray[np.int64]:
    """For rows of falling probabilities, how many labels to take for the highest expected F1.

    Of a set with n labels, m of them right, F1 is 2 m / (n + true labels); the quotient of the expected values stands
    for the expected quotient. None at all is right, with an F1 of 1, if the document has no label, whose probability is
    the product of all 1 - p.
    """
    probs = probs.astype(np.float64)
    found = np.cumsum(probs, axis=1)
    expected = 2 * found / (np.arange(1, probs.shape[1] + 1) + probs.sum(axis=1, keepdims=True))
    best = expected.argmax(axis=1)
    none = np.prod(1 - probs, axis=1)
    return np.where(none > expected[np.arange(len(probs)), best], 0, best + 1)


def allowed_labels(labels: LabelSet, allow: Sequence[str] | None, deny: Sequence[str]) -> NDArray[np.bool_] | None:
    """Which ids may be predicted: not the retired ones, and what the lists say. None if that is all of them."""
    mask = labels.active.copy()
    if allow is not None:
        listed = np.zeros_like(mask)
        listed[find_labels(labels, allow, "allow")] = True
        mask &= listed[labels.stands_for]
        if not mask.any():
            raise AplcError("allow: the list is empty, so that no label could ever be predicted")
    if len(deny):
        listed = np.zeros_like(mask)
        in_use = [name for name in deny if name not in labels.retired]  # the others are never predicted anyway
        listed[find_labels(labels, in_use, "deny")] = True
        mask &= ~listed[labels.stands_for]
        if not mask.any():
            raise AplcError("deny: the list leaves no label that could be predicted")
    return None if mask.all() else mask


def find_labels(labels: LabelSet, names: Iterable[str], where: str) -> list[int]:
    """Ids of labels by name; an unknown name is an error with the nearest known one."""
    ids = []
    for name in names:
        if name not in labels.index:
            raise AplcError(f"{where}: {unknown(labels, name)}")
        ids.append(labels.index[name])
    return ids


def unknown(labels: LabelSet, name: str) -> str:
    """What to say of a name that is not in the label set."""
    if name in labels.retired:
        return f"the label {name!r} is retired"
    near = nearest(name, labels.index, 1)
    return f"no label {name!r}; the nearest is {near[0]!r}" if near else f"no label {name!r}"


def read_names(path: Path) -> list[str]:
    """Label names from a file, one a line; empty lines are passed over."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise AplcError(f"{path}: can't be read as a list of labels, one a line ({error})") from None
    return list(dict.fromkeys(name for line in lines if (name := line.strip())))
