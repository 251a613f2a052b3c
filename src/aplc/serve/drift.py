"""Drift: recent texts are unlike those the model was tried on at the end of training.

A model folder has, for the documents held out of training, the range in which the top probability and the share of
unknown words of 19 in 20 of them lie (`held_out.ranges` in config.json). Of texts of the same kind one in 20 is
outside. A warning says that of the last `WINDOW` texts more than `MOST` are. The price of so plain a rule: it takes
hundreds of texts to notice, and texts that are wrong in other ways are not noticed.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from aplc.models.trained import TrainedTagger

WINDOW = 1_000
"""Texts that are looked back on."""
FEWEST = 200
"""Texts before anything is said."""
MOST = 0.15
"""Share of texts outside the range that is too many: three times what is expected."""
SLACK = 0.01
"""How far outside a value must be: a model that is sure of all its held-out documents has a range of nothing."""
WHAT = {"top_probability": "top probability", "unknown_words": "share of unknown words"}


class Drift:
    """Keeps the last texts of one model. Not for several threads at once."""

    def __init__(self, tagger: TrainedTagger) -> None:
        self.ranges = _ranges(tagger.held_out)
        self._outside: dict[str, deque[bool]] = {name: deque(maxlen=WINDOW) for name in self.ranges}

    def add(self, name: str, values: Iterable[float]) -> None:
        """Values of more texts; nothing happens if the model folder has no range for them."""
        if name in self.ranges:
            low, high = self.ranges[name]
            self._outside[name].extend(not low - SLACK <= value <= high + SLACK for value in values)

    def share(self, name: str) -> float:
        """Of the last texts, how many were outside; 0 while there are too few."""
        outside = self._outside.get(name, ())
        return sum(outside) / len(outside) if len(outside) >= FEWEST else 0.0

    def warnings(self) -> list[str]:
        """A sentence for each measure by which recent texts are unlike those of training."""
        return [
            f"The {WHAT[name]} of {self.share(name):.0%} of the last {len(self._outside[name]):,} texts is outside the "
            f"range of held-out training documents, {low:.3g} to {high:.3g}; 5% are expected."
            for name, (low, high) in self.ranges.items()
            if self.share(name) > MOST
        ]


def _ranges(held_out: dict[str, Any] | None) -> dict[str, tuple[float, float]]:
    """What the model folder says, as far as it can be understood: it may come from anywhere, or be an older one."""
    found = (held_out or {}).get("ranges")
    ranges: dict[str, tuple[float, float]] = {}
    for name in WHAT:
        pair = found.get(name) if isinstance(found, dict) else None
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, int | float) for end in pair):
            ranges[name] = float(pair[0]), float(pair[1])
    return ranges
