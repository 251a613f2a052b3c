"""Guards the command line as users meet it: every expected failure is one line on standard error and exit code 2."""

import json
import shutil
import subprocess
import sys

import pytest

from helpers import SETTINGS, aplc, fails, ok, write

TWO = '{"text": "cats and dogs", "labels": ["animals"]}\n{"text": "trains", "labels": ["vehicles", "machines"]}\n'


def test_train_evaluate_predict_on_two_lines(tmp_path):
    corpus, out = write(tmp_path / "two.jsonl", TWO), tmp_path / "model"
    ok(aplc("train", corpus, "--out", out, *SETTINGS))
    evaluated = aplc("evaluate", out, corpus, "--json", tmp_path / "scores.json")
    assert "P " in ok(evaluated)
    assert "trained on these documents" in evaluated.stderr
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert (scores["documents"], scores["part"]) == (2, "train")
    assert 0 <= scores["metrics"]["P@1"] <= 1
    ok(
        aplc(
            "predict", out, "-", "--out", tmp_path / "tags.jsonl", "--top-k", 99, stdin='{"text": "cats", "id": "x"}\n'
        )
    )
    (row,) = map(json.loads, (tmp_path / "tags.jsonl").read_text().splitlines())
    assert row["id"] == "x"
    assert sorted(row["labels"]) == ["animals", "machines", "vehicles"]
    assert row["probabilities"] == sorted(row["probabilities"], reverse=True)


@pytest.mark.parametrize(
    "content",
    [
        '{"text": "a cat", "labels": ["only"]}\n{"text": "a dog", "labels": ["only"]}\n',
        '{"text": "   ", "labels": ["a"]}\n{"text": "words", "labels": ["b"]}\n',
        '{"text": "one", "labels": []}\n{"text": "two", "labels": ["a", "a", "b"]}\n',
        '\ufeff{"text": "ünï", "labels": ["日本, 語"]}\r\n{"text": "two", "labels": ["é"]}\r\n',
        '{"text": "' + "long " * 50_000 + '", "labels": ["a"]}\n{"text": "two", "labels": ["b"]}\n',
    ],
    ids=["one label", "only spaces", "unlabelled and repeated", "windows unicode", "long"],
)
def test_odd_two_line_corpora_train(tmp_path, content):
    corpus = write(tmp_path / "two.jsonl", content)
    ok(aplc("train", corpus, "--out", tmp_path / "model", *SETTINGS))
    ok(aplc("evaluate", tmp_path / "model", corpus))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["no documents"]),
        ('{"text": "a"}\n{"text": "b", "labels": []}\n', ["no document has a label"]),
        ('{"text": " ", "labels": ["a"]}\n', ["texts are empty"]),
        ('{"text": "a", "labels": ["x"]}\n{oops\n', ["two.jsonl, line 2", "--on-bad-row skip"]),
    ],
    ids=["empty", "no labels", "no text", "bad row"],
)
def test_corpora_that_can_not_be_trained_on(tmp_path, content, words):
    fails(aplc("train", write(tmp_path / "two.jsonl", content), "--out", tmp_path / "model", *SETTINGS), *words)


def test_bad_rows_can_be_skipped(tmp_path):
    corpus = write(tmp_path / "two.jsonl", TWO + "{oops\n")
    done = aplc("train", corpus, "--out", tmp_path / "model", "--on-bad-row", "skip", *SETTINGS)
    ok(done)
    assert "1 row could not be read" in done.stderr
    assert json.loads((tmp_path / "model" / "rejects.jsonl").read_text())["line"] == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "nowhere", "--out", "x"],
        ["train", "nowhere.jsonl", "--out", "x", "--preset", "nope"],
        ["train", "nowhere.jsonl", "--out", "x", "--set", "train.epochs=none"],
        ["evaluate", "nowhere", "nowhere"],
        ["predict", "nowhere", "-", "--out", "x"],
        ["inspect", "nowhere"],
        ["predict"],
        ["unknown"],
        ["train", "--top-k"],
    ],
)
def test_wrong_calls(tmp_path, arguments):
    fails(aplc(*arguments))


