"""Finding labels as somebody types: by a part of the label, of its name, or of another name it has."""

from bisect import bisect_right
from typing import Any

from aplc.models.trained import TrainedTagger


class LabelSearch:
    """An index of a model's labels. One string of all names: finding a part of one in a million takes milliseconds."""

    def __init__(self, tagger: TrainedTagger) -> None:
        self.tagger = tagger
        self._texts: list[str] = []
        self._owners: list[int] = []
        """Label ids of the texts, rising."""
        for i, label in enumerate(tagger.labels.names):
            for text in dict.fromkeys((label, *_other_names(tagger, label))):
                self._texts.append(" ".join(text.split("\n")))
                self._owners.append(i)
        folded = [text.casefold() for text in self._texts]
        self._haystack = "\n" + "\n".join(folded) + "\n"
        self._starts = [0]
        for text in folded:
            self._starts.append(self._starts[-1] + len(text) + 1)

    def __call__(self, query: str, limit: int, offset: int) -> dict[str, Any]:
        """Labels that contain the query, in any case: first those that begin with it, each group by frequency."""
        folded, labels = query.casefold(), self.tagger.labels
        matched: dict[int, str] = {}
        for place in self._find("\n" + folded) + self._find(folded):
            matched.setdefault(self._owners[place], self._texts[place])
        found = [i for i in matched if labels.active[i] and labels.stands_for[i] == i]
        return {
            "found": len(found),
            "labels": [self._described(i, matched[i]) for i in found[offset : offset + limit]],
        }

    def label_called(self, text: str) -> str | None:
        """The label that a text is, or stands for in any case: one label's name, else a synonym of one label only."""
        labels = self.tagger.labels
        if text in labels.index:
            return text
        wanted = " ".join(text.split()).casefold()
        owners = {self._owners[place] for place in self._equal(wanted)}
        owners = {i for i in owners if labels.active[i] and labels.stands_for[i] == i}
        named = {i for i in owners if wanted in (labels.names[i].casefold(), self._name(i).casefold())}
        found = named or owners
        return labels.names[found.pop()] if len(found) == 1 else None

    def _name(self, label_id: int) -> str:
        label, vocabulary = self.tagger.labels.names[label_id], self.tagger.vocabulary
        return label if vocabulary is None else vocabulary.name_of(label)

    def _described(self, label_id: int, matched: str) -> dict[str, Any]:
        labels = self.tagger.labels
        label = labels.names[label_id]
        return {
            "label": label,
            "name": self._name(label_id),
            "matched": matched,
            "documents": int(labels.counts[label_id]),
            "cluster": self.tagger.cluster_name(label_id),
        }

    def _equal(self, folded: str) -> list[int]:
        """Places of the texts that are this one."""
        found, at = [], self._haystack.find(f"\n{folded}\n")
        while at >= 0:
            found.append(bisect_right(self._starts, at) - 1)
            at = self._haystack.find(f"\n{folded}\n", at + 1)
        return found

    def _find(self, part: str) -> list[int]:
        """Places of the texts that contain `part`; a leading line break matches the beginning of a text."""
        if "\n" in part[1:] or not part.strip("\n"):
            return [] if "\n" in part[1:] else list(range(len(self._texts)))
        found: list[int] = []
        at = self._haystack.find(part)
        while at >= 0:
            found.append(bisect_right(self._starts, at) - 1)
            at = self._haystack.find(part, self._starts[found[-1] + 1])
        return found


def _other_names(tagger: TrainedTagger, label: str) -> tuple[str, ...]:
    entry = tagger.vocabulary.entries.get(label) if tagger.vocabulary else None
    return () if entry is None else tuple(filter(None, (entry.name, *entry.names)))
