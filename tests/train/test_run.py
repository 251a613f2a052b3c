"""Guards a training run: it learns, holds data out, keeps the best, resumes exactly, and refuses what it must."""

import json
import os
import signal
import subprocess
import threading

import pytest
import torch

from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.source import Source, hold_out, read_training_data
from aplc.errors import RunError
from aplc.evaluate.run import evaluate
from aplc.models.network import TaggingModel
from aplc.store.folder import load_tagger
from aplc.train import loop
from aplc.train.checkpoint import Progress, checkpoints, newest_good, save_checkpoint
from aplc.train.optim import Optimizers
from aplc.train.run import train
from helpers import SMALL, Recorder, assert_resumed_equals_uninterrupted, assert_same_weights, weights


def run(corpus, out, *settings, resume=False, screen=None):
    config = Config.from_preset("tiny").with_settings([*SMALL, "train.epochs=3", *settings])
    return train(Source.from_corpus(Corpus.open(corpus)), config, out, resume=resume, screen=screen)


def test_it_learns_and_knows_unseen_labels(corpus, trained):
    evaluation = evaluate(load_tagger(trained), Corpus.open(corpus).documents("test"))
    result, baseline = evaluation.metrics.result(), evaluation.baseline.result()
    assert result["P@1"] > 0.75
    assert result["P@1"] > baseline["P@1"] + 0.4
    assert evaluation.n_unseen == 1


def test_run_folder_tells_its_story(trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    validations = [line["validation"] for line in lines if "validation" in line]
    assert len(validations) >= 3
    assert validations[-1]["P@1"] > validations[0]["P@1"]
    assert any("loss" in line for line in lines)
    assert json.loads((trained / "config.json").read_text())["config"]["model"]["layers"] == 1


def test_held_out_rows_take_no_part_in_training():
    data = Config().data
    train_rows, valid_rows = hold_out(1000, data, seed=0)
    assert len(valid_rows) == 50
    assert sorted([*train_rows, *valid_rows]) == list(range(1000))
    assert hold_out(1000, data, seed=0)[1].tolist() == valid_rows.tolist() != hold_out(1000, data, seed=1)[1].tolist()
    assert len(hold_out(2, data, seed=0)[1]) == 0


def test_a_large_dev_part_is_held_out_up_to_the_limit(tmp_path):
    """A random part of it, the same for the tokens that a network reads and for the texts."""
    texts, screen = [f"text {i}" for i in range(40)], Recorder()
    for part in ("train", "dev", "test"):
        rows = [json.dumps({"text": text, "labels": ["a"]}) for text in texts]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(rows))
    data = Config().with_settings(["data.validation_limit=10"]).data
    held_out = read_training_data(Source.from_corpus(Corpus.open(tmp_path)), data, 0, screen)
    assert len(held_out.train_rows) == 40
    assert len(held_out.valid_rows) == 10
    assert held_out.valid_rows.tolist() != list(range(10))
    assert [document.text for document in held_out.held_out()] == [texts[i] for i in held_out.valid_rows]
    assert "10 documents of the corpus' dev part (data.validation_limit = 10)" in screen.text


def test_same_seed_same_weights(corpus, tmp_path):
    run(corpus, tmp_path / "a")
    run(corpus, tmp_path / "b")
    run(corpus, tmp_path / "c", "train.seed=1")
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    assert not torch.equal(weights(tmp_path / "a")["hidden.weight"], weights(tmp_path / "c")["hidden.weight"])


@pytest.mark.parametrize("objective", ["released", "paper"])
def test_accumulation_changes_memory_and_not_the_step(corpus, tmp_path, objective):
    settings = (f"clusters.objective={objective}", "model.dropout=0.0", "model.hidden_dropout=0.0", "train.epochs=1")
    run(corpus, tmp_path / "whole", *settings)
    run(corpus, tmp_path / "parts", *settings, "train.accumulate=3")
    for name, tensor in weights(tmp_path / "whole").items():
        # Adam turns rounding in a tiny gradient into a step of either sign; a few elements differ more.
        close = torch.isclose(tensor, weights(tmp_path / "parts")[name], atol=2e-4)
        assert close.float().mean() > 0.98, name