def test_failed_prediction_leaves_nothing(trained, tmp_path):
    bad = write(tmp_path / "in.jsonl", '{"text": "a"}\n{oops\n')
    fails(aplc("predict", trained, bad, "--out", tmp_path / "tags.jsonl"), "in.jsonl, line 2")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    done = aplc("predict", trained, bad, "--out", tmp_path / "tags.jsonl", "--on-bad-row", "skip")
    assert "tagged 1 document" in ok(done)
    assert (tmp_path / "tags.jsonl.rejects.jsonl").is_file()
    fails(aplc("predict", trained, bad, "--out", tmp_path), "is a folder")  # and not the row, which it never read


def test_dash_is_standard_output_and_messages_go_elsewhere(trained, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = '{"text": "cat dog paw", "id": "x"}\n{oops\n'
    done = aplc("predict", trained, "-", "--out", "-", "--on-bad-row", "skip", stdin=texts)
    (row,) = map(json.loads, ok(done).splitlines())
    assert row["id"] == "x"
    assert "tagged 1 document\n" in done.stderr
    assert "see rejects.jsonl" in done.stderr
    done = aplc("evaluate", trained, corpus, "--json", "-")
    assert json.loads(ok(done))["scores"] is None
    assert "±" in done.stderr
    done = aplc("evaluate", trained, corpus, "--report", "-", "--json", "a.json")
    assert ok(done).startswith("<!doctype html>")
    assert "±" in done.stderr
    assert "parameters" in json.dumps(json.loads(ok(aplc("plan", corpus, "--json", "-", *SETTINGS))))
    assert json.loads(ok(aplc("compare", "a.json", "a.json", "--json", "-")))
    fails(aplc("evaluate", trained, corpus, "--report", "-", "--json", "-"), "only one output")
    write(tmp_path / "saved.json", ok(aplc("evaluate", trained, corpus, "--json", "-")))
    fails(aplc("compare", "a.json", "saved.json"), "saved.json", "--json FILE")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.npz", "rejects.jsonl", "saved.json"]


def test_reader_that_goes_away_stops_prediction_quietly(trained, tmp_path):
    """As in `aplc predict model - --out - < texts.jsonl | head -3`; 20,000 rows are more than a pipe holds."""
    texts = write(tmp_path / "texts.jsonl", '{"text": "cat dog paw"}\n' * 20_000)
    command = [sys.executable, "-m", "aplc", "predict", trained, "-", "--out", "-"]
    with (
        texts.open("rb") as stdin,
        subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running,
    ):
        assert running.stdout is not None
        assert [json.loads(running.stdout.readline())["line"] for _ in range(3)] == [1, 2, 3]
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == b"device: cpu (no GPU found)\n"
    assert running.returncode == 1


def test_prediction_does_not_replace_its_input(trained, tmp_path):
    path = write(tmp_path / "in.jsonl", '{"text": "a"}\n')
    fails(aplc("predict", trained, path, "--out", tmp_path / "." / "in.jsonl"), "a file that this command reads")
    assert path.read_text() == '{"text": "a"}\n'


@pytest.fixture(scope="module")
def words(corpus, tmp_path_factory):
    """A words model, which trains in a second."""
    out = tmp_path_factory.mktemp("words") / "model"
    ok(aplc("train", corpus, "--preset", "words", "--out", out))
    return out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate m c --json books.csv", "--json books.csv: give a name that ends in .json"),
        ("plan c --preset words --json c/train.jsonl", "c/train.jsonl: is a part of the corpus c"),
        ("evaluate m books.json --json books.json", "books.json: is a file that this command reads"),
        ("evaluate m c --json c/test.json", "c/test.json: is a part of the corpus c"),
        ("evaluate m c --json m/config.json", "m/config.json: is a file of the model m"),
        ("evaluate m c --json link.json", "link.json: is a file of the model m"),
        ("plan books.json --preset words --json books.json", "books.json: is a file that this command reads"),
        ("predict m c/test.jsonl --out m/labels.txt", "m/labels.txt: is a file of the model m"),
        ("predict m c/test.jsonl --out m/evaluation.json", "m/evaluation.json: is a file of the model m"),
        ("predict m c/test.jsonl --out names.txt --allow names.txt", "names.txt: is a file that this command reads"),
        ("compare a.json b.json --json b.json", "b.json: is a file that this command reads"),
        ("predict m c/test.jsonl --out o.csv.gz", "o.csv.gz: predictions are written as .csv, .tsv, .json or .jsonl"),
        ("predict m c/test.jsonl --out o.XLSX", "not as .XLSX"),
        ("predict m c/test.jsonl --out o.parquet", "not as .parquet"),
    ],
)
def test_outputs_replace_nothing_that_is_read(words, corpus, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(words, "m")
    shutil.copytree(corpus, "c")
    write(tmp_path / "books.json", json.dumps([json.loads(line) for line in TWO.splitlines()]))
    write(tmp_path / "names.txt", "animals\n")
    (tmp_path / "link.json").symlink_to(tmp_path / "m" / "config.json")
    for name in ("books.csv", "a.json", "b.json"):
        write(tmp_path / name, "mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    fails(aplc(*command.split()), message)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_outputs_of_last_time_are_replaced_wherever_they_are(words, corpus, tmp_path):
    model, folder = shutil.copytree(words, tmp_path / "m"), shutil.copytree(corpus, tmp_path / "c")
    for _ in range(2):
        ok(aplc("evaluate", model, folder, "--json", model / "evaluation.json", "--report", folder / "report.html"))
        ok(aplc("evaluate", model, folder, "--json", folder / "figures.json"))
        ok(aplc("predict", model, folder / "test.jsonl", "--out", model / "tags.csv"))


def test_rejects_do_not_replace_the_input(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rejects.jsonl", TWO + "{oops\n")
    fails(aplc("evaluate", words, "rejects.jsonl", "--on-bad-row", "skip"), "rejects.jsonl: rows that can't be read")
    assert (tmp_path / "rejects.jsonl").read_text() == TWO + "{oops\n"


def test_training_replaces_nothing_of_the_users(corpus, tmp_path):
    mine = write(tmp_path / "README.md", "mine")
    fails(aplc("train", corpus, "--preset", "words", "--out", tmp_path), "README.md: already exists")
    fails(aplc("train", corpus, "--preset", "words", "--out", mine), "is a file")
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert mine.read_text() == "mine"


def test_what_is_no_model_is_called_what_it_is(words, corpus, tmp_path):
    texts = write(tmp_path / "texts.jsonl", TWO)
    fails(aplc("predict", texts, words, "--out", tmp_path / "o.csv"), "texts.jsonl: is a file", "wrong order")
    fails(aplc("serve", corpus), f"{corpus}: is a corpus, not a model folder", f"aplc train {corpus} --out MODEL")
    fails(aplc("evaluate", corpus, words), "is a model folder, not a corpus", "wrong order")
    fails(aplc("labels", "list", tmp_path), "not a model folder (no config.json)")


def test_a_model_is_not_trained_into_a_corpus(corpus, tmp_path):
    folder = shutil.copytree(corpus, tmp_path / "c")
    fails(aplc("train", folder, "--preset", "words", "--out", folder), "c: holds a corpus (train.jsonl)")
    assert sorted(path.name for path in folder.iterdir()) == ["test.jsonl", "train.jsonl"]


def test_interrupted_fit_says_that_nothing_was_saved(corpus, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("aplc.train.words.fit_words", interrupt)
    done = aplc("train", corpus, "--preset", "words", "--out", tmp_path / "m")
    assert done.returncode == 130
    assert done.stderr.endswith("stopped; nothing was saved\n")


def test_retired_labels_are_not_counted(words, corpus, tmp_path):
    ok(aplc("labels", "retire", words, "rare", "--out", tmp_path / "m"))
    assert ok(aplc("evaluate", tmp_path / "m", corpus)).startswith("60 documents, 5 labels\n")
    fails(aplc("labels", "merge", words, "food", "animals", "--into", "food"), "into itself; leave it out")


def test_split_of_nothing(tmp_path):
    path = write(tmp_path / "a.jsonl", TWO)
    fails(aplc("split", path, "--out", tmp_path / "c", "--dev", 0, "--test", 0), "nothing would be split off")


def test_fit_that_fails_leaves_no_run_behind(tmp_path):
    """So that the same command works once its corpus or settings are mended."""
    out, corpus = tmp_path / "model", tmp_path / "corpus.jsonl"
    call = ["train", corpus, "--preset", "words", "--out", out]
    write(corpus, '{"text": "!", "labels": ["a"]}\n{"text": "?", "labels": ["b"]}\n')
    fails(aplc(*call), "no words")
    write(corpus, '{"text": "one", "labels": ["a"]}\n' * 2)
    ok(aplc(*call))
    write(out / "run.json", "{")
    fails(aplc(*call, "--resume"), "run.json")


def test_usage_errors_name_the_commands_own_help():
    fails(aplc("train", "corpus", "--epochs", 3), "--epochs", "(see aplc train --help)")
    fails(aplc("labels", "retire"), "(see aplc labels retire --help)")
    assert "words;" in ok(aplc("train", "--help"))


def test_missing_pretrained_weights_say_where_to_put_them(corpus, tmp_path):
    done = aplc(
        "train", corpus, "--preset", "eurlex-4k", "--out", tmp_path / "model", "--set", "model.encoder=./missing"
    )
    fails(done, "model.safetensors", "--set model.encoder=")


def test_inspect_shows_table_1_and_the_distribution(corpus):
    printed = ok(aplc("inspect", corpus))
    for words in ("N_train", "200", "N_test", "60", "labels (L)", "labels that the training part lacks", "█"):
        assert words in printed


def test_as_a_command_of_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "aplc", "inspect", "nowhere"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "aplc: nowhere: no such file or folder\n")


def test_version_and_help():
    assert ok(aplc("--version")).startswith("aplc ")
    assert all(command in ok(aplc("--help")) for command in ("data", "inspect", "train", "evaluate", "predict"))
    for alone in ([], ["labels"]):
        done = aplc(*alone)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.rstrip("\n") == ok(aplc(*alone, "--help")).rstrip("\n")


def test_evaluate_report_and_compare(trained, corpus, tmp_path):
    for name in ("a", "b"):
        options = ["--json", tmp_path / f"{name}.json", "--propensity", "0.5,0.4", "--threshold", "0.3"]
        done = aplc("evaluate", trained, corpus, "--report", tmp_path / "r.html", *options, "--examples", 1)
        assert all(words in ok(done) for words in ("±", "macro-F1", "torso", "a true label"))
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    done = aplc("compare", tmp_path / "a.json", tmp_path / "b.json", "--picture", tmp_path / "p.svg")
    assert "+0.00" in ok(done)
    assert (tmp_path / "p.svg").is_file()
    fails(aplc("compare", trained, tmp_path / "b.json"), "no saved evaluation", "aplc evaluate", "--json")
    fails(aplc("compare", tmp_path / "a.json"), "two runs")
    fails(aplc("evaluate", trained, corpus, "--propensity", "nonsense"), "--propensity", "wikipedia")
    fails(aplc("evaluate", trained, corpus, "--json", tmp_path), "is a folder")
    fails(aplc("evaluate", trained, corpus, "--report", tmp_path / "r.pdf"), ".html")


def test_inspect_options(trained, corpus, tmp_path):
    printed = ok(aplc("inspect", corpus, "--picture", tmp_path / "p.png", "--max-length", 8, "--tokenizer", trained))
    assert "texts cut at 8 tokens" in printed
    assert ">=" not in printed
    assert (tmp_path / "p.png").is_file()
    fails(aplc("inspect", corpus, "--picture", tmp_path / "p.gif"), ".svg or .png")
    fails(aplc("inspect", corpus, "--preset", "nope"), "no preset")
    assert "cut" not in ok(aplc("inspect", corpus, "--preset", "cpu"))


def test_ablate_prints_its_table(corpus, tmp_path):
    done = aplc("ablate", "partition", corpus, "--out", tmp_path, "--seeds", 1, *SETTINGS)
    assert "| 0.1, 0.2, 0.7 | 1 |" in ok(done)
    assert f"figure: {tmp_path / 'partition.svg'}" in done.stderr
    assert (tmp_path / "partition.svg").is_file()
    fails(aplc("ablate", "nothing", corpus, "--out", tmp_path))
