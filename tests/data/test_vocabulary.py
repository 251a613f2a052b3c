"""Guards vocabularies: formats, hierarchy and schemes, what is refused, and how they join a corpus' label set."""

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from aplc.config import Config
from aplc.data.by_name import ByName
from aplc.data.corpus import Corpus
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.source import Source, read_training_data
from aplc.data.vocabulary import Entry, Vocabulary, find_cycle
from aplc.errors import CorpusError, ModelError
from helpers import Recorder, aplc, fails, ok, write, write_rows

ROWS = [
    {"label": "c1", "name": "Animals", "scheme": "topics"},
    {"label": "d1", "name": "Dogs", "names": ["dog", "Hunde", "dog"], "broader": ["c1"], "scheme": ["topics", "pets"]},
    {"label": "d2", "name": "Terriers", "broader": ["d1"], "description": "Small\n  dogs."},
]
ENTRIES = {
    "c1": Entry("c1", "Animals", schemes=("topics",)),
    "d1": Entry("d1", "Dogs", ("dog", "Hunde"), ("c1",), ("topics", "pets")),
    "d2": Entry("d2", "Terriers", broader=("d1",), description="Small dogs."),
}
TABLE = [
    ["label", "name", "names", "broader", "scheme", "description"],
    ["c1", "Animals", "", "", "topics", ""],
    ["d1", "Dogs", "dog|Hunde", "c1", "topics;pets", ""],
    ["d2", "Terriers", "", "d1", "", "Small dogs."],
]


def read(tmp_path, name, text):
    return Vocabulary.read(write(tmp_path / name, text))


def test_every_format_gives_the_same_entries(tmp_path):
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    files = {
        "v.jsonl": lines,
        "v.json": json.dumps(ROWS),
        "w.json": json.dumps({row["label"]: {k: v for k, v in row.items() if k != "label"} for row in ROWS}),
        "v.csv": "\ufeff" + "\r\n".join(",".join(row) for row in TABLE),
        "v.tsv": "\n".join("\t".join(row) for row in TABLE),
    }
    for name, text in files.items():
        assert read(tmp_path, name, text).entries == ENTRIES, name
    with gzip.open(tmp_path / "v.jsonl.gz", "wt") as out:
        out.write(lines)
    assert Vocabulary.read(tmp_path / "v.jsonl.gz").entries == ENTRIES
    assert Vocabulary.of({"c1": ENTRIES["c1"], "d1": ROWS[1], "d2": ROWS[2]}).entries == ENTRIES


def test_names_by_label_in_one_object(tmp_path):
    found = read(tmp_path, "label_names.json", '{"10": "domestic trade", "1000": "financing"}')
    assert found.entries == {"10": Entry("10", "domestic trade"), "1000": Entry("1000", "financing")}
    assert Vocabulary.of({"10": "domestic trade", "1000": "financing"}) == found


def test_annif_tsv_and_csv(tmp_path):
    # As Annif's wiki describes them: the notation is not a name; a subject without a label is deprecated.
    tsv = "<http://e.org/s1>\tcomputer network\n<http://e.org/s3>\tInternet Protocol\t42.42\n<http://e.org/s4>\n"
    assert read(tmp_path, "s.tsv", tsv).entries == {
        "http://e.org/s1": Entry("http://e.org/s1", "computer network"),
        "http://e.org/s3": Entry("http://e.org/s3", "Internet Protocol"),
    }
    table = "uri,label_fr,label_en,notation\nhttp://e.org/s1,réseau,network,\nhttp://e.org/s2,informatique,,7\nu,,,\n"
    path = write(tmp_path / "s.csv", table)
    found = Vocabulary.read(path)
    assert found.file.endswith("(names in en)")
    assert found.entries["http://e.org/s1"] == Entry("http://e.org/s1", "network", ("réseau",))
    assert found.name_of("http://e.org/s2") == "informatique"
    assert "u" not in found.entries
    assert Vocabulary.read(path, "fr").name_of("http://e.org/s1") == "réseau"
    with pytest.raises(CorpusError, match="--language de, only in fr, en"):
        Vocabulary.read(path, "de")


def test_names_branches_and_schemes():
    vocabulary = Vocabulary.of({row["label"]: row for row in ROWS})
    assert [vocabulary.name_of(label) for label in ("d1", "x")] == ["Dogs", "x"]
    assert vocabulary.below("d1") == {"d1", "d2"}
    assert vocabulary.below("c1") == {"c1", "d1", "d2"}
    assert vocabulary.above(["d2"]) == {"d2", "d1", "c1"}
    assert vocabulary.schemes["topics"] == {"c1", "d1"}
    assert list(vocabulary.only(["d1", "other"]).entries) == ["c1", "d1"]


