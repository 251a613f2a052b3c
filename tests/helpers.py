"""What test files share: a small corpus with a pattern to learn, the command line, and runs in processes of their own.

ok(aplc("train", corpus, "--out", out, *SETTINGS))      # in this process
launch(train_command(corpus, out, processes=2))         # under torchrun
"""

import io
import json
import os
import random
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace

import pytest

from aplc.cli import main
from aplc.console import Screen

TOPICS = {
    "animals": "cat dog horse fur paw bark",
    "vehicles": "car train wheel engine road rail",
    "food": "bread cheese apple soup cook eat",
    "music, classical": "violin sonata orchestra concert opera",
    "météo": "rain snow cloud wind sun storm",
    "rare": "quark lepton boson gluon",
}
SMALL = [
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.inner_width=64",
    "model.hidden_width=32",
    "data.vocab_size=200",
    "train.lr_encoder=5e-3",
    "train.lr_hidden=5e-3",
    "train.lr_clusters=2e-2",
    "train.batch_size=16",
]
"""Settings that make the tiny preset train in a second."""


def as_options(settings):
    """Settings as the command line takes them."""
    return [argument for setting in settings for argument in ("--set", setting)]


SETTINGS = ["--preset", "tiny", *as_options([*SMALL, "train.epochs=1"])]


def topic_rows(n, seed):
    """Rows of a corpus on `TOPICS`; every 25th has the rare label."""
    rng = random.Random(seed)
    names = list(TOPICS)
    rows = []
    for i in range(n):
        labels = rng.sample(names[:-1], rng.choice([1, 1, 2])) + (["rare"] if i % 25 == 0 else [])
        words = [word for label in labels for word in rng.choices(TOPICS[label].split(), k=rng.randint(3, 9))]
        rng.shuffle(words)
        rows.append({"id": f"{seed}-{i}", "text": " ".join(words), "labels": labels})
    return rows


def write_rows(path, rows):
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


class Recorder(Screen):
    """A screen that remembers what was said."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def say(self, message):
        self.lines.append(message)

    @property
    def text(self):
        return "\n".join(self.lines)


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def aplc(*arguments, stdin=""):
    """The command in this process: importing torch anew for every call takes long."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["aplc", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as exit_:
            main()
    out.flush()
    return Done(exit_.value.code or 0, out.buffer.getvalue().decode(), err.getvalue())


def ok(done):
    """What a command printed; it must have succeeded."""
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(done, *words):
    """A command must have failed as documented: exit code 2, and one line, with these words in it."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("aplc: ")
    assert "Traceback" not in done.stderr
    assert all(word in last for word in words), last


SAME_STEPS = [*SMALL, "model.dropout=0.0", "model.hidden_dropout=0.0", "train.lr_encoder=5e-4"]
"""Without dropout, and at a rate at which rounding doesn't grow: however a run is spread, its steps are the same."""


def train_command(corpus, out, *settings, processes=1, resume=False, torchrun=()):
    """`aplc train` with `SAME_STEPS` and `settings`, under torchrun if there are several processes."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), *torchrun] if processes > 1 else []
    train = ["-m", "aplc", "train", str(corpus), "--preset", "tiny", "--out", str(out)]
    options = [*as_options([*SAME_STEPS, *settings]), *(["--resume"] if resume else [])]
    return [sys.executable, *launcher, *train, *options]


def environment():
    """Of a process of its own."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def launch(arguments):
    """Run a command in a process of its own; it must succeed."""
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def start(arguments):
    """Begin a command in a process of its own."""
    return subprocess.Popen(arguments, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(condition, running, seconds=120):
    """Until the condition holds, or the process has ended."""
    deadline = time.monotonic() + seconds
    while not condition() and running.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def weights(out):
    """The weights of a model folder."""
    from safetensors.torch import load_file  # imports torch, which conftest.py must precede

    return load_file(out / "model.safetensors")


def assert_same_weights(one, other):
    """Two model folders' weights are equal, bit by bit."""
    import torch

    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def assert_resumed_equals_uninterrupted(run, folder, stop_at):
    """A run that dies before step `stop_at` and is resumed ends with the weights and the log of one that never stopped.

    `run(out)` starts a run, `run(out, resume=True)` resumes it.
    """
    from aplc.train import loop

    step = loop.train_step

    def dying(running, batch, rate):
        if running.progress.step == stop_at:
            raise MemoryError
        return step(running, batch, rate)

    run(folder / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", dying)
        with pytest.raises(MemoryError):
            run(folder / "parts")
    run(folder / "parts", resume=True)
    assert_same_weights(folder / "whole", folder / "parts")
    whole, parts = (map(json.loads, (folder / name / "metrics.jsonl").open()) for name in ("whole", "parts"))
    assert [line | {"seconds": 0} for line in whole] == [line | {"seconds": 0} for line in parts]


def with_both_parts(trained):
    """A words model and a network, with a blend in which both count: of a small corpus, the words know all."""
    import numpy as np  # as torch, after conftest.py

    from aplc.models.blend import Blend

    rng = np.random.default_rng(0)
    n = trained.model.n_labels
    curve = np.stack([rng.normal(size=n), rng.random(n), rng.random(n)]).astype(np.float32)
    return replace(trained, model=replace(trained.model, blend=Blend(curve)), calibration=None)
