"""Feedback: what a person made of a model's proposals, one JSON line for each reviewed document.

    {"text": "...", "accepted": ["Humans"], "rejected": ["Mice"], "added": ["Pain"], "id": "17", "time": "...",
     "model": {...}, "proposed": [["Humans", 0.98], ["Mice", 0.41]]}

`aplc serve --feedback FILE` appends such lines. As a document, the accepted and added labels are right, the rejected
ones wrong, and nothing is known of any other: `Document.partial`. A later line for the same document, by its id or else
by its text, replaces the earlier ones. A line is recognised by its keys, and has our own names for text and id whatever
the columns of a corpus are called. Finding the last line of each document takes one more pass over the file and some
hundred bytes a document.
"""

import datetime
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from aplc.data.columns import BadRow, Columns, clean_names

ACCEPTED, REJECTED, ADDED = "accepted", "rejected", "added"
KEYS = (ACCEPTED, REJECTED, ADDED)
PROPOSED, TIME = "proposed", "time"


class Review(NamedTuple):
    text: str
    labels: list[str]
    """Accepted and added: certainly right."""
    rejected: tuple[str, ...]
    """Certainly wrong."""
    id: str | None

    @property
    def key(self) -> bytes:
        return key_of(self.id, self.text)


def is_feedback(row: Mapping[str, Any], columns: Columns) -> bool:
    """Whether a row is feedback. Where labels are not read, as in tagging, it is a text like any other."""
    if columns.labels is None or columns.labels in row:
        return False
    return any(key in row for key in KEYS)


def read_review(row: Mapping[str, Any]) -> Review:
    text, _, identity = _OWN.read(row)
    accepted, rejected, added = (_labels(row, key) for key in KEYS)
    if both := set(rejected).intersection([*accepted, *added]):
        raise BadRow(f"label {min(both)!r} is rejected, and accepted or added, too; keep one")
    return Review(text, list(dict.fromkeys([*accepted, *added])), tuple(rejected), identity)


def read_proposals(row: Mapping[str, Any]) -> dict[str, float]:
    """What the model had proposed to the reviewer, with its probabilities; empty where the line does not say."""
    proposed = row.get(PROPOSED) or []
    try:
        found = {label: float(probability) for label, probability in proposed}
    except (TypeError, ValueError):
        raise BadRow(f'{PROPOSED!r} must be a list like [["label", 0.5], ...]') from None
    if not all(isinstance(label, str) and 0 <= probability <= 1 for label, probability in found.items()):
        raise BadRow(f"{PROPOSED!r} must be a list of labels, each with a probability between 0 and 1")
    return found


def read_day(row: Mapping[str, Any]) -> datetime.date | None:
    """When the document was reviewed; None where the line does not say."""
    time = row.get(TIME)
    if time is None:
        return None
    try:
        return datetime.datetime.fromisoformat(time).date()
    except (TypeError, ValueError):
        raise BadRow(f'{TIME!r} must be a time like "2026-11-18T04:10:00Z", found {time!r}') from None


def key_of(identity: str | None, text: str) -> bytes:
    """The same for reviews of the same document: by its id, or without one by its text."""
    kind, value = (b"text", text) if identity is None else (b"id", identity)
    return blake2b(value.encode("utf-8"), digest_size=16, person=kind).digest()


def last_lines(reviews: Iterable[tuple[int, Review]]) -> set[int]:
    """Of (line, review) pairs in the order of the file, the lines that no later one replaces."""
    last = {review.key: line for line, review in reviews}
    return set(last.values())


def _labels(row: Mapping[str, Any], key: str) -> list[str]:
    labels = row.get(key)
    if labels is None:
        return []
    if not isinstance(labels, list):
        raise BadRow(
            f'{key!r} must be a list of labels like ["a", "b"], found {type(labels).__name__}; if this is no feedback, '
            "rename the key or give the document 'labels'"
        )
    try:
        return clean_names(labels)
    except ValueError as error:
        raise BadRow(f"{key}: {error}") from None


_OWN = Columns(labels=None)