@pytest.mark.parametrize("stop_at", [1, 7, 12, 13, 20])
def test_resumed_run_equals_uninterrupted_one(corpus, tmp_path, stop_at):
    def resumable(out, resume=False):
        run(corpus, out, "train.checkpoint_steps=5", resume=resume)

    assert_resumed_equals_uninterrupted(resumable, tmp_path, stop_at)


@pytest.mark.parametrize("stop_at", [11, 13, 15])
def test_a_part_of_an_epoch_is_resumed_like_a_whole_one(corpus, tmp_path, stop_at):
    def resumable(out, resume=False):
        run(corpus, out, "train.checkpoint_steps=5", "train.max_documents=250", resume=resume)

    assert_resumed_equals_uninterrupted(resumable, tmp_path, stop_at)


def test_no_more_documents_are_read_than_allowed(corpus, tmp_path):
    """190 documents in steps of 16 are 12 steps an epoch; 250 documents are 16 steps."""
    screen = Recorder()
    run(corpus, tmp_path / "model", "train.max_documents=250", "train.patience=0", screen=screen)
    assert [path.name for path in checkpoints(tmp_path / "model")][-1] == "step-00000016"
    assert "epoch 2/2" in screen.text
    lines = map(json.loads, (tmp_path / "model" / "metrics.jsonl").open())
    assert sum("validation" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("numbers", "raised"),
    [
        ([signal.SIGINT], KeyboardInterrupt),
        ([signal.SIGTERM], SystemExit),
        ([signal.SIGTERM] * 2, SystemExit),  # from the scheduler, and from torchrun
    ],
)
def test_signal_saves_and_says_how_to_go_on(corpus, tmp_path, monkeypatch, numbers, raised):
    step, screen = loop.train_step, Recorder()

    def interrupting(running, batch, rate):
        if running.progress.step == 3:
            for number in numbers:
                signal.raise_signal(number)
        return step(running, batch, rate)

    monkeypatch.setattr(loop, "train_step", interrupting)
    with pytest.raises(raised):
        run(corpus, tmp_path / "out", screen=screen)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert threading.current_thread() is threading.main_thread()
    assert [path.name for path in checkpoints(tmp_path / "out")] == ["step-00000004"]
    assert "--resume" in screen.text


def test_damaged_checkpoint_is_named_and_the_one_before_used(corpus, tmp_path):
    out, screen = tmp_path / "out", Recorder()
    run(corpus, out)
    newest = checkpoints(out)[-1] / "state.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    run(corpus, out, resume=True, screen=screen)
    assert f"{newest.parent.name}: damaged" in screen.text
    assert "resuming from step-" in screen.text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_full_disk_at_a_checkpoint_says_what_is_left(corpus, tmp_path):
    out, small = tmp_path / "out", "size=120k"
    out.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", small, "tmpfs", out], capture_output=True, check=False).returncode:
        pytest.skip("can't mount a small disk here")
    try:
        with pytest.raises(RunError, match=r"step-00000002: can't write.*No space.*would be the first") as first:
            run(corpus, out, "train.checkpoint_steps=2")
        assert "intact" not in str(first.value)
        subprocess.run(["mount", "-o", "remount,size=600k", out], check=True)
        with pytest.raises(RunError, match=r"step-.*the one before it is intact"):
            run(corpus, out, "train.checkpoint_steps=2", resume=True)
    finally:
        subprocess.run(["umount", out], check=True)


