"""Labels that come later: taken out of a corpus, and given back by name, with a few documents, and by a full training.

    python bench/later.py CORPUS --preset words

A hundred labels that at least 20 training documents have are taken out of all training documents. `labels add` gives
them back to the model that was trained without them: by their names alone, then with 1, 3 and 10 of their documents.
Recall of these labels among the first 5 and 20 on the test part, beside a model that had them from the start.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aplc import Tagger
from aplc.data.corpus import Corpus
from aplc.data.formats import Document
from aplc.models.trained import TrainedTagger
from aplc.predict.search import predict_documents
from aplc.train.relabel import add_labels

FEWEST, DOCUMENTS = 20, (0, 1, 3, 10)


def recall(trained: TrainedTagger, test: Sequence[Document], labels: set[str]) -> list[float]:
    """Of these labels, among the first 5 and 20."""
    found, true = np.zeros(2), 0
    for block, ids, _ in predict_documents(trained, test, 20):
        for document, own in zip(block, ids, strict=True):
            wanted = labels & set(document.labels)
            true += len(wanted)
            names = [trained.labels.names[i] for i in own if i >= 0]
            found += [len(wanted & set(names[:k])) for k in (5, 20)]
    return (100 * found / true).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--preset", default="words")
    parser.add_argument("--labels", type=int, default=100)
    options = parser.parse_args()
    corpus = Corpus.open(options.corpus)
    train, test = list(corpus.documents("train")), list(corpus.documents("test"))
    counts = Counter(label for document in train for label in document.labels)
    frequent = sorted(label for label, n in counts.items() if n >= FEWEST)
    rng = np.random.default_rng(0)
    chosen = rng.choice(frequent, min(options.labels, len(frequent)), replace=False).tolist()
    taken, carrying = set(chosen), defaultdict(list)
    for i in rng.permutation(len(train)):
        for label in train[i].labels:
            carrying[label].append(train[i])

    def fitted(out: set[str]) -> TrainedTagger:
        labels = [[label for label in document.labels if label not in out] for document in train]
        return Tagger(options.preset).fit([document.text for document in train], labels).trained

    print("| | recall@5 | recall@20 |\n| --- | ---: | ---: |")
    base = fitted(taken)
    for n in DOCUMENTS:
        examples = {id(document): document for label in chosen for document in carrying[label][:n]}
        kept = {label: set(map(id, carrying[label][:n])) for label in chosen}
        documents = [  # a document is an example of the labels that it was chosen for, and says nothing of others
            Document(document.text, [label for label in chosen if key in kept[label]])
            for key, document in examples.items()
        ]
        row = recall(add_labels(base, documents, chosen), test, taken)
        print(f"| {f'name and {n} documents' if n else 'name alone'} | {row[0]:.1f} | {row[1]:.1f} |", flush=True)
    row = recall(fitted(set()), test, taken)
    print(f"| trained with all of their documents | {row[0]:.1f} | {row[1]:.1f} |")


if __name__ == "__main__":
    main()
