"""Guards runs/: each script takes the files a user downloads to a table beside the paper's, with a small encoder."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from aplc.config import Config, preset_names
from helpers import SMALL, as_options, topic_rows

RUNS = Path(__file__).parent.parent / "runs"
SCRIPTS = sorted(path.stem for path in RUNS.glob("*-*.sh"))
PARTS = {"train": topic_rows(200, seed=1), "test": topic_rows(20, seed=2)}
NAMES = sorted({label.replace(", ", "-") for rows in PARTS.values() for row in rows for label in row["labels"]})
SETTINGS = as_options([*SMALL, "model.encoder=new", "data.max_length=32", "train.epochs=1"])


def ids(row):
    return sorted(NAMES.index(label.replace(", ", "-")) for label in row["labels"])


def lines(path, rows):
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def attentionxml(folder):
    for part, rows in PARTS.items():
        lines(folder / f"{part}_raw_texts.txt", (row["text"] for row in rows))
        lines(folder / f"{part}_labels.txt", (" ".join(NAMES[i] for i in ids(row)) for row in rows))


def pecos(folder):
    for part, short in (("train", "trn"), ("test", "tst")):
        lines(folder / f"X.{short}.txt", (row["text"] for row in PARTS[part]))
        dense = np.zeros((len(PARTS[part]), len(NAMES)), dtype=np.float32)
        for i, row in enumerate(PARTS[part]):
            dense[i, ids(row)] = 1
        sp.save_npz(folder / f"Y.{short}.npz", sp.csr_matrix(dense))
    lines(folder / "output-items.txt", NAMES)


def authors(folder):
    for part, name in (("train", "train.csv"), ("test", "dev.csv")):
        rows = (f'{i},{row["text"]},"{",".join(NAMES[j] for j in ids(row))}"' for i, row in enumerate(PARTS[part]))
        lines(folder / name, ["id,text,labels", *rows])
    lines(folder / "labels.txt", NAMES)


def repository(folder):
    for part, short in (("train", "trn"), ("test", "tst")):
        rows = ({"title": "A title", "content": row["text"], "target_ind": ids(row)} for row in PARTS[part])
        lines(folder / f"{short}.json", map(json.dumps, rows))
    lines(folder / "Yf.txt", NAMES)


def run(script, *arguments, command=f"{sys.executable} -m aplc"):
    environment = {**os.environ, "APLC": command, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    call = ["bash", RUNS / f"{script}.sh", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("script", "write"),
    [
        ("eurlex-4k", authors),
        ("amazoncat-13k", repository),
        ("wiki10-31k", pecos),
        ("wiki-500k", authors),
        ("amazon-670k", attentionxml),
    ],
)
def test_from_downloaded_files_to_a_table(tmp_path, script, write):
    (tmp_path / "files").mkdir()
    write(tmp_path / "files")
    done = run(script, tmp_path / "files", tmp_path / "out", *SETTINGS)
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.rindex(f"{script:<26}") :].splitlines()
    figures = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert table[1].split()[2:] == [f"{100 * figures['metrics'][f'P@{k}']:.2f}" for k in (1, 3, 5)]
    paper = tomllib.loads((RUNS / "paper.toml").read_text("utf-8"))[script]["precision"]
    assert table[2] == f"{'APLC-XLNet (the paper' + chr(39) + 's)':<26}" + "".join(
        f"{value:8.2f}" for value in paper["APLC-XLNet"]
    )
    assert "200 training and 20 test documents here" in table[-1]
    config = json.loads((tmp_path / "out" / "model" / "config.json").read_text())
    assert config["n_labels"] == len(NAMES)
    proportions = json.dumps(list(Config.from_preset(script).clusters.proportions))
    assert proportions in json.dumps(config), "the preset's clusters"


WRITERS = [authors, pecos, attentionxml, repository, authors]


@pytest.mark.parametrize(("script", "write"), list(zip(SCRIPTS, WRITERS, strict=True)))
def test_commands(tmp_path, script, write):
    """Every kind of files is told by its names and converted; what a script then calls."""
    (tmp_path / "files").mkdir()
    write(tmp_path / "files")
    out = tmp_path / "out"
    done = run(script, tmp_path / "files", out, "--set", "a.b=c", command="echo")
    kind = {"wiki-500k": "wikipedia", "amazon-670k": "amazon"}.get(script, "default")
    convert, train, evaluate, *_ = done.stdout.splitlines()
    assert convert.endswith(f": 200 training and 20 test documents with {len(NAMES)} labels in {out}/corpus")
    assert train == (
        f"train {out}/corpus --preset {script} --out {out}/model --resume --set data.validation=0 --set a.b=c"
    )
    assert evaluate == f"evaluate {out}/model {out}/corpus --propensity {kind} --json {out}/evaluation.json"


def test_every_paper_preset_has_a_script_and_a_row():
    paper = tomllib.loads((RUNS / "paper.toml").read_text("utf-8"))
    assert set(SCRIPTS) == set(paper)
    assert set(SCRIPTS) <= set(preset_names())
    for name in SCRIPTS:
        text = (RUNS / f"{name}.sh").read_text("utf-8")
        assert re.findall(r"^(?:PRESET|PROPENSITY)=(\S+)", text, flags=re.MULTILINE)[0] == name
        assert os.access(RUNS / f"{name}.sh", os.X_OK)
        assert all(len(row) == 3 for row in paper[name]["precision"].values())


def test_own_environment_in_a_folder_with_a_blank(tmp_path):
    """Without a word about Python a script takes .venv beside it, wherever that is; torchrun is found there too."""
    clone, files = tmp_path / "a clone", tmp_path / "some files"
    shutil.copytree(RUNS, clone / "runs")
    (clone / ".venv" / "bin").mkdir(parents=True)
    for name in ("python3", "aplc", "torchrun"):
        command = clone / ".venv" / "bin" / name
        command.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        command.chmod(0o755)
    (files / "out" / "corpus").mkdir(parents=True)
    for part in ("train", "test"):
        (files / "out" / "corpus" / f"{part}.jsonl").touch()
    call = ["bash", clone / "runs" / "eurlex-4k.sh", files, files / "out"]
    environment = {name: value for name, value in os.environ.items() if name not in ("APLC", "PYTHON")}
    for more, expected in ({}, "python3 -m aplc"), ({"APLC": "torchrun -m aplc"}, "torchrun -m aplc"):
        done = subprocess.run(call, capture_output=True, text=True, check=True, env=environment | more)
        train, evaluate, *_ = done.stdout.splitlines()
        assert train.startswith(f"{expected} train {files}/out/corpus --preset eurlex-4k ")
        assert evaluate.startswith(f"{expected} evaluate {files}/out/model ")


def test_missing_test_part_is_said_before_training(tmp_path):
    files, out = tmp_path / "files", tmp_path / "out"
    files.mkdir()
    authors(files)
    test_part = (files / "dev.csv").read_text()
    (files / "dev.csv").unlink()
    done = run("eurlex-4k", files, out)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"{files}: no files of a test part")
    assert not (out / "model").exists()
    (files / "dev.csv").write_text(test_part)
    assert f"{files}: 200 training and 20 test documents" in run("eurlex-4k", files, out, command="echo").stdout


def test_missing_arguments_and_files_are_said(tmp_path):
    done = run("eurlex-4k")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
    (tmp_path / "files").mkdir()
    done = run("wiki-500k", tmp_path / "files", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path}/files: no train.csv, X.trn.txt,")
    assert done.stderr.count("\n") == 1
