"""The label set: names in order of falling training frequency, which is the order the clusters need.

Ties are broken by name, so that the order follows from the data alone. A label's id is its place in that order; ids
never leave the package. Labels of a vocabulary that no training document has come last, with a count of 0. Labels that
only occur in test data get ids from `len(labels)` on, for the metrics.

A label set lives on after training (`aplc labels`): added labels get the next ids, whatever their frequency; a renamed
label keeps its id, a retired one keeps it and is never predicted, and one merged into another stands for that one.
Every change makes a new version and leaves a line in the history.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aplc.errors import CorpusError, ModelError
from aplc.files import MB, atomic_write, check_file

NAMES, COUNTS = "labels.txt", "label_counts.npy"
NAME_BYTES = 1_000
"""Bytes that a label's name may have, on average."""


@dataclass(frozen=True)
class LabelSet:
    names: tuple[str, ...]
    counts: NDArray[np.int64]
    """Training documents with each label; never rising, but for labels that were added later."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Names that stand for another: former names of renamed labels, and labels merged into others."""
    retired: frozenset[str] = frozenset()
    version: int = 1
    """Goes up by one with every change."""
    history: tuple[dict[str, Any], ...] = ()
    """What was done: `version`, `date`, `change` and its labels."""

    def __post_init__(self) -> None:
        for name, target in self.aliases.items():
            if target not in self._ids or target in self.aliases or target in self.retired:
                raise ModelError(f"label {name!r} stands for {target!r}, which is not a label of this model")
        if not self.retired <= self._ids.keys():
            raise ModelError(f"retired label {min(self.retired - self._ids.keys())!r} is not a label of this model")

    @classmethod
    def from_counter(
        cls,
        counter: Counter[str],
        min_count: int = 1,
        *,
        more: Iterable[str] = (),
        name: str = "the training part",
    ) -> "LabelSet":
        """The labels of at least `min_count` documents, and then those of `more` that no document has, by name.

        `name` is the file's, for messages.
        """
        if not counter:
            raise CorpusError(
                f"{name}: no document has a label; rows need a list under 'labels', CSV files a column 'labels'; "
                "if it has another name, give --labels-column NAME"
            )
        kept = sorted(((-n, name) for name, n in counter.items() if n >= min_count))
        if not kept:
            most = max(counter.values())
            raise CorpusError(
                f"data.min_count = {min_count} leaves no label; the most frequent one has {most} documents"
            )
        kept += [(0, label) for label in sorted(set(more) - counter.keys())]
        return cls(tuple(label for _, label in kept), np.array([-n for n, _ in kept], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def n_seen(self) -> int:
        """Labels that training documents have: the first ones, before labels are added later."""
        return int((self.counts > 0).sum())

    @property
    def seen(self) -> "LabelSet":
        """These alone, of a set that was not changed since training."""
        return LabelSet(self.names[: self.n_seen], self.counts[: self.n_seen])

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def index(self) -> dict[str, int]:
        """Ids by name: of labels in use, and of names that stand for one of these."""
        if not self.aliases and not self.retired:
            return self._ids
        index = {name: i for name, i in self._ids.items() if name not in self.retired}
        return index | {name: self._ids[target] for name, target in self.aliases.items()}

    @cached_property
    def active(self) -> NDArray[np.bool_]:
        """For each id, whether the model may predict it."""
        active = np.ones(len(self), dtype=bool)
        active[[self._ids[name] for name in self.retired]] = False
        return active

    @cached_property
    def stands_for(self) -> NDArray[np.int64]:
        """For each id, the id of the label that it stands for: its own, unless it was merged."""
        ids = np.arange(len(self), dtype=np.int64)
        for name, target in self.aliases.items():
            if name in self._ids:
                ids[self._ids[name]] = self._ids[target]
        return ids

    @property
    def has_merged(self) -> bool:
        return any(name in self._ids for name in self.aliases)

    @property
    def n_in_use(self) -> int:
        """Labels a document can get."""
        return len(np.unique(self.stands_for[self.active]))

    def encode(self, names: Iterable[str]) -> list[int]:
        """Ids of the names that are in the set, each once; the others are left out."""
        ids = [self.index[name] for name in names if name in self.index]
        return list(dict.fromkeys(ids)) if self.aliases else ids

    def encode_all(self, names: Iterable[str], unseen: dict[str, int]) -> list[int]:
        """Ids of all names; one that is not in the set gets the next free id from `len(self)` on, kept in `unseen`.

        A retired label keeps its id here, so that metrics weigh it by its training documents.
        """
        ids = [self._id_of(name, unseen) for name in names]
        return list(dict.fromkeys(ids)) if self.aliases else ids

    def _id_of(self, name: str, unseen: dict[str, int]) -> int:
        if name in self.index:
            return self.index[name]
        if name in self.retired:
            return self._ids[name]
        return unseen.setdefault(name, len(self) + len(unseen))

    def save(self, folder: Path) -> None:
        with atomic_write(folder / NAMES) as out:
            out.write("".join(f"{name}\n" for name in self.names).encode("utf-8"))
        with atomic_write(folder / COUNTS) as out:
            np.save(out, self.counts, allow_pickle=False)

    def state(self) -> dict[str, Any]:
        """What config.json keeps of the set's changes."""
        return {
            "version": self.version,
            "aliases": self.aliases,
            "retired": sorted(self.retired),
            "history": list(self.history),
        }

    @classmethod
    def load(cls, folder: Path, n_labels: int, state: dict[str, Any]) -> "LabelSet":
        """From a model folder; `n_labels` and `state` are what its config.json says."""
        try:
            for file, limit in ((NAMES, n_labels * NAME_BYTES), (COUNTS, n_labels * 8)):
                check_file(folder / file, limit + MB)
            # Only \n ends a name: str.splitlines would also cut at the odd separators some names contain.
            names = tuple((folder / NAMES).read_bytes().decode("utf-8").removesuffix("\n").split("\n"))
            counts = _read_counts(folder / COUNTS)
            if len(names) != n_labels or len(set(names)) != n_labels:
                raise ValueError(f"{NAMES} has {len(set(names))} names, config.json {n_labels} labels")
            if counts.shape != (n_labels,) or counts.dtype != np.int64 or counts.min() < 0:
                raise ValueError(f"{COUNTS} is {counts.dtype}{counts.shape}, expected {n_labels} counts")
            aliases = {str(name): str(target) for name, target in dict(state.get("aliases", {})).items()}
            retired, version = frozenset(map(str, state.get("retired", ()))), int(state.get("version", 1))
            history = tuple(map(dict, state.get("history", ())))
            if not all(isinstance(entry.get("labels"), list) for entry in history):
                raise ValueError("the history of the label set has an entry without a list of labels")
            return cls(names, counts, aliases, retired, version, history)
        except (OSError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise ModelError(f"{folder}: can't read {NAMES} and {COUNTS}: {error}") from None


def _read_counts(path: Path) -> NDArray:
    try:
        # A map: a header that promises more than the file has is refused before memory is taken.
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # zip, tokens, syntax: numpy has many ways to dislike a header
        raise ValueError(f"{path.name} is damaged ({type(error).__name__})") from None
