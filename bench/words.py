"""Words models against the number of labels and documents, beside PECOS' XR-Linear and omikuji's Parabel.

    python bench/words.py --out DIR                                            # 1,000 to 100,000 labels, 16 minutes
    python bench/words.py --out DIR --sizes 1000x10000 670091x490449 --words-each 247

Every size is labels x documents of a synthetic corpus (`bench/synthetic.py`); all three get the same texts, the peers
the same TF-IDF, through `bench/peers.py`, in one run. DIR gets words.md and words.svg: training time, model size and
documents tagged a second against the number of labels, and P@1, P@5 and PSP@5, which say whether speed was bought.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import peers
import synthetic
from aplc.evaluate.pictures import SERIES, figure, save_picture, style

SIZES = ["1000x10000", "10000x30000", "30000x60000", "100000x100000"]
WHO = {"aplc-words": "aplc", "pecos-xlinear": "PECOS XR-Linear", "omikuji-parabel": "omikuji Parabel"}
FIGURES: dict[str, Callable[[dict], float]] = {
    "training, s": lambda row: row["train_seconds"],
    "memory, MB": lambda row: row["peak_bytes"] / 1e6,
    "model, MB": lambda row: row["model_bytes"] / 1e6,
    "documents tagged a second": lambda row: row["n_test"] / row["predict_seconds"],
}


def run(size: str, options: argparse.Namespace) -> dict[str, dict]:
    """What peers.py found on one corpus, by name."""
    n_labels, n_documents = map(int, size.split("x"))
    corpus, results = options.out / size / "corpus", options.out / size / "results"
    if not (corpus / "test.jsonl").is_file():
        synthetic.write(corpus, n_documents, n_labels, labels_each=5.45, words_each=options.words_each)
    only = [item for name in ("ours", "pecos-xlinear", "omikuji-parabel") for item in ("--only", name)]
    peers.main([str(corpus), "--out", str(results), *only, "--limit", str(options.limit)])
    found = json.loads((results / "peers.json").read_text("utf-8"))
    return {row["name"]: row | {"n_test": found["n_test"]} for row in found["results"]}


def draw(found: dict[str, dict[str, dict]], path: Path) -> None:
    with style():
        made, axes = figure(len(FIGURES), height=3.2, width=3.4)
        for axis, (title, value) in zip(axes, FIGURES.items(), strict=True):
            for (name, who), colour in zip(WHO.items(), SERIES[1:] + SERIES[:1], strict=False):
                points = [(int(size.split("x")[0]), value(rows[name])) for size, rows in found.items() if name in rows]
                axis.plot(*zip(*points, strict=True), "o-", label=who, color=colour)
            axis.set(xscale="log", yscale="log", xlabel="labels", title=title)
            for numbers in axis.xaxis, axis.yaxis:
                numbers.set_major_formatter("{x:,.0f}")
        axes[0].legend()
        save_picture(made, path)


def table(found: dict[str, dict[str, dict]]) -> str:
    lines = [f"| labels x documents | | {' | '.join(FIGURES)} | P@1 | P@5 | PSP@5 |"]
    lines.append("| --- | --- |" + " ---: |" * (len(FIGURES) + 3))
    for size, rows in found.items():
        for name, who in WHO.items():
            if name in rows:
                row = rows[name]
                cells = [f"{value(row):,.0f}" for value in FIGURES.values()]
                cells += [f"{100 * row['metrics'][metric]:.2f}" for metric in ("P@1", "P@5", "PSP@5")]
                lines.append(f"| {size} | {who} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="labels x documents")
    parser.add_argument("--words-each", type=int, default=100, help="words of a document, about")
    parser.add_argument("--limit", type=float, default=7200, help="seconds that training one model may take")
    options = parser.parse_args()
    found = {}
    for size in options.sizes:
        found[size] = run(size, options)
        (options.out / "words.md").write_text(table(found), encoding="utf-8")
        draw(found, options.out / "words.svg")
    print(table(found))


if __name__ == "__main__":
    main()
