"""Guards a run that is killed at any moment: gone on with, it ends with the weights of one that never was."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from helpers import assert_same_weights, launch, start, train_command, wait_for

KILLS = int(os.environ.get("APLC_KILLS", "4"))
"""20 for the long run by hand."""


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_weights(corpus, tmp_path):
    settings = [
        f"train.epochs={max(6, KILLS // 2 + 2)}",
        "train.patience=0",
        "train.checkpoint_steps=1",
        "model.dropout=0.1",
    ]
    launch(train_command(corpus, tmp_path / "whole", *settings))
    rng, out, kills = random.Random(5), tmp_path / "parts", 0
    while kills < KILLS:
        running = start(train_command(corpus, out, *settings, resume=True))
        before = newest(out)
        wait_for(lambda before=before: newest(out) > before, running)
        time.sleep(rng.random() / 10)
        if running.poll() is not None:
            break
        running.kill()
        running.wait()
        kills += 1
    assert kills >= KILLS - 1
    launch(train_command(corpus, out, *settings, resume=True))
    assert_same_weights(tmp_path / "whole", out)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_terminated_by_a_scheduler_it_writes_a_checkpoint(corpus, tmp_path, processes):
    settings = ["train.epochs=200", "train.patience=0", "train.checkpoint_steps=100000", "model.dropout=0.1"]
    running, out = start(train_command(corpus, tmp_path, *settings, processes=processes)), tmp_path
    wait_for(lambda: newest(out), running)  # of the first epoch
    before = newest(out)
    running.send_signal(signal.SIGTERM)
    code = running.wait(timeout=60)
    assert code == (143 if processes == 1 else 1)
    step = int(newest(out).removeprefix("step-"))
    assert step % 12, f"{before} and {newest(out)}: both of an epoch's end"  # 190 documents in batches of 16
    assert not list(out.glob(".run.lock*"))


def newest(out: Path) -> str:
    return max((path.name for path in out.glob("checkpoints/step-*")), default="")


@pytest.mark.slow
def test_a_words_model_killed_at_random_moments_has_the_same_bytes(tmp_path):
    """1,300 labels in 1,300 documents are solved for in three blocks."""
    rng = random.Random(7)
    rows = [
        {"text": " ".join(f"w{int(300 * rng.random() ** 2)}" for _ in range(20)), "labels": [f"{i}", f"{i // 9}"]}
        for i in range(1_300)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings, out = ["model.kind=words", "words.limit=50"], tmp_path / "parts"
    began = time.monotonic()
    launch(train_command(tmp_path, tmp_path / "whole", *settings))
    takes, kills = time.monotonic() - began, 0
    for _ in range(KILLS):
        running = start(train_command(tmp_path, out, *settings, resume=True))
        time.sleep((0.4 + 0.5 * rng.random()) * takes)  # importing is the first part of it
        kills += running.poll() is None
        running.kill()
        running.wait()
    launch(train_command(tmp_path, out, *settings, resume=True, processes=2))  # they share out what is left
    assert kills
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