def test_renaming_a_label_keeps_its_entry_and_its_place():
    renamed = Vocabulary.of({row["label"]: row for row in ROWS}).renamed("d1", "dogs")
    assert renamed.entries["dogs"].name == "Dogs"
    assert renamed.below("c1") == {"c1", "dogs", "d2"}


def test_a_model_folder_keeps_it(tmp_path):
    vocabulary = Vocabulary.of({row["label"]: row for row in ROWS})
    vocabulary.save(tmp_path)
    assert Vocabulary.load(tmp_path) == vocabulary
    assert Vocabulary.load(tmp_path).key == vocabulary.key != vocabulary.only(["c1"]).key
    write(tmp_path / "vocabulary.jsonl", '{"label": "a", "broader": ["a"]}\n')
    with pytest.raises(ModelError, match=r"vocabulary.jsonl, line 1: a cycle, 'a' is below 'a'"):
        Vocabulary.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("v.jsonl", '{"label": "a"}\n\n{"label": "a"}\n', "line 3: 'a' has an entry already, in line 1; keep one"),
        ("v.jsonl", '{"name": "a"}\n', "line 1: no 'label'"),
        ("v.jsonl", '{"label": 7}\n', "line 1: 'label' must be a string, found int; quote it"),
        ("v.jsonl", '{"label": "a", "names": {"b": 1}}\n', "line 1: 'names' must be a list of strings, found dict"),
        ("v.jsonl", '{"label": "a"}\n[1]\n', "line 2: a line is an entry like"),
        ("v.jsonl", "{\n", "line 1: not JSON"),
        ("v.jsonl", "[" * 100_000 + "\n", "line 1: not JSON"),
        ("v.jsonl", "", "no entries in it"),
        ("v.jsonl", '{"label": "a\\u001b[31m"}\n', "line 1: 'label' has the control character U.001B at character 2"),
        ("v.jsonl", '{"label": "a", "name": "b\\u0000"}\n', "line 1: 'name' has the control character U.0000"),
        ("v.jsonl", '{"label": "a", "name": "\\ud800"}\n', "line 1: 'name' has half of a surrogate pair"),
        ("v.jsonl", '{"label": "a\\nb"}\n', "line 1: 'label' has a line break"),
        ("v.jsonl", '{"label": "a", "name": "%s"}\n' % ("x" * 1_000_000), "line 1: 'name' has 1,000,000 characters"),
        ("v.jsonl", '{"label": "a", "names": [%s"c"]}\n' % ('"b",' * 999_999), "line 1: 'names' has 1,000,000 values"),
        ("v.jsonl", '{"label": "a", "name": "%s"}\n' % ("x" * (1 << 24)), "line 1: longer than 16,777,216 bytes"),
        ("v.json", '{"a": "b", "a": "c"}', "entry 2: 'a' has an entry already, in entry 1; keep one"),
        ("v.json", '{"a": 3}', "entry 1: 'name' must be a string, found int"),
        ("v.json", '{"a": "b",\n"c"}', "line 2: not JSON"),
        ("v.json", "[1]", "must be an object of labels and names, or a list of entries"),
        ("v.csv", "name,names\na,b\n", "line 1: no column 'label', only name, names; name the columns label, name"),
        ("v.csv", "label,name,name\na,b,c\n", "line 1: the header has several columns 'name'"),
        ("v.csv", "label,name\na,b,c\n", "line 2: 3 cells where the header has 2; quote cells that contain commas"),
        ("v.csv", 'label,name\na,"b\n', "line 2: unexpected end of data; is a quote missing"),
        ("v.tsv", "<http://e.org/a>\tA\nb\tB\n", "line 2: expected a URI like <http://example.org/subject>"),
        ("v.txt", "a", "unknown vocabulary format; expected one of .jsonl, "),
    ],
)  # fmt: skip
def test_a_bad_file_is_named_with_its_line(tmp_path, name, text, message):
    with pytest.raises(CorpusError, match=rf"{name}[,:] {message}"):
        read(tmp_path, name, text)


