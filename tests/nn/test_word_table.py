"""Guards the lexical branch: it equals scikit-learn's TF-IDF times its table, and its gradient touches few rows."""

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfTransformer

from aplc.nn.words import WordTable


def test_forward_matches_tfidf_of_scikit_learn():
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.4, (50, 30))
    counts[:, 29] = 0
    counts[0, 29] = 3  # in a single document: left out
    table = WordTable(30, 8)
    table.set_idf((counts > 0).sum(0), len(counts))
    kept = np.where((counts > 0).sum(0) > 1, counts, 0)
    tfidf = TfidfTransformer(sublinear_tf=True).fit(counts).transform(kept)
    words = torch.arange(30).expand(50, 30)
    found = table(words, torch.from_numpy(counts).float())
    expected = tfidf @ table.table.weight.detach().numpy()
    assert torch.allclose(found, torch.from_numpy(expected).float(), atol=1e-5)


def test_documents_without_words_and_padding_count_nothing():
    table = WordTable(30, 8)
    table.set_idf(np.full(30, 5), 50)
    whole = table(torch.tensor([[3, 4, 0], [0, 0, 0]]), torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]))
    alone = table(torch.tensor([[3, 4]]), torch.tensor([[1.0, 2.0]]))
    assert torch.allclose(whole[0], alone[0])
    assert not whole[1].any()


def test_gradient_touches_the_words_of_the_batch():
    table = WordTable(30, 8)
    table.set_idf(np.full(30, 5), 50)
    table(torch.tensor([[3, 4], [4, 9]]), torch.ones(2, 2)).sum().backward()
    assert table.table.weight.grad.is_sparse
    assert table.table.weight.grad.coalesce().indices().flatten().tolist() == [3, 4, 9]
