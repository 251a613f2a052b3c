"""Guards a run under torchrun when a worker dies: the workers are restarted, and not a step is lost."""

import os
import signal
from pathlib import Path

import pytest

from helpers import assert_same_weights, launch, start, train_command, wait_for

LONG = ["train.epochs=12", "train.patience=0", "train.checkpoint_steps=3", "model.dropout=0.1"]
SPREAD = {"data parallel": [], "sharded": ["train.shard_labels=true", "train.shard_encoder=true"]}


@pytest.mark.slow
@pytest.mark.parametrize("spread", SPREAD.values(), ids=SPREAD)
def test_dead_worker_is_restarted_and_nothing_lost(corpus, tmp_path, spread):
    launch(train_command(corpus, tmp_path / "whole", *LONG, *spread, processes=2))
    out = tmp_path / "parts"
    running = start(train_command(corpus, out, *LONG, *spread, processes=2, torchrun=["--max-restarts", "2"]))
    wait_for(lambda: list(out.glob("checkpoints/step-*")), running)
    os.kill(worker(out, rank=1), signal.SIGKILL)
    assert running.wait(timeout=300) == 0
    assert_same_weights(tmp_path / "whole", out)


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
