"""A vocabulary beside the corpus: what labels are called, their synonyms, their place in a hierarchy, their schemes.

    vocabulary = Vocabulary.read(Path("vocabulary.jsonl"))
    vocabulary.name_of("gnd:4030958-7")                      # "Klassifikation"
    vocabulary.below("animals")                              # that label and all narrower ones

`entry_files.py` and `skos.py` read files; here every entry is checked, because files may come from anywhere: lengths,
control characters, labels twice, cycles. Entries are small objects: some 400 bytes each, texts included.
"""

import contextlib
import gzip
import hashlib
import json
import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aplc.data.checks import named, shorten
from aplc.data.columns import BadRow
from aplc.data.entry_files import FIELDS, SUFFIXES, Row, read_rows
from aplc.errors import CorpusError, ModelError
from aplc.files import atomic_write

VOCABULARY = "vocabulary.jsonl"
"""In a model folder."""
LONGEST = {"label": 1_000, "name": 1_000, "names": 1_000, "broader": 1_000, "scheme": 1_000, "description": 100_000}
"""Characters of a value: far beyond what people write."""
MOST = 10_000
"""Values of a list."""

_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, line breaks among them, and halves of surrogate pairs."""


@dataclass(frozen=True, slots=True)
class Entry:
    label: str
    """What documents carry: an id, a URI or a name."""
    name: str = ""
    """What people call it; empty where the label says it."""
    names: tuple[str, ...] = ()
    """Synonyms, and names in other languages."""
    broader: tuple[str, ...] = ()
    """Labels of which this one is a part or a kind; they need not have entries."""
    schemes: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True)
class Vocabulary:
    """Entries by label, in the order of the file. There is no cycle in `broader`."""

    entries: Mapping[str, Entry]
    file: str = field(default="vocabulary", compare=False)
    """For messages: where it was read from."""

    @classmethod
    def read(cls, path: Path, language: str | None = None) -> "Vocabulary":
        """From a file of any format (`SUFFIXES`); `language` chooses names where there are several languages."""
        try:
            rows, file = read_rows(path, language)
            return _checked(rows, file, path)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CorpusError(f"{path}: broken gzip file ({error}); download or compress it again") from None

    @classmethod
    def of(cls, given: "Vocabulary | Mapping[str, object] | Path | str") -> "Vocabulary":
        """What Python callers pass: a file, or a mapping of labels to names or to dicts like a file's rows."""
        if isinstance(given, Vocabulary):
            return given
        if isinstance(given, Path | str):
            return cls.read(Path(given))
        if not isinstance(given, Mapping):
            raise CorpusError(
                f"vocabulary: expected a file's path or a mapping of labels to names, found {type(given).__name__}"
            )
        rows = (
            (f"entry {number}", {**_fields(value), "label": label})
            for number, (label, value) in enumerate(given.items(), start=1)
        )
        return _checked(rows, "vocabulary", "vocabulary")

    def name_of(self, label: str) -> str:
        """The entry's name, or the label itself."""
        entry = self.entries.get(label)
        return entry.name or label if entry else label

    def shown(self, label: str) -> str:
        """For people: the name with the label beside it, or the label where it says the same."""
        name = self.name_of(label)
        return label if name == label else f"{name} ({label})"

    @cached_property
    def called(self) -> Mapping[str, str]:
        """Labels by `folded` names, and by synonyms that are nobody's name; "" for what several labels are called."""
        names: dict[str, str] = {}
        others: dict[str, str] = {}
        for entry in self.entries.values():
            for found, texts in ((names, (entry.name,)), (others, entry.names)):
                for text in {folded(text) for text in texts if text}:
                    found[text] = "" if text in found else entry.label
        return others | names

    @cached_property
    def narrower(self) -> Mapping[str, list[str]]:
        """Labels just below each label that has such."""
        found: dict[str, list[str]] = defaultdict(list)
        for entry in self.entries.values():
            for label in entry.broader:
                found[label].append(entry.label)
        return dict(found)

    def below(self, label: str) -> frozenset[str]:
        """A branch: the label and all narrower ones."""
        return _reach([label], lambda one: self.narrower.get(one, ()))

    def above(self, labels: Iterable[str]) -> frozenset[str]:
        """The labels and all broader ones."""
        return _reach(labels, lambda one: self.entries[one].broader if one in self.entries else ())

    @cached_property
    def schemes(self) -> Mapping[str, frozenset[str]]:
        """Labels of each scheme."""
        found: dict[str, set[str]] = defaultdict(set)
        for entry in self.entries.values():
            for scheme in entry.schemes:
                found[scheme].add(entry.label)
        return {scheme: frozenset(labels) for scheme, labels in sorted(found.items())}

    @cached_property
    def key(self) -> str:
        """A hash of the content."""
        digest = hashlib.blake2b(digest_size=16)
        for entry in self.entries.values():
            digest.update(_line(entry))
        return digest.hexdigest()

    def warnings(self) -> list[str]:
        """What looks wrong, and what to do about it."""
        unknown = [label for label in self.narrower if label not in self.entries]
        if not unknown:
            return []
        return [
            f"{self.file}: {len(unknown):,} labels that others have as broader ones have no entry: "
            f"{named([shorten(label) for label in unknown])}; add them if they should be labels, too"
        ]

    def only(self, labels: Iterable[str]) -> "Vocabulary":
        """The entries of these labels and of all broader ones."""
        kept = self.above(labels)
        return replace(self, entries={label: entry for label, entry in self.entries.items() if label in kept})

    def renamed(self, old: str, new: str) -> "Vocabulary":
        """The vocabulary of a model one of whose labels has another name now; an entry that `new` has already stays."""
        if old not in self.entries or new in self.entries:
            return self

        def change(entry: Entry) -> Entry:
            broader = tuple(new if label == old else label for label in entry.broader)
            return replace(entry, label=new if entry.label == old else entry.label, broader=broader)

        entries = (change(entry) if old in (entry.label, *entry.broader) else entry for entry in self.entries.values())
        return replace(self, entries={entry.label: entry for entry in entries})

    def save(self, folder: Path) -> None:
        """Into a model folder."""
        with atomic_write(folder / VOCABULARY) as out:
            out.writelines(map(_line, self.entries.values()))

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary | None":
        """A model folder's vocabulary, if it has one."""
        if not (folder / VOCABULARY).is_file():
            return None
        try:
            return cls.read(folder / VOCABULARY)
        except CorpusError as error:
            raise ModelError(str(error)) from None


