"""Guards `aplc convert`: every format gives the same corpus, and errors name file and line."""

import gzip
import json

import numpy as np
import pytest
import scipy.sparse as sp

from aplc.data.convert import convert
from aplc.data.corpus import Corpus
from aplc.errors import CorpusError
from helpers import aplc

TEXTS = {"train": ["Of cats, and “dogs”", "Trains run", "", "A dog on a train"], "test": ["A cat", "Rails"]}
LABELS = {"train": [[0, 2], [1], [0], []], "test": [[2, 1], [0]]}
NAMES = ["animals", "vehicles", "pets"]
SHORT = {"train": "trn", "test": "tst"}


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def attentionxml(folder):
    for part, texts in TEXTS.items():
        lines(folder / f"{part}_raw_texts.txt", texts)
        lines(folder / f"{part}_texts.txt", ["lower case"] * len(texts))
        lines(folder / f"{part}_labels.txt", [" ".join(NAMES[i] for i in row) for row in LABELS[part]])


def matrix(rows, width=3):
    dense = np.zeros((len(rows), width), dtype=np.float32)
    for i, row in enumerate(rows):
        dense[i, row] = 1
    return sp.csr_matrix(dense)


def pecos(folder):
    for part, short in SHORT.items():
        lines(folder / f"X.{short}.txt", TEXTS[part])
        sp.save_npz(folder / f"Y.{short}.npz", matrix(LABELS[part]))
    lines(folder / "output-items.txt", NAMES)


def quoted(cell):
    return '"' + cell.replace('"', '""') + '"'


def aplc_xlnet(folder):
    for part, name in {"train": "train.csv", "test": "dev.csv"}.items():
        rows = [
            f"{i},{quoted(text)},{quoted(','.join(NAMES[j] for j in row))}"
            for i, (text, row) in enumerate(zip(TEXTS[part], LABELS[part], strict=True))
        ]
        lines(folder / name, ["id,text,labels", *rows, ""])  # some programs end with an empty line
    lines(folder / "labels.txt", NAMES)


def repository_json(folder):
    for part, short in SHORT.items():
        rows = [
            json.dumps({"uid": str(i), "title": "", "content": text, "target_ind": row, "target_rel": [1.0] * len(row)})
            for i, (text, row) in enumerate(zip(TEXTS[part], LABELS[part], strict=True))
        ]
        (folder / f"{short}.json.gz").write_bytes(gzip.compress("\n".join([*rows, "", ""]).encode()))
    names = [json.dumps({"uid": f"L{i}", "title": name + "\n"}) for i, name in enumerate(NAMES)]
    (folder / "lbl.json.gz").write_bytes(gzip.compress("\n".join(names).encode()))


def repository_sparse(folder):
    for part, short in SHORT.items():
        lines(folder / "raw" / f"{short}_X.txt", TEXTS[part])
        rows = [" ".join(f"{i}:1.00000" for i in row) for row in LABELS[part]]
        lines(folder / f"{short}_X_Y.txt", [f"{len(rows)} 3", *rows])
    lines(folder / "Yf.txt", NAMES)


def repository_words(folder):
    for part, short in SHORT.items():
        lines(folder / f"{short}_X.txt", TEXTS[part])
        rows = [f"{','.join(map(str, row))} 0:0.5 7:1.25" for row in LABELS[part]]
        lines(folder / f"{part}.txt", [f"{len(rows)} 9 3", *rows])
    lines(folder / "Y.txt", NAMES)


WRITERS = {
    "attentionxml": [attentionxml],
    "pecos": [pecos],
    "aplc-xlnet": [aplc_xlnet],
    "xml-repository": [repository_json, repository_sparse, repository_words],
}
CASES = [(format_, write) for format_, writers in WRITERS.items() for write in writers]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.mark.parametrize(("format_", "write"), CASES)
def test_every_format_gives_the_same_corpus(source, tmp_path, format_, write):
    write(source)
    counts, n_labels = convert(source, format_, tmp_path / "out")
    assert counts == {"train": 4, "test": 2}
    assert n_labels == 3
    corpus = Corpus.open(tmp_path / "out")
    for part, texts in TEXTS.items():
        read = list(corpus.documents(part))
        assert [document.text for document in read] == texts
        assert [sorted(document.labels) for document in read] == [sorted(NAMES[i] for i in row) for row in LABELS[part]]