def test_other_encodings_and_broken_archives_are_named(tmp_path):
    (tmp_path / "v.jsonl").write_bytes('{"label": "é"}\n'.encode("latin-1"))
    with pytest.raises(CorpusError, match=r"v.jsonl, line 1: not UTF-8 at byte 11"):
        Vocabulary.read(tmp_path / "v.jsonl")
    (tmp_path / "v.csv.gz").write_bytes(gzip.compress(b"label\n" + b"".join(b"%d\n" % i for i in range(9_000)))[:-20])
    with pytest.raises(CorpusError, match=r"v.csv.gz: broken gzip file"):
        Vocabulary.read(tmp_path / "v.csv.gz")


def test_cycles_are_found_and_named(tmp_path):
    rows = [("top", []), ("a", ["top", "c"]), ("b", ["a"]), ("c", ["b"]), ("below", ["c"])]
    entries = {label: Entry(label, broader=tuple(broader)) for label, broader in rows}
    cycle = find_cycle(entries)
    assert sorted(cycle) == ["a", "b", "c"]
    assert all(above in entries[label].broader for label, above in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    assert find_cycle({label: entry for label, entry in entries.items() if label != "b"}) == []
    write_rows(tmp_path / "v.jsonl", [{"label": label, "broader": broader} for label, broader in rows])
    with pytest.raises(CorpusError, match=r"v.jsonl, line \d: a cycle, '[abc]' is below '[abc]' is below '[abc]' is "):
        Vocabulary.read(tmp_path / "v.jsonl")


def test_a_deep_hierarchy_needs_no_recursion():
    n = 20_000
    deep = Vocabulary.of({str(i): {"broader": [str(i - 1)] if i else []} for i in range(n)})
    assert len(deep.below("0")) == len(deep.above([str(n - 1)])) == n


def test_labels_without_documents_come_last():
    labels = LabelSet.from_counter(Counter({"b": 2, "a": 1, "rare": 1}), more=["z", "b", "y"])
    assert labels.names == ("b", "a", "rare", "y", "z")
    assert labels.counts.tolist() == [2, 1, 1, 0, 0]
    assert labels.n_seen == 3
    # One that documents have, but too few of them, is left out as before.
    assert LabelSet.from_counter(Counter({"b": 2, "a": 1}), 2, more=["a", "y"]).names == ("b", "y")


@pytest.fixture
def folder(corpus, tmp_path):
    """The topics' corpus with a vocabulary beside it: it lacks a label, and has two that no document has."""
    for part in ("train.jsonl", "test.jsonl"):
        (tmp_path / part).write_bytes((corpus / part).read_bytes())
    names = ("animals", "vehicles", "food", "music, classical", "météo", "never seen", "sports")
    rows = [{"label": label, "broader": ["things"]} for label in names]
    write_rows(tmp_path / "vocabulary.jsonl", rows)
    return tmp_path


def data_of(folder, *settings, **options):
    screen = Recorder()
    source = Source.from_corpus(Corpus.open(folder), **options)
    return read_training_data(source, Config().with_settings(settings).data, 0, screen), screen


def test_training_reads_the_vocabulary_of_the_folder(folder):
    data, screen = data_of(folder)
    assert data.labels.names[-3:] == ("rare", "never seen", "sports")
    assert data.labels.n_seen == 6
    assert data.vocabulary.below("things") >= {"animals", "sports"}
    assert "corpus: 200 training documents, 6 labels" in screen.lines
    assert (
        f"vocabulary: 7 entries in {folder}/vocabulary.jsonl; 1 of the corpus' 6 labels have none (rare); "
        "2 labels have no training document" in screen.lines
    )
    assert "1 labels that others have as broader ones have no entry: things;" in screen.text
    data, screen = data_of(folder, "data.vocabulary_labels=seen")
    assert len(data.labels) == 6
    assert "2 labels have no training document, and are left out (data.vocabulary_labels = seen)" in screen.text


def test_a_given_file_comes_before_the_folders(folder, tmp_path):
    other = write(tmp_path / "other.tsv", "label\tname\nanimals\tTiere\n")
    data, _ = data_of(folder, vocabulary=other)
    assert data.vocabulary.name_of("animals") == "Tiere"
    assert len(data.labels) == 6
    write(tmp_path / "vocabulary.csv", "label\na\n")
    with pytest.raises(CorpusError, match=r"both vocabulary.jsonl and vocabulary.csv; keep one"):
        data_of(folder)


def test_a_vocabulary_of_other_labels_is_told_of(folder, tmp_path):
    other = write(tmp_path / "other.json", '{"t:1": "Metals"}')
    cure = "is a label or a name in it; its first is 'Metals (t:1)'. Is it the right file, --labels-column"
    _, screen = data_of(folder, vocabulary=other)
    assert screen.text.count(cure) == screen.text.count("none of") == 1
    for command in ("inspect", "plan"):
        done = aplc(command, folder, "--preset", "words", "--vocabulary", other)
        assert (ok(done) + done.stderr).count(cure) == 1


def test_names_are_found_in_any_case_and_only_where_they_are_unique():
    vocabulary = Vocabulary.of(
        {
            "d1": {"name": "Dogs", "names": ["dog", "Pets", "Canis"]},
            "c1": {"name": "Cats", "names": ["pets", "DOGS"]},
            "t1": "Table",
            "t2": "table",
            "m1": "M\u00e9t\u00e9o  locale",
        }
    )
    match = ByName(vocabulary)
    names = {"dogs": "d1", "DOG": "d1", "Pets": "Pets", "TABLE": "TABLE", "c1": "c1", "Cats": "c1", "other": "other"}
    assert {name: match.label(name) for name in names} == names
    assert match.label("me\u0301te\u0301o Locale") == "m1"  # the same letters, composed otherwise
    assert match.ambiguous == {"Pets", "TABLE"}
    document = match(Document("...", ["Dogs", "d1", "other"], rejected=("canis", "cats")))
    assert (document.labels, document.rejected) == (["d1", "other"], ("c1",))


def test_documents_may_carry_names(folder, tmp_path):
    """The usual case of a library: names in the records, URIs in the thesaurus."""
    ids = {"animals": "u:1", "vehicles": "u:2", "food": "u:3", "météo": "u:4"}
    rows = [{"label": uri, "name": name.upper()} for name, uri in ids.items()]
    uris = write_rows(tmp_path / "uris.jsonl", rows)
    data, screen = data_of(folder, vocabulary=uris)
    plain, _ = data_of(folder)
    assert set(data.labels.names) == {*ids.values(), "music, classical", "rare"}
    counts = dict(zip(plain.labels.names, plain.labels.counts.tolist(), strict=True))
    found = dict(zip(data.labels.names, data.labels.counts.tolist(), strict=True))
    assert found == {ids.get(label, label): n for label, n in counts.items() if n}
    assert "names: 4 labels of the documents are names in " in screen.text
    assert "2 of the corpus' 6 labels have none" in screen.text
    shown = ok(aplc("inspect", folder, "--preset", "words", "--vocabulary", uris))
    assert "names: 4 labels of the documents are names in " in shown


def test_a_cache_is_not_used_where_a_name_stands_for_another_label(folder, tmp_path):
    labels = LabelSet.from_counter(Counter({"u:1": 1, "u:2": 1}))
    rows = [document.labels for document in Corpus.open(folder).documents("train")]
    for animals, vehicles in (("u:1", "u:2"), ("u:2", "u:1")):
        file = write(tmp_path / "v.json", json.dumps({animals: "Animals", vehicles: "Vehicles"}))
        source = Source.from_corpus(Corpus.open(folder), vocabulary=file)
        cache = source.encoded(
            "train", lambda texts: [[0]] * len(texts), np.dtype("u1"), labels, name="t", screen=Recorder()
        )
        for i, names in enumerate(rows):
            assert (labels.index[animals] in cache.document(i)[1]) == ("animals" in names)
        assert source.identity["vocabulary"] != source.vocabulary.key


def test_inspect_says_what_the_vocabulary_has(folder):
    shown = ok(aplc("inspect", folder, "--preset", "words"))
    assert "2 labels have no training document" in shown
    assert "are of labels never seen in training: 1 of these 1 are in the vocabulary" in shown
    fails(aplc("inspect", folder, "--vocabulary", folder / "no.csv"), "no.csv: no such file")
    write(folder / "vocabulary.jsonl", '{"label": "a"}\n{"label": "a"}\n')
    fails(aplc("inspect", folder), "vocabulary.jsonl, line 2: 'a' has an entry already")


def test_outputs_do_not_replace_a_vocabulary(folder):
    fails(aplc("plan", folder, "--json", folder / "vocabulary.json"), "is the vocabulary of the corpus")
    fails(
        aplc("plan", folder, "--vocabulary", folder / "x.json", "--json", folder / "x.json"),
        "is a file that this command reads",
    )
