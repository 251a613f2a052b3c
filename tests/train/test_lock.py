"""Guards a run's folder: a second run is refused, naming the process that holds it, and nothing is left behind."""

import os
import signal
import subprocess
import sys

import pytest

from aplc.errors import RunError
from aplc.store.folder import load_tagger, read_labels
from aplc.train.lock import locked
from aplc.train.run_folder import RunFolder
from helpers import aplc, fails, ok, train_command, write

HOLD = """
import sys, time
from pathlib import Path
from aplc.train.run_folder import RunFolder
with RunFolder.open(Path(sys.argv[1]), resume=False):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def held(tmp_path):
    """A folder that another process trains into, and the process."""
    out = tmp_path / "model"
    with subprocess.Popen([sys.executable, "-c", HOLD, out], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield out, holder
        holder.kill()


@pytest.mark.parametrize("command", [["train", "--preset", "words"], ["train"], ["train", "--resume"], ["pretrain"]])
def test_second_run_is_refused_and_told_who_holds_the_folder(corpus, held, command):
    out, holder = held
    name, *options = command
    before = sorted(path.name for path in out.iterdir())
    done = aplc(name, corpus, "--out", out, *options)
    fails(done, str(out), f"process {holder.pid} on {os.uname().nodename}, since 20", "another --out")
    assert sorted(path.name for path in out.iterdir()) == before


def test_lock_of_a_dead_process_does_not_block_and_goes_with_the_next_run(corpus, held):
    out, holder = held
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert list(out.glob(".run.lock*"))
    ok(aplc("train", corpus, "--preset", "words", "--out", out))
    assert not list(out.glob(".*"))
    ok(aplc("labels", "rename", out, "food", "meals"))
    assert not list(out.glob(".*"))


def test_run_that_fails_leaves_neither_lock_nor_folder(tmp_path):
    corpus = write(tmp_path / "corpus.jsonl", '{"text": "no labels"}\n')
    fails(aplc("train", corpus, "--out", tmp_path / "model"), "no document has a label")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_two_runs_in_one_process_are_two(tmp_path):
    first, second = (RunFolder.open(tmp_path, resume=False) for _ in range(2))
    with first, pytest.raises(RunError, match=f"process {os.getpid()} on"), second:
        pass


def test_labels_of_a_folder_that_is_written_to_are_not_changed(corpus, tmp_path):
    out = tmp_path / "model"
    ok(aplc("train", corpus, "--preset", "words", "--out", out))
    before = read_labels(out).names
    with locked(out):
        for command in (
            ["rename", out, "food", "meals"],
            ["retire", out, "food"],
            ["merge", out, "food", "--into", "rare"],
        ):
            fails(aplc("labels", *command), f"{out}: process {os.getpid()} on", "is writing to it")
        ok(aplc("labels", "rename", out, "food", "meals", "--out", tmp_path / "other"))
    assert read_labels(out).names == before
    assert not list(out.glob(".*"))


def test_lock_holds_until_the_labels_are_changed(corpus, tmp_path, monkeypatch):
    """From before the model is read: what a run or another command leaves meanwhile would be lost."""
    out, tried = tmp_path / "model", []
    ok(aplc("train", corpus, "--preset", "words", "--out", out))

    def load(folder):
        tried.append(aplc("labels", "retire", out, "rare") if not tried else None)
        return load_tagger(folder)

    monkeypatch.setattr("aplc.store.folder.load_tagger", load)
    ok(aplc("labels", "rename", out, "food", "meals"))
    fails(tried[0], "is writing to it")
    assert read_labels(out).retired == frozenset()


@pytest.mark.slow
def test_second_run_under_torchrun_is_refused_by_every_worker(corpus, held):
    out, holder = held
    command = train_command(corpus, out, processes=2)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert done.stderr.count(f"aplc: {out}: process {holder.pid} on") == 2