def test_command_reports_what_it_wrote(source, tmp_path):
    pecos(source)
    done = aplc("convert", source, "--from", "pecos", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "4 training and 2 test documents with 3 labels" in done.stdout


def test_attentionxml_with_separator_and_tokenized_texts(source, tmp_path):
    """Amazon's raw texts have /SEP/ between title and description; EUR-Lex has tokenized texts only."""
    lines(source / "train_texts.txt", ["a title /SEP/ a description"])
    lines(source / "train_labels.txt", ["12 7 12"])
    assert convert(source, "attentionxml", tmp_path / "out") == ({"train": 1}, 2)
    (document,) = Corpus.open(tmp_path / "out").documents("train")
    assert (document.text, document.labels) == ("a title a description", ["12", "7"])


def test_labels_with_the_same_name_stay_separate(source, tmp_path):
    """Two products with the same title are two labels."""
    pecos(source)
    lines(source / "output-items.txt", ["twin", "", "twin"])
    convert(source, "pecos", tmp_path / "out")
    first, second, *_ = Corpus.open(tmp_path / "out").documents("train")
    assert (first.labels, second.labels) == (["twin #0", "twin #2"], ["#1"])


def test_labels_stay_separate_where_a_numbered_name_is_taken(source, tmp_path):
    pecos(source)
    lines(source / "output-items.txt", ["twin", "twin #0", "twin"])
    assert convert(source, "pecos", tmp_path / "out")[1] == 3


@pytest.mark.parametrize("name", ["train.jsonl", "test.csv", "dev.parquet"])
def test_existing_corpus_is_not_overwritten(source, tmp_path, name):
    aplc_xlnet(source)
    lines(tmp_path / "out" / name, ["mine"])
    with pytest.raises(CorpusError, match=f"{name}: already exists"):
        convert(source, "aplc-xlnet", tmp_path / "out")
    assert [(file.name, file.read_text()) for file in (tmp_path / "out").iterdir()] == [(name, "mine\n")]


def spoil(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def broken(path, **arrays):
    good = {"indices": [0, 2, 1, 0], "indptr": [0, 2, 3, 4, 4], "data": [1.0] * 4, "shape": [4, 3], "format": b"csr"}
    np.savez(path, **{name: np.array(value) for name, value in {**good, **arrays}.items()})


def latin(path, before):
    path.write_bytes(path.read_bytes().replace(before.encode(), b"\xe9" + before.encode()))


def one_row(source, **row):
    (source / "tst.json.gz").write_bytes(gzip.compress(json.dumps(row).encode()))


FAULTS = [
    ("attentionxml", attentionxml, lambda s: lines(s / "train_labels.txt", ["a"]), r"raw_texts.txt, line 2: train_lab"),
    (
        "attentionxml",
        attentionxml,
        lambda s: lines(s / "test_labels.txt", "abc"),
        r"labels.txt: has more than the 2 documents",
    ),
    ("attentionxml", attentionxml, lambda s: (s / "train_labels.txt").unlink(), r"train_labels.txt: no such file"),
    ("attentionxml", pecos, lambda s: None, r"no train_raw_texts.txt or train_texts.txt"),
    (
        "attentionxml",
        attentionxml,
        lambda s: (s / "test_raw_texts.txt").write_bytes(b"a\n\xe9\n"),
        r"line 2: not UTF-8",
    ),
    ("pecos", pecos, lambda s: sp.save_npz(s / "Y.tst.npz", matrix([[0]])), r"X.tst.txt, line 2: Y.tst.npz ends"),
    ("pecos", pecos, lambda s: (s / "Y.trn.npz").write_bytes(b"PK no"), r"Y.trn.npz: not a sparse matrix"),
    ("pecos", pecos, lambda s: (s / "Y.trn.npz").write_bytes(b""), r"Y.trn.npz: not a sparse matrix .*No data"),
    ("pecos", pecos, lambda s: np.save((s / "Y.trn.npz").open("wb"), np.ones(3)), r"not a sparse matrix .*ndarray"),
    ("pecos", pecos, lambda s: broken(s / "Y.trn.npz", indices=[0, 9, 1, 0]), r"not a sparse matrix .*indices"),
    ("pecos", pecos, lambda s: broken(s / "Y.trn.npz", indices=[0, -1, 1, 0]), r"not a sparse matrix .*ind"),
    ("pecos", pecos, lambda s: broken(s / "Y.trn.npz", indptr=[0, 3, 2, 4, 4]), r"not a sparse matrix .*indptr"),
    ("pecos", pecos, lambda s: (s / "Y.trn.npz").unlink(), r"Y.trn.npz: no such file; is the whole archive"),
    (
        "pecos",
        pecos,
        lambda s: lines(s / "output-items.txt", ["one"]),
        r"Y.trn.npz: 3 labels, but output-items.txt has 1",
    ),
    (
        "aplc-xlnet",
        aplc_xlnet,
        lambda s: spoil(s / "dev.csv", "animals", "odd"),
        r"dev.csv, line 3: label 'odd' is not",
    ),
    ("aplc-xlnet", aplc_xlnet, lambda s: spoil(s / "train.csv", "1,", ""), r"train.csv, line 3: 2 cells where"),
    ("aplc-xlnet", aplc_xlnet, lambda s: spoil(s / "train.csv", "id,text,labels", "text"), r"line 1: the header is"),
    ("aplc-xlnet", aplc_xlnet, lambda s: (s / "labels.txt").unlink(), r"labels.txt: no such file"),
    ("aplc-xlnet", aplc_xlnet, lambda s: spoil(s / "train.csv", 'run",', "run,"), r"train.csv, line 3: not CSV"),
    ("aplc-xlnet", aplc_xlnet, lambda s: spoil(s / "dev.csv", 'animals"\n', "animals\n"), r"dev.csv, line 4: not CSV"),
    ("aplc-xlnet", aplc_xlnet, lambda s: latin(s / "train.csv", "Trains"), r"train.csv, line 3: not UTF-8 .* iconv"),
    (
        "xml-repository",
        repository_sparse,
        lambda s: spoil(s / "tst_X_Y.txt", "2 3", "5 3"),
        r"line 3: .* header says 5",
    ),
    ("xml-repository", repository_sparse, lambda s: spoil(s / "trn_X_Y.txt", "2:1", "8:1"), r"Y.txt, line 2: label 8"),
    (
        "xml-repository",
        repository_sparse,
        lambda s: spoil(s / "trn_X_Y.txt", "4 3", "words"),
        r"Y.txt, line 1: the header",
    ),
    (
        "xml-repository",
        repository_sparse,
        lambda s: lines(s / "Yf.txt", "ab"),
        r"3 labels in the header, but there are 2",
    ),
    ("xml-repository", repository_words, lambda s: spoil(s / "train.txt", "1 0:", "x 0:"), r"train.txt, line 3: can't"),
    ("xml-repository", repository_words, lambda s: spoil(s / "train.txt", "0,2", "0, 2"), r"train.txt, line 2: can't"),
    ("xml-repository", repository_words, lambda s: spoil(s / "train.txt", "4 9", "4 9 9"), r"line 1: the header is"),
    ("xml-repository", repository_words, lambda s: (s / "trn_X.txt").unlink(), r"no trn.json.gz or"),
    ("xml-repository", repository_json, lambda s: one_row(s, text="a", target_ind=[1]), r"neither 'title' nor"),
    ("xml-repository", repository_json, lambda s: one_row(s, title="a", target_ind=[-1]), r"'target_ind'"),
    ("xml-repository", repository_json, lambda s: one_row(s, title="a", target_ind=[True]), r"'target_ind'"),
    ("xml-repository", repository_json, lambda s: one_row(s, title="\ud800", target_ind=[1]), r"line 1 .* Unicode"),
    ("xml-repository", repository_json, lambda s: (s / "tst.json.gz").write_bytes(gzip.compress(b"{}")), r"target_ind"),
    ("xml-repository", repository_json, lambda s: (s / "tst.json.gz").write_bytes(b"\x1f\x8b..."), r"broken gzip"),
    (
        "xml-repository",
        repository_json,
        lambda s: (s / "tst.json.gz").write_bytes(gzip.compress(b"[")),
        r"line 1: not JSON",
    ),
]


@pytest.mark.parametrize(("format_", "write", "spoiled", "message"), FAULTS, ids=[fault[3] for fault in FAULTS])
def test_error_is_one_line_and_no_file_is_left(source, tmp_path, format_, write, spoiled, message):
    write(source)
    spoiled(source)
    with pytest.raises(CorpusError, match=message):
        convert(source, format_, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))
    done = aplc("convert", source, "--from", format_, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_tabs_before_words_and_names_that_are_null(source, tmp_path):
    repository_words(source)
    text = (source / "train.txt").read_text()
    (source / "train.txt").write_text(text.replace("0,2 0:", "0,2\t0:"))
    (source / "lbl.json").write_text('{"title": null}\n{"title": "vehicles"}\n{"uid": "1"}\n')
    convert(source, "xml-repository", tmp_path / "out")
    first, second, *_ = Corpus.open(tmp_path / "out").documents("train")
    assert (first.labels, second.labels) == (["#0", "#2"], ["vehicles"])


def test_bag_of_words_without_texts_is_refused(source, tmp_path):
    repository_words(source)
    (source / "trn_X.txt").unlink()
    (source / "tst_X.txt").unlink()
    with pytest.raises(CorpusError, match=r"train.txt: bag-of-words features only"):
        convert(source, "xml-repository", tmp_path / "out")


def test_source_folder_is_refused_as_output(source):
    aplc_xlnet(source)
    with pytest.raises(CorpusError, match="this is the source folder"):
        convert(source, "aplc-xlnet", source)
