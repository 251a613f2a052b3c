"""What looks wrong with a corpus: the same warnings in `aplc inspect` and `aplc train`, from a pass that both make.

    check = PartCheck()
    for document in documents:
        check.add(document)
        counts.update(document.labels)
    check.warnings("train") + label_warnings(counts, check)

Texts and ids are kept as 64-bit hashes, eight bytes each: sixteen megabytes for a million documents.
"""

import unicodedata
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from aplc.data.formats import Document

NEAR_CONSTANT = 0.5
"""A label of more than this share of the training documents gets a warning: with it any model has a high P@1."""
NAMED = 3
"""Labels named in a warning."""
LONG_NAME = 300
"""Characters of a label beyond which it is hardly a name."""
MISSING = frozenset(("nan", "none", "null", "<na>", "n/a", "#n/a"))
"""What other programs write where there is no value."""


@dataclass
class PartCheck:
    """What one pass over a part counts."""

    documents: int = 0
    labels: int = 0
    """Label assignments."""
    unlabelled: int = 0
    """Documents that are known to have no label."""
    partial: int = 0
    """Documents of which only some labels are known."""
    rejected: int = 0
    """Labels that these reject."""
    empty: int = 0
    """Texts of whitespace only."""
    texts: array = field(default_factory=lambda: array("q"), repr=False)
    """Hashes of the texts that are not empty."""
    ids: array = field(default_factory=lambda: array("q"), repr=False)

    def add(self, document: Document) -> None:
        self.documents += 1
        self.labels += len(document.labels)
        self.unlabelled += not document.labels and not document.partial
        self.partial += document.partial
        self.rejected += len(document.rejected)
        if not document.text or document.text.isspace():
            self.empty += 1
        else:
            self.texts.append(hash_text(document.text))
        if document.id is not None:
            self.ids.append(hash(document.id))

    @property
    def text_hashes(self) -> NDArray[np.int64]:
        return np.frombuffer(self.texts, dtype=np.int64)

    def warnings(self, part: str) -> list[str]:
        """What may spoil training or evaluation, and what to do about it."""
        found = []
        if part == "train" and (n := len(self.texts) - len(np.unique(self.text_hashes))):
            repeat = "repeats" if n == 1 else "repeat"
            found.append(
                f"{count(n, 'document')} of train {repeat} the text of another; such a text counts more than once"
            )
        if self.empty:
            found.append(f"{self.empty:,} texts of {part} are empty: nothing can be learned from them")
        if self.unlabelled == self.documents:
            found.append(
                f"no document of {part} has a label; if the column has another name, give --labels-column NAME"
            )
        elif self.unlabelled:
            have = "has no label and counts" if self.unlabelled == 1 else "have no label and count"
            found.append(f"{count(self.unlabelled, 'document')} of {part} {have} as 0 in evaluation")
        if n := len(self.ids) - len(np.unique(np.frombuffer(self.ids, dtype=np.int64))):
            found.append(
                f"{n:,} documents of {part} repeat the id of another: predictions can't be told apart by it; give each "
                "its own id, or give --id-column NAME if it is another column"
            )
        return found


def label_warnings(counts: Counter[str], check: PartCheck) -> list[str]:
    """On the training part's labels: odd or similar names, names that may hold several labels, frequent ones."""
    found = _odd_names(counts)
    if check.labels == check.documents - check.unlabelled:  # no document has two
        for separator in "|,;/":
            if (n := sum(separator in name for name in counts)) > len(counts) / 2:
                found.append(
                    f"every document has one label, and {n:,} of them contain {separator!r}: if these are several "
                    f"labels, use a list, or give --label-separator '{separator}'"
                )
    often = [(name, n / check.documents) for name, n in counts.most_common() if n > NEAR_CONSTANT * check.documents]
    if often:
        names = named([f"{shorten(name)} ({share:.0%})" for name, share in often])
        found.append(f"labels that most documents have: {names}; with them any model has a high P@1")
    return found


def _odd_names(counts: Counter[str]) -> list[str]:
    found = []
    spellings = Counter(name.casefold() for name in counts)
    if twins := [name for name in counts if spellings[name.casefold()] > 1]:
        pair = [shorten(name) for name in twins if name.casefold() == twins[0].casefold()][:2]
        found.append(
            f"{len(twins):,} labels differ from another only in case, as {pair[0]!r} and {pair[1]!r}: to a model "
            "they are different labels"
        )
    if missing := [name for name in counts if name.casefold() in MISSING]:
        names = named([f"{name!r} ({counts[name]:,} documents)" for name in missing])
        found.append(
            f"labels that look like missing values: {names}; leave them out, or they will be learned and predicted"
        )
    if long := [name for name in counts if len(name) > LONG_NAME]:
        longest = max(long, key=len)
        found.append(
            f"{len(long):,} labels have more than {LONG_NAME} characters, the longest {len(longest):,} "
            f"({shorten(longest)!r}): is this the right column for labels?"
        )
    return found


def named(names: Sequence[str]) -> str:
    """The first few of them, for a message."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def count(n: int, what: str) -> str:
    """A number and what it is of: 1 label, 2 labels."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def shorten(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."


def hash_text(text: str) -> int:
    """The same for texts that differ only in case, whitespace or Unicode normal form."""
    normal = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return int.from_bytes(blake2b(normal.encode(), digest_size=8).digest(), "little", signed=True)
