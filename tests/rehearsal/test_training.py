"""Guards training off the CPU: every way to train gives the CPU's weights to rounding, and a dead run goes on."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aplc import Tagger
from aplc.train import loop
from helpers import (
    SAME_STEPS,
    aplc,
    as_options,
    assert_resumed_equals_uninterrupted,
    assert_same_weights,
    environment,
    ok,
    topic_rows,
    weights,
    write,
    write_rows,
)
from rehearsal import standin
from rehearsal.compared import assert_close, assert_close_weights, network_of, read_log, run_on_both

SETTINGS = [*SAME_STEPS, "clusters.cutoffs=2,4", "data.validation=0.2", "train.epochs=2", "train.patience=0"]
WAYS = {
    "as released": ["clusters.tail_dropout=0.0", "clusters.bias=true"],
    "as in the paper": [
        "clusters.objective=paper",
        "clusters.tail=linear",
        "clusters.bias=false",
        "train.accumulate=3",
    ],
    "memory": ["data.long_text=memory", "data.max_length=8", "model.layers=2"],
    "windows": ["data.long_text=windows", "data.max_length=8", "train.clusters_optimizer=sgd"],
    "recomputed": ["model.checkpoint_activations=true", "model.layers=2", "train.accumulate=2"],
}
ALONE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from aplc.cli import main
from rehearsal import standin
with standin.present():
    main()
"""
"""The command in a process of its own, which has a stand-in, too."""
KILLED = (
    """
import os, signal
from aplc.train import loop
step = loop.train_step
def dying(running, batch, rate):
    if running.progress.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(running, batch, rate)
loop.train_step = dying
"""
    + ALONE
)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    write_rows(folder / "train.jsonl", topic_rows(50, seed=1))
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_training_is_the_cpus(way, few, tmp_path):
    """Weights, held-out scores and losses; and the calibration, which is learned by predicting."""
    command = ["train", few, "--preset", "tiny", *as_options([*SETTINGS, *WAYS[way]])]
    here, there = run_on_both(tmp_path, *command)
    assert_close_weights(here, there)
    assert_close(read_log(here), read_log(there), 1e-4)
    here, there = (json.loads((out / "calibration.json").read_text()) for out in (here, there))
    assert_close(here, there, 1e-3)


def test_a_dead_run_goes_on_with_the_devices_random_numbers(few, tmp_path):
    """Dropout is drawn on the device, so its random state must be in the checkpoint."""
    settings = [*SETTINGS, "model.dropout=0.2", "model.hidden_dropout=0.2", "train.checkpoint_steps=1"]

    def run(out, resume=False):
        arguments = ["train", few, "--preset", "tiny", *as_options(settings), "--out", out, "--device", "standin"]
        done = aplc(*arguments, *(["--resume"] if resume else []))
        ok(done)
        assert ("resuming from step-00000004" in done.stderr) == resume

    assert_resumed_equals_uninterrupted(run, tmp_path, stop_at=4)


