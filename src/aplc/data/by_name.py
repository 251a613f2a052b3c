"""Documents that carry what labels are called, where a vocabulary has the labels themselves: names in a library's
catalogue, URIs in its thesaurus.

    match = ByName(vocabulary)
    match(Document("...", ["Dogs", "http://example.org/c1"])).labels         # http://example.org/d1, .../c1

A label that is known stays as it is. Another one that is the name of one entry, or a synonym of one only, in any case,
stands for that entry's label; all others stay as they are. To keep apart what would be joined, give it an entry.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from aplc.data.checks import count, named, shorten
from aplc.data.formats import Document
from aplc.data.vocabulary import Vocabulary, folded


class ByName:
    """Remembers what it has matched."""

    def __init__(self, vocabulary: Vocabulary, known: Collection[str] | None = None) -> None:
        """`known`: labels that stay as they are, and that names may stand for; the vocabulary's, if not given."""
        self.vocabulary = vocabulary
        self.known = vocabulary.entries.keys() if known is None else known
        self.found: dict[str, str] = {}
        """Labels by the names that stand for them."""
        self.ambiguous: set[str] = set()
        """Names that several entries have."""

    def __call__(self, document: Document) -> Document:
        labels, rejected = document.labels, document.rejected
        if all(label in self.known for label in labels) and all(label in self.known for label in rejected):
            return document
        right = self.labels(labels)
        wrong = tuple(label for label in self.labels(rejected) if label not in right)
        return replace(document, labels=right, rejected=wrong)

    def labels(self, names: Iterable[str]) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(map(self.label, names)))

    def label(self, name: str) -> str:
        if name in self.known:
            return name
        if name not in self.found:
            label = self.vocabulary.called.get(folded(name))
            if label == "":
                self.ambiguous.add(name)
            if not label or label not in self.known:
                return name
            self.found[name] = label
        return self.found[name]

    def describe(self) -> list[str]:
        """What to tell a user: a line on the names that were matched, and one on those that can't be."""
        said = []
        if self.found:
            name, label = next(iter(self.found.items()))
            are = "is a name" if len(self.found) == 1 else "are names"
            said.append(
                f"names: {count(len(self.found), 'label')} of the documents {are} in {self.vocabulary.file}, and stand "
                f"for its labels ({shorten(name)!r} for {shorten(label)!r})"
            )
        if self.ambiguous:
            some = named([repr(shorten(name)) for name in sorted(self.ambiguous)])
            said.append(
                f"warning: {count(len(self.ambiguous), 'name')} that several entries have stand for none of them: "
                f"{some}; give documents the labels instead"
            )
        return said
