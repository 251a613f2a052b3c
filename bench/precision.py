"""A network trained in bfloat16 (autocast) beside one in float32, scored on held-out documents.

    python bench/precision.py demo/abstracts --documents 9600 --seeds 2

On a GPU that has bfloat16, training uses it (`train.precision = "auto"`). No GPU is needed here: the same autocast runs
on the CPU, where our own XLNet and the clusters otherwise stay in float32. Seeds say how large chance is.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.train import loop
from aplc.train.run import train

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--documents", type=int, default=9600, help="training documents read, over all epochs")
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    print(f"{'':<12}{'seed':>6}{'seconds':>9}" + "".join(f"{name:>9}" for name in SHOWN))
    scores: dict[str, list[dict[str, float]]] = {"float32": [], "bfloat16": []}
    for seed in range(given.seeds):
        for precision, found in scores.items():
            began = time.monotonic()
            found.append(held_out(given, precision, seed))
            row = "".join(f"{100 * found[-1][name]:9.2f}" for name in SHOWN)
            print(f"{precision:<12}{seed:>6}{time.monotonic() - began:9.0f}{row}", flush=True)
    means = [statistics.mean(b[name] - a[name] for a, b in zip(*scores.values(), strict=True)) for name in SHOWN]
    print(f"{'difference':<27}" + "".join(f"{100 * mean:+9.2f}" for mean in means))


def held_out(given: Any, precision: str, seed: int) -> dict[str, float]:
    settings = [f"train.seed={seed}", f"train.max_documents={given.documents}", "data.validation=0.1"]
    config = Config.from_preset(given.preset).with_settings(settings)
    with tempfile.TemporaryDirectory(prefix="aplc-precision-") as out:
        loop.uses_bfloat16 = lambda *_: precision == "bfloat16"  # on a CPU it is never chosen
        trained = train(Source.from_corpus(Corpus.open(given.corpus)), config, Path(out))
    assert trained.held_out is not None
    return trained.held_out["metrics"]


if __name__ == "__main__":
    main()
