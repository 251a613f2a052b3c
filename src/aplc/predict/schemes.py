"""Narrowing predictions by a vocabulary: labels of a scheme, of none of some schemes, or of a branch of the hierarchy.

    narrowed(labels, vocabulary, scheme=["topics"], not_scheme=["places"], below=["Animals"])

Several schemes, or several branches, are joined; the three kinds must all hold.
"""

import difflib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from aplc.data.checks import shorten
from aplc.data.labels import LabelSet
from aplc.data.vocabulary import Vocabulary
from aplc.errors import AplcError

NEAREST = 3
"""Known names that an error suggests."""
MANY, MANY_ENTRIES = 50_000, 1_000
"""Among more names, or entries of a vocabulary, than this, only rather similar ones are looked for. The latter are
looked for by servers, too, which should not take long over a wrong name."""


def narrowed(
    labels: LabelSet,
    vocabulary: Vocabulary | None,
    *,
    scheme: Sequence[str] = (),
    not_scheme: Sequence[str] = (),
    below: Sequence[str] = (),
) -> NDArray[np.bool_]:
    """For each label id, whether it may be predicted. A merged label goes with the one that it stands for."""
    mask = np.ones(len(labels), dtype=bool)
    for option, given in (("scheme", scheme), ("not_scheme", not_scheme), ("below", below)):
        if not len(given):
            continue
        if vocabulary is None:
            raise AplcError(
                f"{option}: the model has no vocabulary, so it knows no schemes and no hierarchy; train it with "
                "--vocabulary FILE"
            )
        if option == "below":
            found = frozenset().union(*(vocabulary.below(find_label(vocabulary, labels, name)) for name in given))
        else:
            found = frozenset().union(*(_scheme(vocabulary, name, option) for name in given))
        inside = np.fromiter((name in found for name in labels.names), bool, len(labels))[labels.stands_for]
        mask &= ~inside if option == "not_scheme" else inside
        if not (mask & labels.active).any():
            raise AplcError(f"{option} = {', '.join(map(shorten, given))}: leaves no label that could be predicted")
    return mask


def find_label(vocabulary: Vocabulary, labels: LabelSet, text: str) -> str:
    """A label of the hierarchy by itself, by a former name, or by what only one label is called."""
    label = labels.aliases.get(text, text)
    if label in vocabulary.entries or label in vocabulary.narrower:
        return label
    called = [entry.label for entry in vocabulary.entries.values() if entry.name == text]
    if len(called) == 1:
        return called[0]
    if called:
        raise AplcError(f"below: {len(called)} labels are called {shorten(text)!r}; give one of {_some(called)}")
    known = [name for entry in vocabulary.entries.values() for name in (entry.label, entry.name) if name]
    raise AplcError(f"below: {_unknown('label', text, known)}")


def _scheme(vocabulary: Vocabulary, scheme: str, option: str) -> frozenset[str]:
    if scheme not in vocabulary.schemes:
        if not vocabulary.schemes:
            raise AplcError(f"{option}: the model's vocabulary has no schemes")
        raise AplcError(f"{option}: {_unknown('scheme', scheme, vocabulary.schemes)}")
    return vocabulary.schemes[scheme]


def nearest(text: str, known: Iterable[str], n: int, many: int = MANY) -> list[str]:
    """The names most like a text, in any case."""
    folded = {name.casefold(): name for name in known}
    cutoff = 0.0 if len(folded) <= many else 0.6  # which spares most names the slow comparison
    return [folded[name] for name in difflib.get_close_matches(text.casefold(), folded, n=n, cutoff=cutoff)]


def _unknown(what: str, text: str, known: Iterable[str]) -> str:
    near = nearest(text, known, NEAREST, MANY_ENTRIES)
    hint = f"; the nearest are {_some(near)}" if near else ""
    return f"no {what} {shorten(text)!r} in the model's vocabulary{hint}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(shorten(name)) for name in names[:NEAREST]) + (", ..." if len(names) > NEAREST else "")
