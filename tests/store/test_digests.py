"""Guards a model folder that knows its files: damage is named, our own changes are not taken for it."""

import json
import shutil

import pytest

from aplc import Tagger
from aplc.errors import AplcError, ModelError
from aplc.store import digests
from aplc.store.folder import load_tagger, save_tagger, save_weights
from helpers import SETTINGS, aplc, fails, ok, write

FILES = ["model.safetensors", "tokenizer.json", "labels.txt", "label_counts.npy", "calibration.json"]


@pytest.fixture
def model(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "model")


@pytest.fixture(scope="module")
def words(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("words") / "model"
    ok(aplc("train", corpus, "--preset", "words", "--out", out, "--set", "data.validation=0.3"))
    return out


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_named(model, name):
    content = bytearray((model / name).read_bytes())
    content[-2] ^= 1
    (model / name).write_bytes(content)
    done = aplc("predict", model, "-", "--out", "-", stdin="{}")
    fails(done, f"{model / name}: has changed since the model was saved", "copy the whole folder again")
    (model / name).unlink()
    done = aplc("predict", model, "-", "--out", "-", stdin="{}")
    fails(done, f"{model / name}: is missing", "copy the whole folder again")


def test_damaged_configuration_is_named_with_a_cure(model):
    path = model / "config.json"
    path.write_text(path.read_text()[:-10])
    with pytest.raises(ModelError, match=r"config.json: not JSON .*damaged; copy the whole folder again"):
        load_tagger(model)


def test_sorted_labels_and_half_a_copy(words, tmp_path, corpus):
    half = shutil.copytree(words, tmp_path / "half", ignore=lambda *_: ["model.safetensors"])
    done = aplc("evaluate", half, corpus)
    fails(done, "model.safetensors: is missing")
    assert "epoch" not in done.stderr
    copy = shutil.copytree(words, tmp_path / "copy")
    names = (copy / "labels.txt").read_text().splitlines()
    write(copy / "labels.txt", "".join(f"{name}\n" for name in sorted(names)))
    fails(aplc("labels", "list", copy), "labels.txt: has changed")


@pytest.mark.parametrize("kind", ["network", "words"])
def test_resuming_the_finished_run_writes_lost_files_anew(corpus, words, tmp_path, kind):
    out, options = tmp_path / "model", ["--preset", "words", "--set", "data.validation=0.3"]
    if kind == "network":
        options = [*SETTINGS, "--set", "data.validation=0.3"]
        ok(aplc("train", corpus, "--out", out, *options))
    else:
        shutil.copytree(words, out)
    lost = [out / "calibration.json", out / "labels.txt"]
    before = [path.read_bytes() for path in lost]
    lost[0].unlink()
    write(lost[1], "x\n")
    fails(aplc("evaluate", out, corpus), "labels.txt: has changed", "calibration.json", "--resume")
    ok(aplc("train", corpus, "--out", out, "--resume", *options))
    assert [path.read_bytes() for path in lost] == before
    ok(aplc("evaluate", out, corpus))


def test_weights_that_are_damaged_stay_so(corpus, tmp_path):
    """Going on with a finished run must not take them for its own."""
    out = tmp_path / "model"
    ok(aplc("train", corpus, "--out", out, *SETTINGS))
    content = bytearray((out / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (out / "model.safetensors").write_bytes(content)
    (out / "labels.txt").unlink()
    for _ in range(2):
        done = aplc("train", corpus, "--out", out, "--resume", *SETTINGS)
        fails(done, "model.safetensors: has changed", "train again into another --out")


def test_our_own_changes_keep_the_digests_right(model, corpus, tmp_path):
    ok(aplc("labels", "rename", model, "food", "meals"))
    ok(aplc("labels", "merge", model, "rare", "--into", "meals"))
    ok(aplc("labels", "retire", model, "animals"))
    new = write(tmp_path / "names.txt", "brand new\n")
    ok(aplc("labels", "add", model, "--names", new))
    ok(aplc("evaluate", model, corpus, "--json", model / "evaluation.json"))
    write(model / "README.md", "my own words")
    tagger = Tagger.from_pretrained(model)
    tagger.save_pretrained(model)
    tagger.save_pretrained(tmp_path / "again")
    for folder in (model, tmp_path / "again"):
        noted = json.loads((folder / "config.json").read_text())["files"]
        assert sorted(noted) == sorted(FILES)
        load_tagger(folder)


def test_folder_without_digests_loads(model):
    """As all did that were saved before."""
    tree = json.loads((model / "config.json").read_text())
    del tree["files"]
    write(model / "config.json", json.dumps(tree))
    (model / "calibration.json").unlink()
    assert load_tagger(model).calibration is None
    for wrong in (3, {"labels.txt": None}, {"labels.txt": {"bytes": "x"}}):
        write(model / "config.json", json.dumps(tree | {"files": wrong}))
        with pytest.raises(AplcError):
            load_tagger(model)


def test_crash_between_two_writes_leaves_a_folder_that_loads(model, monkeypatch):
    trained = load_tagger(model)
    monkeypatch.setattr(digests, "_digest", lambda _: 1 / 0)  # the weights are there, the digests are not
    with pytest.raises(ZeroDivisionError):
        save_weights(trained.model, model)
    monkeypatch.undo()
    assert "files" not in json.loads((model / "config.json").read_text())
    load_tagger(model)


def test_of_long_files_both_ends_and_the_length_are_looked_at(trained, tmp_path, monkeypatch):
    tagger = load_tagger(trained)
    monkeypatch.setattr(digests, "WHOLE", 1000)
    monkeypatch.setattr(digests, "ENDS", 100)
    save_tagger(tagger, tmp_path)
    load_tagger(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    for damaged in (content[:-1], content[:-50] + b"x" + content[-49:], content[:50] + b"x" + content[51:]):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="safetensors: has changed"):
            load_tagger(tmp_path)


def test_saving_replaces_no_files_of_others(trained, tmp_path):
    tagger = Tagger.from_pretrained(trained)
    mine = write(tmp_path / "README.md", "mine")
    with pytest.raises(ModelError, match=r"README\.md: already exists"):
        tagger.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is a file"):
        tagger.save_pretrained(mine)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