@pytest.mark.slow
def test_a_killed_run_goes_on_in_a_new_process(few, tmp_path):
    """The device's random numbers are then those of the checkpoint, not of a process that has drawn some before."""
    settings = [*SETTINGS, "model.dropout=0.2", "model.hidden_dropout=0.2", "train.checkpoint_steps=1"]

    def command(name):
        return [
            "train",
            few,
            "--preset",
            "tiny",
            *as_options(settings),
            "--out",
            tmp_path / name,
            "--device",
            "standin",
        ]

    ok(aplc(*command("whole")))
    for resume, code in (([], -signal.SIGKILL), (["--resume"], 0)):
        alone = [sys.executable, "-c", KILLED if code else ALONE, *map(str, command("parts")), *resume]
        done = subprocess.run(alone, env=environment(), capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == code, done.stderr
    assert "resuming from step-00000004" in done.stderr
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_a_run_moves_between_devices(few, tmp_path, monkeypatch):
    """Begun on the device, gone on with on the CPU, and the other way round."""
    command = ["train", few, "--preset", "tiny", *as_options([*SETTINGS, "train.checkpoint_steps=1"])]
    ok(aplc(*command, "--out", tmp_path / "whole", "--device", "cpu"))
    step = loop.train_step

    def dying(running, batch, rate):
        if running.progress.step == 3:
            raise MemoryError
        return step(running, batch, rate)

    for begun, finished in (("standin", "cpu"), ("cpu", "standin")):
        out = tmp_path / begun
        monkeypatch.setattr(loop, "train_step", dying)
        with pytest.raises(MemoryError):
            aplc(*command, "--out", out, "--device", begun)
        monkeypatch.undo()
        ok(aplc(*command, "--out", out, "--device", finished, "--resume"))
        assert_close_weights(tmp_path / "whole", out)


def test_partly_reviewed_documents(few, tmp_path):
    """Of feedback, only labels that were accepted or rejected have a term in the loss."""
    rows = [
        {"text": row["text"], "accepted": row["labels"], "rejected": ["rare"]} for row in topic_rows(14, seed=9)[1:]
    ]
    more = write_rows(tmp_path / "more.jsonl", rows)
    command = ["train", few, "--more", more, "--preset", "tiny", *as_options([*SETTINGS, "train.accumulate=2"])]
    assert_close_weights(*run_on_both(tmp_path, *command))


def test_words_and_a_network_together(few, tmp_path):
    """The words part is fitted and read on the CPU, the network's on the device, and the blend is the same."""
    command = ["train", few, "--preset", "tiny", *as_options([*SETTINGS, "model.kind=both"])]
    here, there = run_on_both(tmp_path, *command)
    assert_close_weights(here, there)
    assert (here / "words.safetensors").read_bytes() == (there / "words.safetensors").read_bytes()
    texts = [row["text"] for row in topic_rows(10, seed=3)]
    one, other = (Tagger.from_pretrained(out, device="standin") for out in (here, there))
    assert one.trained.model.network.device.type == "standin"
    assert_close(one.predict(texts), other.predict(texts), 1e-4)
    # The blend was learned from what both parts say; here it may be the words alone, which does not run the network.
    said = [tagger.trained.model.opinions(tagger.trained.model.prepare(texts)) for tagger in (one, other)]
    assert_close(*([part.tolist() for part in parts] for parts in said), 1e-3)


def test_an_encoder_of_transformers(few, tmp_path):
    """What `auto` takes where there is a GPU is an encoder of `transformers`."""
    transformers = pytest.importorskip("transformers")
    words = sorted({word for row in topic_rows(50, seed=1) for word in row["text"].split()})
    vocabulary = write(tmp_path / "vocab.txt", "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    made = transformers.BertConfig(vocab_size=5 + len(words), **shape)
    transformers.BertModel(made).save_pretrained(tmp_path / "bert")
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained(tmp_path / "bert")
    settings = [f"model.encoder={tmp_path / 'bert'}", "data.max_length=16", "data.long_text=windows"]
    settings += ["train.precision=float32", "model.checkpoint_activations=true"]
    here, there = run_on_both(tmp_path, "train", few, "--preset", "tiny", *as_options([*SETTINGS, *settings]))
    assert_close_weights(here, there, 5e-5)


def test_in_bfloat16(few, tmp_path):
    """Where the device has it, products run in it; weights stay in float32, and nothing is NaN or infinite."""
    settings = [*SETTINGS, "data.long_text=memory", "data.max_length=8"]
    with standin.present(bfloat16=True):
        here, there = run_on_both(tmp_path, "train", few, "--preset", "tiny", *as_options(settings))
    kept = weights(there)
    assert all(tensor.isfinite().all() and tensor.dtype == torch.float32 for tensor in kept.values())
    assert any((tensor != kept[name]).any() for name, tensor in weights(here).items())
    assert_close(read_log(here)[0]["mean_loss"], read_log(there)[0]["mean_loss"], 1e-2)


@pytest.mark.parametrize("kind", ["network", "both"])
def test_partial_fit_is_the_cpus(kind, few, tmp_path):
    settings = as_options([*SETTINGS, f"model.kind={kind}"])
    ok(aplc("train", few, "--preset", "tiny", *settings, "--out", tmp_path / "model", "--device", "cpu"))
    rows = topic_rows(20, seed=5)
    for row in rows[:6]:
        row["labels"].append("new")
    for device in ("cpu", "standin"):
        tagger = Tagger.from_pretrained(tmp_path / "model", device=device)
        tagger.partial_fit([row["text"] for row in rows], [row["labels"] for row in rows])
        assert network_of(tagger.trained.model).device.type == device
        tagger.save_pretrained(tmp_path / device)
    assert_close_weights(tmp_path / "cpu", tmp_path / "standin", 1e-3)  # L-BFGS follows rounding further


def test_pretraining_is_the_cpus(few, tmp_path):
    """With memory from segment to segment, the held-out loss, and resuming."""
    settings = ["model.layers=2", "model.width=32", "model.heads=2", "model.inner_width=64", "model.dropout=0.0"]
    settings += ["data.vocab_size=60", "data.max_length=24", "data.memory=8", "data.validation=0.1", "train.lr=1e-3"]
    settings += ["train.batch_size=4", "train.steps=6", "train.warmup_steps=2", "train.evaluate_steps=3"]
    settings += ["train.checkpoint_steps=2", "train.accumulate=2"]
    command = ["pretrain", few, *as_options(settings)]
    here, there = run_on_both(tmp_path, *command)
    assert_close_weights(here, there, 5e-5)
    assert_close(read_log(here), read_log(there), 1e-4)
    dropout = as_options(["model.dropout=0.2"])

    def run(out, resume=False):
        ok(aplc(*command, *dropout, "--out", out, "--device", "standin", *(["--resume"] if resume else [])))

    assert_resumed_equals_uninterrupted(run, tmp_path, stop_at=5)
