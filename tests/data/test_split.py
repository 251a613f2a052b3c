"""Guards `aplc split`: nothing lost, sizes as asked, frequent labels in all parts, groups together, newest in test."""

import json
import random
from collections import Counter

import pytest

from aplc.data.corpus import PARTS, Corpus
from aplc.data.split import How, seconds_of, split
from aplc.errors import AplcError
from helpers import aplc, fails, ok, write, write_rows


def zipf_rows(n, seed=0):
    """Labels as rare as they are in practice: a third of them has fewer than ten documents."""
    rng = random.Random(seed)
    names, weights = [f"L{i}" for i in range(300)], [1 / (i + 1) for i in range(300)]
    return [
        {
            "id": str(i),
            "text": f"text {i}",
            "labels": list(dict.fromkeys(rng.choices(names, weights, k=rng.randint(0, 4)))),
            "journal": f"j{rng.randint(0, 59)}",
            "year": 2000 + rng.randint(0, 20),
        }
        for i in range(n)
    ]


def parts_of(folder):
    return {part: [json.loads(x) for x in (folder / f"{part}.jsonl").read_text().splitlines()] for part in PARTS}


@pytest.fixture(scope="module")
def rows():
    return zipf_rows(3000)


@pytest.mark.parametrize("seed", range(3))
def test_frequent_labels_are_in_all_parts_in_proportion(rows, tmp_path, seed):
    path = write_rows(tmp_path / "all.jsonl", rows)
    done = split(path, tmp_path / "c", How(seed=seed))
    parts = parts_of(tmp_path / "c")
    assert done.counts == {"train": 2400, "dev": 300, "test": 300}
    assert sorted((row for part in parts.values() for row in part), key=lambda r: int(r["id"])) == rows
    counts = {part: Counter(name for row in parts[part] for name in row["labels"]) for part in PARTS}
    total = sum(counts.values(), Counter())
    for name, n in total.items():
        for part in ("dev", "test"):
            if n >= 10:
                assert abs(counts[part][name] - n / 10) <= 1 + n / 50, (name, n, part)
    assert done.unseen == len(counts["test"].keys() - counts["train"].keys())
    rare = sum(n for name, n in counts["test"].items() if total[name] < 10)
    assert 0.05 < rare / sum(n for n in total.values() if n < 10) < 0.15  # left to chance, not all in train


def test_same_seed_same_split_and_another_differs(rows, tmp_path):
    path = write_rows(tmp_path / "all.jsonl", rows)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        split(path, tmp_path / name, How(seed=seed))
    a, b, c = ((tmp_path / name / "test.jsonl").read_bytes() for name in "abc")
    assert a == b != c


def test_groups_stay_together(rows, tmp_path):
    done = split(write_rows(tmp_path / "all.jsonl", rows), tmp_path / "c", How(group="journal"))
    of = {part: {row["journal"] for row in part_rows} for part, part_rows in parts_of(tmp_path / "c").items()}
    assert sum(map(len, of.values())) == len(set.union(*of.values()))
    assert all(abs(done.counts[part] - 300) < 60 for part in ("dev", "test"))


def test_texts_that_are_the_same_stay_together(tmp_path):
    rows = [{"text": f"{'Text' if i % 2 else 'text'} {i % 50}", "labels": [f"l{i % 7}"]} for i in range(200)]
    split(write_rows(tmp_path / "all.jsonl", rows), tmp_path / "c", How())
    texts = [{row["text"].lower() for row in rows} for rows in parts_of(tmp_path / "c").values()]
    assert sum(map(len, texts)) == 50


def test_newest_go_to_test(rows, tmp_path):
    split(write_rows(tmp_path / "all.jsonl", rows), tmp_path / "c", How(by_date="year"))
    years = {part: [row["year"] for row in part_rows] for part, part_rows in parts_of(tmp_path / "c").items()}
    assert max(years["train"]) <= min(years["dev"]) <= max(years["dev"]) <= min(years["test"])
    assert len(years["test"]) == 300


def test_dates_of_many_forms_are_in_order():
    dates = ["1969", 1999, "2000-02", "2000-02-03", "20000204", "2000-02-05T10:00:00Z", "2000-02-05T13:00+01:00"]
    seconds = [seconds_of(date, "d", {"d": date}) for date in dates]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == len(dates)
    for bad in ("31.12.2020", "", None, "spring 2020", True):
        with pytest.raises(ValueError, match="nor a date such as"):
            seconds_of(bad, "d", {"d": bad})


