"""Fine-tuning a pretrained encoder against starting from scratch: same size, same steps, several seeds.

    python bench/finetuning.py CORPUS ENCODER --out DIR --seeds 3 --set train.epochs=2

Both are the `tiny` preset with the encoder's sizes, so that a step costs the same; the pretrained one brings its
weights and its tokenizer. `--pretrained-set` is for what only it needs (learning rates), to be chosen on a validation
part of the training data: `--part held-out` scores that and not the test part. Finished runs are not run again.
The table has the mean over seeds and, behind ±, half the width of a 95 % confidence interval (Student's t).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t

from aplc.config import Config
from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.evaluate.run import evaluate
from aplc.evaluate.saved import load_evaluation, save_evaluation
from aplc.nn.weights import encoder_folder, read_config
from aplc.store.safety import EVALUATION
from aplc.train.run import train

SHOWN = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")


def settings(start: str, args: argparse.Namespace, seed: int) -> Config:
    sizes = read_config(encoder_folder(args.encoder))
    names = {"layers": "n_layer", "width": "d_model", "heads": "n_head", "inner_width": "d_inner"}
    same = [f"model.{ours}={sizes[theirs]}" for ours, theirs in names.items()]
    own = [f"model.encoder={args.encoder}", *args.pretrained_set] if start == "pretrained" else args.scratch_set
    return Config.from_preset("tiny").with_settings([*same, *args.set, *own, f"train.seed={seed}"])


def run(start: str, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """Train or find one model; the test part's metrics, or the held-out ones of its best epoch."""
    folder, corpus = args.out / start / f"seed-{seed}", Corpus.open(args.corpus)
    if args.part == "held-out" or not (folder / EVALUATION).is_file():
        model = train(Source.from_corpus(corpus), settings(start, args, seed), folder, resume=True, screen=Screen())
        if args.part == "test":
            about = {"model": str(folder), "corpus": str(args.corpus), "part": "test"}
            save_evaluation(folder / EVALUATION, evaluate(model, corpus.documents("test")), **about)
    if args.part == "test":
        return load_evaluation(folder).metrics
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    scores = [line["validation"] for line in lines if line.get("validation")]
    return max(scores, key=lambda score: score["nDCG@5"])


def cell(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    half = t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):.2f} ±{half:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("encoder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", choices=["test", "held-out"], default="test")
    parser.add_argument("--only", choices=["scratch", "pretrained"], help="one of the two")
    for name in ("--set", "--pretrained-set", "--scratch-set"):
        parser.add_argument(name, action="append", default=[], help="section.name=value")
    args = parser.parse_args()
    print(f"| start | seeds | {' | '.join(SHOWN)} |\n{'| --- ' * (2 + len(SHOWN))}|")
    for start in [args.only] if args.only else ["scratch", "pretrained"]:
        scores = [run(start, args, seed) for seed in range(args.seeds)]
        cells = [cell([100 * score[name] for score in scores]) for name in SHOWN]
        print(f"| {start} | {args.seeds} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