def test_new_checkpoint_outlives_damaged_ones_of_later_steps(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizers = Optimizers(torch.optim.AdamW(model.parameters()))
    for step in (1, 2, 7, 8, 3, 4):
        save_checkpoint(tmp_path, Progress(step=step), model, optimizers)
        if step == 8:
            for damaged in checkpoints(tmp_path):
                (damaged / "state.json").write_text("{")
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000003", "step-00000004"]
    assert newest_good(tmp_path, print)[1].step == 4


def test_finished_run_says_so(corpus, tmp_path):
    screen = Recorder()
    run(corpus, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    run(corpus, tmp_path / "out", resume=True, screen=screen)
    assert "finished" in screen.text
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == before


def test_run_is_not_overwritten_or_changed(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    with pytest.raises(RunError, match="--resume"):
        run(corpus, tmp_path / "out")
    with pytest.raises(RunError, match=r"train.lr_hidden was 0.005 and is 0.1"):
        run(corpus, tmp_path / "out", "train.lr_hidden=0.1", resume=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.jsonl").write_text(
        (corpus / "train.jsonl").read_text() + '{"text": "one more", "labels": ["food"]}\n'
    )
    with pytest.raises(RunError, match="the corpus has changed"):
        run(other, tmp_path / "out", resume=True)
    (tmp_path / "out" / "run.json").unlink()  # a model from elsewhere
    for resume in (False, True):
        with pytest.raises(RunError, match="no run that can be resumed"):
            run(corpus, tmp_path / "out", resume=resume)


@pytest.mark.parametrize(
    "name", ["evaluation.json", "calibration.json", "label_counts.npy", "README.md", "metrics.jsonl"]
)
def test_files_of_others_are_not_replaced(corpus, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=f"{name}: already exists and would be replaced; choose another --out"):
        run(corpus, tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_run_of_a_version_that_lacks_a_setting_is_not_resumed(corpus, tmp_path):
    run(corpus, tmp_path / "out", "train.epochs=1")
    path = tmp_path / "out" / "run.json"
    noted = json.loads(path.read_text())
    del noted["config"]["train"]["clip_norm"]
    path.write_text(json.dumps(noted))
    with pytest.raises(RunError, match=r"an earlier version of aplc.* had no train.clip_norm.* another --out"):
        run(corpus, tmp_path / "out", "train.epochs=1", resume=True)


def test_resume_without_a_run_starts_one(corpus, tmp_path):
    screen = Recorder()
    run(corpus, tmp_path / "out", "train.epochs=1", resume=True, screen=screen)
    assert "starting from the beginning" in screen.text
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_infinite_loss_stops_and_keeps_the_last_good_model(corpus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    forward = TaggingModel.forward

    def exploding(model, batch, filler=None):
        loss = forward(model, batch, filler)
        return loss * float("inf") if exploding.after == 0 else loss

    step = loop.train_step

    def counted(running, batch, rate):
        exploding.after = 20 - running.progress.step
        return step(running, batch, rate)

    monkeypatch.setattr(TaggingModel, "forward", exploding)
    monkeypatch.setattr(loop, "train_step", counted)
    with pytest.raises(RunError, match=r"step 21, epoch 2.*best model so far \(step 12\).*lr_clusters"):
        run(corpus, out)
    assert load_tagger(out).labels.names


def test_early_stopping(corpus, tmp_path):
    screen = Recorder()
    run(corpus, tmp_path / "out", "train.epochs=6", "train.patience=1", "train.lr_encoder=0", "train.lr_hidden=0",
        "train.lr_clusters=0", screen=screen)  # fmt: skip
    assert "stopping early" in screen.text
    assert len([line for line in screen.lines if line.startswith("epoch")]) == 2


def test_given_tokenizer_is_used(corpus, trained, tmp_path):
    screen = Recorder()
    given = run(corpus, tmp_path / "out", f"data.tokenizer={trained}", "train.epochs=1", screen=screen)
    assert f"tokenizer: {trained}" in screen.text
    assert given.model.tokenizer.fingerprint == load_tagger(trained).model.tokenizer.fingerprint
