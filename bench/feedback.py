"""Does feedback help? Reviews of some test documents, replayed from their true labels; figures on the other ones.

    python bench/feedback.py CORPUS --out DIR --preset words --reviewed 500 --proposed 10 --added 1
    python bench/feedback.py CORPUS --out DIR --proposed 5 --added 0 --draws 3 --models masked negative

A model is trained on the train part, and tags documents drawn from the test part. A reviewer sees its `--proposed` best
labels, accepts those that are right, rejects the others, and adds labels that are missing: all of them (`--added all`),
or the first so many. Then three more models are trained, and all four are scored on the test documents that nobody
reviewed:

    masked      with the feedback (`aplc train --more`): labels that were not mentioned are unknown
    negative    the same documents with accepted and added labels, and all else taken as wrong
    in full     the same documents with all of their true labels: what a complete review would give

With `--added all` the last two are the same: nothing is missing then, and to call all else wrong is right. What sets
`masked` apart shows where reviewers don't add all. Differences have paired bootstrap intervals (95 %). With `--draws`,
all of this is done for several sets of reviewed documents that have none in common, and a document's scores are means
over them: what is due to the choice of documents becomes less. Finished models are not trained again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aplc.config import Config
from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.data.formats import Document
from aplc.data.source import Source
from aplc.evaluate.bootstrap import compare
from aplc.evaluate.metrics import DocumentScores
from aplc.evaluate.run import evaluate
from aplc.models.trained import TrainedTagger
from aplc.predict.search import name_tags, predict_documents
from aplc.train.run import train

MODELS = ("masked", "negative", "in full")
SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
PAIRS = (("masked", "without"), ("negative", "without"), ("in full", "without"), ("masked", "negative"))


def fit(args: argparse.Namespace, name: str, more: Sequence[Path] = ()) -> TrainedTagger:
    config = Config.from_preset(args.preset).with_settings(args.set)
    source = Source.from_corpus(Corpus.open(args.corpus), more=more)
    return train(source, config, args.out / name.replace(" ", "-"), resume=True, screen=Screen())


def reviews(
    trained: TrainedTagger, documents: Sequence[Document], *, proposed: int, added: int | None
) -> Iterator[tuple[dict[str, object], Document]]:
    """A line of feedback for each document, and the document."""
    for block, ids, probs in predict_documents(trained, documents, proposed):
        for document, own_ids, own_probs in zip(block, ids, probs, strict=True):
            tags, true = name_tags(trained, own_ids, own_probs), set(document.labels)
            shown = {label for label, _ in tags}
            line = {
                "text": document.text,
                "accepted": [label for label, _ in tags if label in true],
                "rejected": [label for label, _ in tags if label not in true],
                "added": [label for label in document.labels if label not in shown][:added],
                "proposed": [[label, round(p, 4)] for label, p in tags],
            }
            yield line, document


def write_reviews(
    args: argparse.Namespace, trained: TrainedTagger, documents: Sequence[Document], folder: Path
) -> dict[str, Path]:
    """The files for `--more`, by name of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name.replace(' ', '-')}.jsonl" for name in MODELS}
    streams = [path.open("w", encoding="utf-8") for path in files.values()]
    n_accepted = n_rejected = n_added = n_missing = 0
    for line, document in reviews(trained, documents, proposed=args.proposed, added=args.added):
        labels = [*line["accepted"], *line["added"]]
        full = {"text": document.text, "labels": document.labels}
        for stream, row in zip(streams, (line, {"text": document.text, "labels": labels}, full), strict=True):
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        n_accepted, n_rejected = n_accepted + len(line["accepted"]), n_rejected + len(line["rejected"])
        n_added, n_missing = n_added + len(line["added"]), n_missing + len(document.labels) - len(labels)
    for stream in streams:
        stream.close()
    print(
        f"{len(documents):,} documents reviewed: {n_accepted:,} labels accepted, {n_rejected:,} rejected, {n_added:,} "
        f"added, {n_missing:,} true ones not mentioned\n"
    )
    return files


def mean_scores(draws: Sequence[DocumentScores]) -> DocumentScores:
    """Each document's terms, as means over the draws."""
    numerators = np.mean([scores.numerators for scores in draws], axis=0)
    return replace(draws[0], numerators=numerators, denominators=np.mean([s.denominators for s in draws], axis=0))


def show(scores: dict[str, DocumentScores], metrics: dict[str, dict[str, float]]) -> None:
    print(f"| | {' | '.join(SHOWN)} |\n{'| --- ' * (1 + len(SHOWN))}|")
    for name, found in metrics.items():
        print(f"| {name} | {' | '.join(f'{100 * found[metric]:.2f}' for metric in SHOWN)} |")
    for one, other in PAIRS:
        if one not in scores or other not in scores:
            continue
        found = compare(scores[one], scores[other])
        cells = (
            f"{100 * d.difference:+.2f} ({100 * d.low:+.2f} to {100 * d.high:+.2f})"
            for d in map(found.__getitem__, SHOWN)
        )
        print(f"| {one} - {other} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models and the feedback")
    parser.add_argument("--preset", default="words")
    parser.add_argument("--set", action="append", default=[], help="section.name=value")
    parser.add_argument("--reviewed", type=int, default=500, help="test documents that are reviewed")
    parser.add_argument("--proposed", type=int, default=10, help="labels that the reviewer sees")
    parser.add_argument("--added", default="all", help="missing labels that the reviewer adds: all, or so many")
    parser.add_argument("--draws", type=int, default=1, help="sets of reviewed documents; figures are means")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="which models are trained")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.added = None if args.added == "all" else int(args.added)
    args.out.mkdir(parents=True, exist_ok=True)

    test = list(Corpus.open(args.corpus).documents("test"))
    order = np.random.default_rng(args.seed).permutation(len(test)).tolist()
    rest = [test[i] for i in sorted(order[args.draws * args.reviewed :])]
    without = fit(args, "without")
    found = {name: [] for name in args.models} | {"without": [evaluate(without, rest).metrics]}
    for draw in range(args.draws):
        drawn = sorted(order[draw * args.reviewed : (draw + 1) * args.reviewed])
        files = write_reviews(args, without, [test[i] for i in drawn], args.out / f"draw-{draw}")
        for name in args.models:
            trained = fit(args, f"draw-{draw}/model {name}", [files[name]])
            found[name].append(evaluate(trained, rest).metrics)
    scores = {name: mean_scores([metrics.document_scores() for metrics in draws]) for name, draws in found.items()}
    results = {name: [metrics.result() for metrics in draws] for name, draws in found.items()}
    show(scores, {name: {m: float(np.mean([r[m] for r in draws])) for m in SHOWN} for name, draws in results.items()})


if __name__ == "__main__":
    main()
