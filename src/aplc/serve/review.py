"""A queue of documents to review, as `aplc review` writes it: the page works through it one document at a time.

What is done is what the feedback file has; so a review can be stopped at any time, continued by another person, and
shared between workers. Of the queue only each document's place in its file and a digest are held in memory.
"""

import json
from pathlib import Path
from typing import Any

from aplc.errors import CorpusError
from aplc.serve.feedback import Reviewed, key_of_line


class ReviewQueue:
    def __init__(self, path: Path, feedback: Path) -> None:
        """`path`: JSON Lines with at least `text`, and `id` where documents have one, first things first."""
        self.path, self.reviewed = path, Reviewed(feedback)
        self._places: list[int] = []
        self._keys: list[bytes] = []
        at = 0
        try:
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        key = key_of_line(line)
                        if key is None or not json.loads(line)["text"].strip():
                            raise CorpusError(
                                f"{path}:{number}: must be a JSON object with a text; "
                                "aplc review MODEL INPUT --out FILE writes such files"
                            )
                        self._places.append(at)
                        self._keys.append(key)
                    at += len(line)
        except OSError as error:
            raise CorpusError(f"{path}: can't be read ({error.strerror})") from None
        if not self._keys:
            raise CorpusError(f"{path}: has no documents to review")

    def __len__(self) -> int:
        return len(self._keys)

    def following(self, after: int) -> dict[str, Any]:
        """The first document behind place `after` that nobody has reviewed, else the first one before it.

        As `schema.Review` describes it; `position` is null when all are done.
        """
        done = self.reviewed.keys()
        counts = {"total": len(self), "done": sum(key in done for key in self._keys)}
        order = [*range(after + 1, len(self)), *range(min(after + 1, len(self)))]
        position = next((i for i in order if self._keys[i] not in done), None)
        if position is None:
            return {**counts, "position": None, "id": None, "text": None}
        with self.path.open("rb") as lines:
            lines.seek(self._places[position])
            document = json.loads(lines.readline())
        own_id = document.get("id")
        return {
            **counts,
            "position": position,
            "id": None if own_id is None else str(own_id),
            "text": document["text"],
        }
