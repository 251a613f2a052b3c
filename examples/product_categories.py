"""Categories from a CSV file: split, train, evaluate, and tag new rows so that four of five labels are right.

    python examples/product_categories.py work             # a real catalogue of 15,000 rows; about three minutes
    python examples/product_categories.py work --fast      # a made sample; half a minute

No catalogue of products can be fetched with pip, so the real one is PubMed's: a title, a description and the subjects
that librarians gave it, as a shop's export has them. With an export of your own, the commands are all you need.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
from pathlib import Path

COLUMNS = ["--text-column", "title", "--text-column", "description", "--id-column", "number"]
LABELS = ["--labels-column", "categories", "--label-separator", "|"]


def aplc(*arguments: object) -> None:
    """Run a command, and show it."""
    print("\n$ aplc", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "aplc", *map(str, arguments)], check=True)


def fetched(folder: Path) -> list[list[str]]:
    """PubMed abstracts as rows of a catalogue."""
    aplc("data", "pubmed-mesh", "--abstracts-only", "--out", folder / "pubmed")
    rows = []
    for part in ("train", "test"):
        for line in (folder / "pubmed" / f"{part}.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            title, _, description = row["text"].partition(". ")
            rows.append([row["id"], title, description, "|".join(row["labels"])])
    return rows


def made() -> list[list[str]]:
    """A shop that sells eight kinds of things in three materials."""
    rng = random.Random(0)
    kinds = {"Chairs": "seat", "Tables": "desk", "Lamps": "light", "Cups": "mug", "Plates": "dish", "Shelves": "rack"}
    materials = {"Wood": "oak", "Glass": "crystal", "Metal": "steel"}
    rows = []
    for number in range(600):
        kind, material = rng.choice(list(kinds)), rng.choice(list(materials))
        text = f"{materials[material]}, {rng.choice(['round', 'large', 'small'])}, made to last"
        rows.append([str(number), f"{kinds[kind].title()} {rng.randint(1, 99)}", text, f"{kind}|{material}"])
    return rows


def write(path: Path, rows: list[list[str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["number", "title", "description", "categories"], *rows])
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fast", action="store_true")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)

    rows = made() if arguments.fast else fetched(folder)
    catalogue, new = write(folder / "catalogue.csv", rows[:-50]), write(folder / "new.csv", rows[-50:])
    aplc("split", catalogue, "--out", folder / "corpus", *COLUMNS, *LABELS)
    aplc("train", folder / "corpus", "--preset", "words", "--out", folder / "model")
    aplc("evaluate", folder / "model", folder / "corpus", "--report", folder / "report.html")
    tags = folder / "tags.csv"
    aplc("predict", folder / "model", new, "--out", tags, "--precision", 0.8, *COLUMNS, "--keep", "title")
    with tags.open(encoding="utf-8", newline="") as file:
        for row in list(csv.DictReader(file))[:3]:
            print(f"{row['title'][:60]}: {row['labels']}")


if __name__ == "__main__":
    main()
