"""What a words model and a network in one model will cost: the words first, then the network, in one process.

aplc plan corpus --preset both
"""

from dataclasses import dataclass
from typing import Any

from aplc.config import Config
from aplc.console import Screen
from aplc.data.source import Source
from aplc.plan import network, words
from aplc.plan.budget import fits
from aplc.plan.units import duration, in_bytes

WEIGHT_BYTES = 6
"""Of a word's weight for a label: itself and its label's id."""


@dataclass(frozen=True)
class BothPlan:
    words: words.WordsPlan
    network: network.Plan

    @property
    def peak(self) -> int:
        """The larger of the two: one comes after the other. The words' weights stay beside the network."""
        kept = WEIGHT_BYTES * self.words.n_weights
        return max(self.words.peak, self.network.sizes.memory().peak + kept)

    @property
    def fits(self) -> bool:
        return fits(self.peak, self.network.available)

    @property
    def seconds(self) -> float | None:
        own = self.network.total_seconds
        return None if own is None else self.words.seconds + own

    def to_dict(self) -> dict[str, Any]:
        return self.network.to_dict() | {
            "words": self.words.to_dict(),
            "memory_bytes": {"peak": self.peak, "available": self.network.available, "fits": self.fits},
            "seconds": self.seconds,
        }

    def render(self) -> str:
        total = "" if self.seconds is None else f"; {duration(self.seconds)} in all"
        verdict = "fits" if self.fits else "does not fit; raise data.min_count, or lower words.limit"
        return "\n".join(
            [
                self.network.render(),
                "",
                "and before the network, its words part: ridge regression, no epochs",
                f"  memory  about {in_bytes(self.words.peak)}; {in_bytes(self.peak)} at the peak of both: {verdict}",
                f"  time    about {duration(max(self.words.seconds, 1))}{total}",
            ]
        )


def plan(source: Source, config: Config, *, memory: float | None = None, screen: Screen | None = None) -> BothPlan:
    """Plan both parts on `source`. `memory` is what may be used, in bytes, if not what this machine has."""
    screen = screen or Screen(quiet=True)
    seen = network.survey(source, config, screen)
    return BothPlan(
        words.plan(source, config, memory=memory, screen=screen, seen=seen),
        network.plan(source, config, memory=memory, screen=screen, seen=seen),
    )