def folded(name: str) -> str:
    """The same for names that differ only in case, whitespace or Unicode normal form."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def vocabulary_file(folder: Path) -> Path | None:
    """The vocabulary in a corpus folder."""
    found = [path for suffix in SUFFIXES if (path := folder / f"vocabulary{suffix}").is_file()]
    if len(found) > 1:
        raise CorpusError(f"{folder}: both {found[0].name} and {found[1].name}; keep one, or give --vocabulary FILE")
    return found[0] if found else None


def _line(entry: Entry) -> bytes:
    """An entry as a line of vocabulary.jsonl, without what is empty."""
    values = (entry.label, entry.name, entry.names, entry.broader, entry.schemes, entry.description)
    row = {name: value for name, value in zip(FIELDS, values, strict=True) if value}
    return (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8")


def _reach(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> frozenset[str]:
    """All that can be reached in steps, the start included."""
    seen = set(start)
    waiting = list(seen)
    while waiting:
        new = [label for label in step(waiting.pop()) if label not in seen]
        seen.update(new)
        waiting += new
    return frozenset(seen)


def _checked(rows: Iterable[Row], file: str, path: Path | str) -> Vocabulary:
    """`file` is what the vocabulary is called, `path` what errors name."""
    entries: dict[str, Entry] = {}
    places: dict[str, str] = {}
    shared: dict[str, str] = {}
    for where, row in rows:
        try:
            entry = _entry(row, shared)
        except BadRow as bad:
            raise CorpusError(f"{path}, {where}: {bad}") from None
        if entry.label in entries:
            before = places[entry.label]
            raise CorpusError(f"{path}, {where}: {shorten(entry.label)!r} has an entry already, in {before}; keep one")
        entries[entry.label], places[entry.label] = entry, where
    if not entries:
        raise CorpusError(f"{path}: no entries in it; is it the right file?")
    if cycle := find_cycle(entries):
        steps = [repr(shorten(label)) for label in cycle[:5]] + (["..."] if len(cycle) > 5 else [])
        raise CorpusError(
            f"{path}, {places[cycle[0]]}: a cycle, {' is below '.join([*steps, steps[0]])}; remove one of these steps"
        )
    return Vocabulary(entries, file)


def find_cycle(entries: Mapping[str, Entry]) -> list[str]:
    """Labels each of which is followed by a broader one, the last by the first; empty if there is no cycle."""
    open_above = {e.label: sum(label in entries for label in e.broader) for e in entries.values() if e.broader}
    narrower: dict[str, list[str]] = defaultdict(list)
    for label in open_above:
        for above in entries[label].broader:
            narrower[above].append(label)
    # Take away, again and again, what has nothing above it; a cycle and what is below it is left.
    done = [label for label in entries if not open_above.get(label)]
    while done:
        for label in narrower.pop(done.pop(), ()):
            open_above[label] -= 1
            if not open_above[label]:
                done.append(label)
    left = {label for label, n in open_above.items() if n}
    if not left:
        return []
    path: dict[str, None] = {}
    label = next(iter(left))
    while label not in path:
        path[label] = None
        label = next(above for above in entries[label].broader if above in left)
    listed = list(path)
    return listed[listed.index(label) :]


def _fields(value: object) -> Mapping[str, Any]:
    if isinstance(value, Entry):
        return {"name": value.name, "names": value.names, "broader": value.broader, "scheme": value.schemes,
                "description": value.description}  # fmt: skip
    return value if isinstance(value, Mapping) else {"name": value}


def _entry(row: Mapping[str, Any], shared: dict[str, str]) -> Entry:
    """The entry of a row, checked; `shared` has one object for all strings that are equal."""
    label = row.get("label")
    if label is None:
        raise BadRow(f'no \'label\'; an entry is like {{"label": "...", "name": "..."}}, with {", ".join(FIELDS)}')
    label = _text("label", label)
    if not label:
        raise BadRow("the label is empty")
    name = _text("name", row.get("name"))
    names = _texts("names", row.get("names"))
    return Entry(
        shared.setdefault(label, label),
        name,
        tuple(text for text in dict.fromkeys(names) if text != name) if names else (),
        _shared("broader", row, shared),
        _shared("scheme", row, shared),
        _text("description", row.get("description")),
    )


def _shared(key: str, row: Mapping[str, Any], shared: dict[str, str]) -> tuple[str, ...]:
    texts = _texts(key, row.get(key))
    return tuple(shared.setdefault(text, text) for text in dict.fromkeys(texts)) if texts else ()


def _texts(key: str, value: object) -> list[str]:
    """The strings of a list; one string stands for a list of one."""
    if not value:
        return []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise BadRow(f"{key!r} must be a list of strings, found {type(value).__name__}")
    if len(value) > MOST:
        raise BadRow(f"{key!r} has {len(value):,} values; an entry may have {MOST:,}")
    with contextlib.suppress(TypeError):  # not strings
        together = "".join(value)
        if len(together) <= LONGEST[key] and not _UNFIT.search(together):  # one look at all, where nothing is wrong
            return [text for text in map(str.strip, value) if text]
    return [text for text in (_text(key, item) for item in value) if text]


def _text(key: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRow(f"{key!r} must be a string, found {type(value).__name__}; quote it")
    text = value.strip()
    if len(text) > LONGEST[key]:
        raise BadRow(f"{key!r} has {len(text):,} characters ({shorten(text)!r}); it may have {LONGEST[key]:,}")
    if found := _UNFIT.search(text):
        if key == "label" or found[0] not in "\t\n\r":
            what = "a line break or tab" if found[0] in "\t\n\r" else f"the control character U+{ord(found[0]):04X}"
            what = "half of a surrogate pair, which is not valid Unicode" if found[0] >= "\ud800" else what
            raise BadRow(f"{key!r} has {what} at character {found.start() + 1}; remove it")
        flat = re.sub(r"[\t\n\r ]+", " ", text)  # texts of several lines
        return _text(key, flat)
    return text
