"""Guards a run that is killed at any moment: gone on with, it ends with the weights of one that never was."""

import os
import random
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


def newest(out: Path) -> str:
    return max((path.name for path in out.glob("checkpoints/step-*")), default="")
