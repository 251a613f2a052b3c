"""Subject headings from a SKOS vocabulary: documents carry concepts' URIs, people read names.

    pip install rdflib
    python examples/subject_headings.py work             # PubMed abstracts, fetched with pip; about two minutes
    python examples/subject_headings.py work --fast      # a made sample; seconds

With a thesaurus of your own, only `train` and what follows are of interest: any SKOS file will do (docs/vocabulary.md).
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from rdflib import RDF, SKOS, Graph, Literal, URIRef

from aplc import Tagger

Rows = list[dict]


def fetched(folder: Path) -> tuple[Rows, Rows]:
    """PubMed abstracts with their MeSH headings: training and test documents."""
    corpus = folder / "pubmed"
    if not (corpus / "train.jsonl").exists():
        command = [sys.executable, "-m", "aplc", "data", "pubmed-mesh", "--abstracts-only", "--out", str(corpus)]
        subprocess.run(command, check=True)
    train, test = (
        [json.loads(line) for line in (corpus / f"{part}.jsonl").read_text("utf-8").splitlines()]
        for part in ("train", "test")
    )
    return train, test


def made() -> tuple[Rows, Rows]:
    """Short notes on twelve animals, of which training documents show eleven. Each note names one that it is not on."""
    rng = random.Random(0)
    animals = [
        "dog",
        "cat",
        "horse",
        "sheep",
        "goat",
        "duck",
        "goose",
        "rabbit",
        "hamster",
        "parrot",
        "turtle",
        "llama",
    ]
    notes = ["feeding a {}", "a {} in winter", "how the {} sleeps", "the {} and its young", "diseases of the {}"]
    rows = []
    for _ in range(700):
        one, two, other = rng.sample(animals, 3)
        text = f"{rng.choice(notes).format(one)}; {rng.choice(notes).format(two)}, seen beside a {other}"
        rows.append({"text": text, "labels": [one, two]})
    return [row for row in rows[:600] if "llama" not in row["labels"]], rows[600:]


def write_skos(headings: list[str], path: Path) -> dict[str, str]:
    """A thesaurus with a concept for each heading; returns each heading's URI."""
    uris = {heading: f"https://example.org/{quote(heading)}" for heading in headings}
    graph = Graph()
    for heading, uri in uris.items():
        graph.add((URIRef(uri), RDF.type, SKOS.Concept))
        graph.add((URIRef(uri), SKOS.prefLabel, Literal(heading, lang="en")))
    graph.serialize(path, format="turtle", encoding="utf-8")
    return uris


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fast", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    train, test = made() if arguments.fast else fetched(arguments.folder)
    skos = arguments.folder / "thesaurus.ttl"
    uris = write_skos(sorted({name for row in train + test for name in row["labels"]}), skos)
    names = {uri: heading for heading, uri in uris.items()}

    tagger = Tagger("words", verbose=True).fit(
        [row["text"] for row in train],
        [[uris[name] for name in row["labels"]] for row in train],
        vocabulary=skos,
    )
    tagger.save_pretrained(arguments.folder / "model")

    known = {name for row in train for name in row["labels"]}
    tags = tagger.predict([row["text"] for row in test], top_k=5)
    new = [(row, found) for row, found in zip(test, tags, strict=True) if set(row["labels"]) - known]
    asked = sum(len(set(row["labels"]) - known) for row, _ in new)
    hits = sum(len((set(row["labels"]) - known) & {names[uri] for uri, _ in found}) for row, found in new)
    print(f"headings that no training document has: {hits} of {asked} are among the five best labels")
    row, found = new[0] if new else (test[0], tags[0])
    print(f"\n{row['text'][:100]}")
    for uri, probability in found[:5]:
        print(f"{probability:6.1%}  {'*' if names[uri] in row['labels'] else ' '} {names[uri]}  <{uri}>")
    print(f"\nnext: aplc serve {arguments.folder / 'model'}")


if __name__ == "__main__":
    main()