def test_own_columns_become_ours_and_others_are_kept(tmp_path):
    rows = [{"title": f"t{i}", "abs": "x", "tags": "a,b", "nr": i, "text": "other", "n": {"x": i}} for i in range(30)]
    write_rows(tmp_path / "all.jsonl", rows)
    options = ["--text-column", "title", "--text-column", "abs", "--labels-column", "tags", "--label-separator", ","]
    printed = ok(aplc("split", tmp_path / "all.jsonl", "--out", tmp_path / "c", "--id-column", "nr", *options))
    assert "train: 24 documents, 2 labels\ndev: 3 documents" in printed
    assert "labels of test that train lacks: 0" in printed
    (first, *_) = parts_of(tmp_path / "c")["train"]
    i = int(first["id"])
    assert first == {"id": str(i), "text": f"t{i} x", "labels": ["a", "b"], "input_text": "other", "n": {"x": i}}
    assert len(list(Corpus.open(tmp_path / "c").documents("test"))) == 3


def test_texts_alone_are_split_too(tmp_path):
    path = write(tmp_path / "all.txt", "".join(f"line {i}\n" for i in range(20)))
    assert "test: 2 documents, 0 labels" in ok(aplc("split", path, "--out", tmp_path / "c"))
    fails(aplc("split", path, "--out", tmp_path / "d", "--group", "x"), "all.txt, line 1: no 'x', only nothing")


def test_without_a_dev_part_and_with_bad_rows(tmp_path):
    path = write_rows(tmp_path / "all.jsonl", zipf_rows(50))
    with path.open("a") as file:
        file.write("{oops\n")
    fails(aplc("split", path, "--out", tmp_path / "c"), "all.jsonl, line 51")
    assert not (tmp_path / "c").exists()
    done = aplc("split", path, "--out", tmp_path / "c", "--dev", 0, "--on-bad-row", "skip")
    assert "dev:" not in ok(done)
    assert "1 row could not be read" in done.stderr
    assert sorted(file.name for file in (tmp_path / "c").iterdir()) == ["rejects.jsonl", "test.jsonl", "train.jsonl"]
    fails(aplc("split", path, "--out", tmp_path / "c"), "already exists")


def test_something_must_be_split_off():
    with pytest.raises(AplcError, match="nothing would be split off"):
        How(dev=0, test=0)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (-0.1, 0.2), (float("nan"), 0.1)])
def test_shares_must_leave_something(shares):
    with pytest.raises(AplcError, match="leave something for train"):
        How(dev=shares[0], test=shares[1])


def test_documents_without_labels_or_text_are_counted_and_left_out_only_if_asked(tmp_path):
    rows = [{"text": f"text {i}", "labels": ["a"]} for i in range(20)]
    rows += [{"text": f"bare {i}", "labels": []} for i in range(3)] + [{"text": " ", "labels": ["a"]}]
    file = write_rows(tmp_path / "a.jsonl", rows)
    shown = ok(aplc("split", file, "--out", tmp_path / "all"))
    assert "without labels: 3 documents, in all parts; --labelled-only leaves them out" in shown
    assert "without text: 1 document, of which nothing can be learned" in shown
    shown = ok(aplc("split", file, "--out", tmp_path / "labelled", "--labelled-only"))
    assert "left out: 3 documents without labels" in shown
    for name, n in (("all", 24), ("labelled", 21)):
        assert sum(len(path.read_text().splitlines()) for path in (tmp_path / name).glob("*.jsonl")) == n


def test_labels_in_a_column_of_another_name_are_missed(tmp_path):
    write(tmp_path / "a.csv", "text,subjects\n" + "".join(f"text {i},cats;dogs\n" for i in range(50)))
    said = ok(aplc("split", tmp_path / "a.csv", "--out", tmp_path / "corpus"))
    assert "no document has a label; if the column has another name, split again with --labels-column NAME" in said
    said = ok(aplc("split", tmp_path / "a.csv", "--out", tmp_path / "again", "--labels-column", "subjects"))
    assert "no document has a label" not in said
