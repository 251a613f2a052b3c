"""The lexical branch: a document's words, weighted by TF-IDF, summed into the hidden layer beside the encoder's state.

An encoder reads what a text means; that a rare label goes with a rare word is easier seen from the word itself. This is
a linear model over words, factored through the hidden layer, and costs next to nothing on a CPU.
Its gradient is sparse: a step touches the rows of the batch's words only.

Shapes: B documents, W words of the longest, D hidden width d_h.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class WordTable(nn.Module):
    """`size` rows of width `width`; see `aplc.data.words` for which row stands for a word."""

    idf: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(size, width, mode="sum", sparse=True)
        self.register_buffer("idf", torch.zeros(size))
        nn.init.normal_(self.table.weight, std=width**-0.5)  # a document's words, of norm 1 together, add up to norm 1

    def set_idf(self, document_counts: NDArray[np.int64], n_documents: int) -> None:
        """Inverse document frequencies, smoothed as scikit-learn's; words of a single document are left out."""
        idf = np.log((1 + n_documents) / (1 + document_counts)) + 1
        self.idf.copy_(torch.from_numpy(np.where(document_counts > 1, idf, 0.0)))

    def forward(self, words_BW: Tensor, counts_BW: Tensor) -> Tensor:
        """(B, D). Where a document has fewer than W words, counts are 0."""
        weights_BW = torch.where(counts_BW > 0, 1 + counts_BW.clamp_min(1).log(), 0) * self.idf[words_BW]
        weights_BW = nn.functional.normalize(weights_BW, dim=1)
        return self.table(words_BW, per_sample_weights=weights_BW.to(self.table.weight.dtype))
