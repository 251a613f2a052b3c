"""Choosing the ridge penalty from the data: by how well leave-one-out scores rank the labels of some documents.

Short texts and frequent labels want a higher penalty than long texts and rare labels: up to 1.2 points of P@5 lie
between 0.5 and 4 (bench/LOG.md). A sample of a few thousand documents tells which, in seconds: there the system is
small enough to be inverted for each penalty, and leave-one-out scores come for free. The price is that the best penalty
of a sample may not be exactly that of the whole corpus.
"""

import numpy as np
from scipy import sparse

from aplc.nn.distributed import world
from aplc.words.ridge import leave_one_out

CHOICES = (0.5, 1.0, 2.0, 4.0)
SAMPLE, FEWEST = 2_000, 200
"""Documents that are ranked; with fewer training documents than `FEWEST` the first choice is taken."""


def choose_ridge(x_NV: sparse.csr_array, y_NL: sparse.csr_array, seed: int) -> float:
    """The penalty of `CHOICES` with the highest mean DCG@5."""
    if x_NV.shape[0] < FEWEST:
        return CHOICES[0]
    sample = np.sort(np.random.default_rng(seed).permutation(x_NV.shape[0])[:SAMPLE])
    x_SV, y_SL = x_NV[sample], y_NL[sample]
    count_L = np.bincount(y_SL.indices, minlength=y_SL.shape[1])
    y_SL, count_L = y_SL[:, count_L > 0], count_L[count_L > 0]
    if not len(count_L):
        return CHOICES[0]
    own = CHOICES[world().rank :: world().size]  # processes share them out
    gains = world().gather({ridge: leave_one_out(x_SV, y_SL, ridge).dcg(count_L) for ridge in own})
    gain_of = {ridge: gain for found in gains for ridge, gain in found.items()}
    return max(CHOICES, key=lambda ridge: gain_of[ridge])
