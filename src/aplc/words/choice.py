"""Choosing from the data what suits it: the ridge penalty, and whether the beginning of a text counts more.

Short texts and frequent labels want a higher penalty than long texts and rare labels: up to 1.2 points of P@5 lie
between 0.5 and 4. Words at the beginning of an abstract say more than others, up to 0.8 points of P@3; in texts without
a beginning, to count them more costs two (bench/LOG.md). A sample of a few thousand documents tells which, in seconds:
there the system is small enough to be inverted for each choice, and leave-one-out scores come for free. The price is
that the best choice for a sample may not be exactly that for the whole corpus.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aplc.config import WordsConfig
from aplc.nn.distributed import world
from aplc.words.ridge import leave_one_out

RIDGES = (0.5, 1.0, 2.0, 4.0)
LEADS = {"auto": (False, True), "on": (True,), "off": (False,)}
SAMPLE, FEWEST = 2_000, 200
"""Documents that are ranked; with fewer than `FEWEST` the first choices are taken."""

Matrices = tuple[sparse.csr_array, sparse.csr_array]


class Choice(NamedTuple):
    ridge: float
    lead: bool


def sample_of(n_documents: int, seed: int) -> NDArray[np.int64]:
    """Which documents are asked."""
    return np.sort(np.random.default_rng(seed).permutation(n_documents)[:SAMPLE])


def choose(read: Callable[[bool], Matrices], words: WordsConfig) -> Choice:
    """The penalty first, then whether the lead counts again: of what `words` leaves open, the highest mean DCG@5.

    `read` returns X and Y of the sample, for either way to count the lead.
    """
    read, gain_of = cache(read), dict[Choice, float]()

    def best(choices: Sequence[Choice]) -> Choice:
        if len(choices) > 1:
            new = [choice for choice in choices if choice not in gain_of]
            own = new[world().rank :: world().size]  # processes share them out
            for found in world().gather({choice: _gain(*read(choice.lead), choice.ridge) for choice in own}):
                gain_of.update(found)
        return max(choices, key=lambda choice: gain_of.get(choice, 0))

    leads = LEADS[words.lead]
    ridge = best([Choice(ridge, leads[0]) for ridge in ([words.ridge] if words.ridge else RIDGES)]).ridge
    return best([Choice(ridge, lead) for lead in leads])


def _gain(x_SV: sparse.csr_array, y_SL: sparse.csr_array, ridge: float) -> float:
    """Mean DCG@5 of leave-one-out scores; 0 where there are too few documents for that."""
    count_L = np.bincount(y_SL.indices, minlength=y_SL.shape[1])
    has_L = count_L > 0
    if x_SV.shape[0] < FEWEST or not has_L.any():
        return 0.0
    return leave_one_out(x_SV, y_SL[:, has_L], ridge).dcg(count_L[has_L])
