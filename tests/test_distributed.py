"""Guards several processes: they train the model that one would, however it is spread, and survive a dead worker."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aplc.data.formats import read_documents
from aplc.errors import CorpusError
from conftest import SMALL

SETTINGS = [*SMALL, "model.dropout=0.0", "model.hidden_dropout=0.0", "train.lr_encoder=5e-4"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(corpus, out, *settings, processes=1, resume=False, torchrun=()):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), *torchrun] if processes > 1 else []
    sets = [argument for setting in (*SETTINGS, *settings) for argument in ("--set", setting)]
    train = ["-m", "aplc", "train", str(corpus), "--out", str(out), *sets, *(["--resume"] if resume else [])]
    return [sys.executable, *launcher, *train]


def run(arguments):
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def start(arguments):
    return subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def weights(out):
    return load_file(out / "model.safetensors")


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "model"
    run(command(corpus, out, "train.epochs=5"))
    return out


SHARDED = ["train.shard_labels=true", "train.shard_encoder=true"]
SPREAD = {
    "data parallel": (2, []),
    "accumulated": (2, ["train.accumulate=2"]),
    "sharded": (3, SHARDED),  # so that a table of two rows is not on every rank
}


@pytest.mark.parametrize(("processes", "spread"), SPREAD.values(), ids=SPREAD)
def test_several_processes_train_the_model_of_one(corpus, alone, tmp_path, processes, spread):
    """60 steps with dropout off; the last batch of an epoch has fewer documents, so that shares are unequal."""
    run(command(corpus, tmp_path / "two", "train.epochs=5", *spread, processes=processes))
    expected, found = weights(alone), weights(tmp_path / "two")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 1e-5, name
    scores = [
        [json.loads(line)["validation"] for line in (out / "metrics.jsonl").open() if "validation" in line]
        for out in (alone, tmp_path / "two")
    ]
    assert len(scores[0]) == 5
    for one, two in zip(*scores, strict=True):
        for name in ("P@1", "P@5", "nDCG@5", "PSP@5"):
            assert one[name] == two[name]


def test_two_processes_predict_what_one_does(alone, corpus, tmp_path):
    predict = ["-m", "aplc", "predict", str(alone), str(corpus / "test.jsonl"), "--out"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run([sys.executable, *predict, str(tmp_path / "one.jsonl")])
    done = run([sys.executable, *torchrun, *predict, str(tmp_path / "two.jsonl")])
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert done.stdout.count("tagged 60 documents") == 1


def test_standard_input_is_not_shared(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CorpusError, match="standard input can't be shared"):
        list(read_documents("-"))


LONG = ["train.epochs=12", "train.patience=0", "train.checkpoint_steps=3", "model.dropout=0.1"]


@pytest.mark.parametrize("spread", [[], SHARDED], ids=["data parallel", "sharded"])
def test_dead_worker_is_restarted_and_nothing_lost(corpus, tmp_path, spread):
    run(command(corpus, tmp_path / "whole", *LONG, *spread, processes=2))
    out = tmp_path / "parts"
    arguments = command(corpus, out, *LONG, *spread, processes=2, torchrun=["--max-restarts", "2"])
    running = start(arguments)
    wait_for(lambda: (out / "checkpoints").is_dir() and list((out / "checkpoints").glob("step-*")), running)
    os.kill(worker(out, rank=1), signal.SIGKILL)
    assert running.wait(timeout=300) == 0
    expected, found = weights(tmp_path / "whole"), weights(out)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


KILLS = int(os.environ.get("APLC_KILLS", "4"))
"""20 for the long run by hand."""


def test_killed_again_and_again_it_ends_with_the_same_weights(corpus, tmp_path):
    settings = [
        f"train.epochs={max(6, KILLS // 2 + 2)}",
        "train.patience=0",
        "train.checkpoint_steps=1",
        "model.dropout=0.1",
    ]
    run(command(corpus, tmp_path / "whole", *settings))
    rng, out, kills = random.Random(5), tmp_path / "parts", 0
    while kills < KILLS:
        running = start(command(corpus, out, *settings, resume=True))
        before = newest(out)
        wait_for(lambda before=before: newest(out) > before, running)
        time.sleep(rng.random() / 10)
        if running.poll() is not None:
            break
        running.kill()
        running.wait()
        kills += 1
    assert kills >= KILLS - 1
    run(command(corpus, out, *settings, resume=True))
    expected, found = weights(tmp_path / "whole"), weights(out)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def newest(out: Path) -> str:
    return max((path.name for path in (out / "checkpoints").glob("step-*")), default="")


def wait_for(condition, running, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition() and running.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def worker(out: Path, rank: int) -> int:
    """The process id of the rank that trains into `out`."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if str(out).encode() in arguments and f"\0LOCAL_RANK={rank}\0".encode() in environment:
            return int(folder.name)
    raise AssertionError("no such worker")
