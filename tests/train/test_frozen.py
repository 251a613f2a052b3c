"""Guards the epochs with a frozen encoder: steps of the whole network with the encoder held still, at a fraction of
their time; resumed, spread over processes and planned like any others."""

import json

import numpy as np
import pytest
import torch

import reference
from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.plan.network import plan
from aplc.train import frozen, loop, network
from aplc.train.run import train
from helpers import (
    SAME_STEPS,
    Recorder,
    assert_resumed_equals_uninterrupted,
    launch,
    train_command,
    weights,
    write_rows,
)

FROZEN = [*SAME_STEPS, "train.frozen_epochs=2", "train.epochs=1"]


def run(corpus, out, *settings, resume=False, screen=None):
    config = Config.from_preset("tiny").with_settings([*FROZEN, *settings])
    return train(Source.from_corpus(Corpus.open(corpus)), config, out, resume=resume, screen=screen)


class BegunError(Exception):
    def __init__(self, run):
        self.run = run


def stop(run):
    raise BegunError(run)


@pytest.fixture
def begun(corpus, tmp_path, monkeypatch):
    """Settings to a run that is about to train the whole network."""

    def begin(name, *settings):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "fit", stop)
            with pytest.raises(BegunError) as found:
                run(corpus, tmp_path / name, *settings)
        return found.value.run

    return begin


def test_epochs_on_states_match_reference(begun):
    """The slow twin reads the texts again at every step."""
    fast, slow = begun("fast"), begun("slow", "train.frozen_epochs=0")
    before = {name: tensor.clone() for name, tensor in slow.network.state_dict().items()}
    batches = frozen.state_batches(slow, slow.train.rows)
    order = [rows for epoch in range(2) for rows in batches.order(epoch)]
    assert max(map(len, order)) == frozen.BATCH_SIZE
    reference.train_with_encoder_frozen(slow.network, [slow.train.batch(rows) for rows in order], slow.config.train)
    for name, tensor in slow.network.state_dict().items():
        found = fast.network.state_dict()[name]
        if name.startswith("encoder."):
            assert torch.equal(found, before[name]), name
        else:
            assert (found - before[name]).abs().max() > 1e-3, name
            assert torch.allclose(found, tensor, atol=1e-5), name


def test_fine_tuning_begins_there(corpus, tmp_path, begun):
    """The network that is best so far is kept before the first step, with a score that the run goes on from."""
    screen = Recorder()
    run(corpus, tmp_path / "model", screen=screen)
    assert "encoder frozen, held out P@1" in screen.text
    progress = begun("again").progress
    assert (progress.step, progress.best_step, progress.seconds) == (0, 0, 0)
    assert progress.best_score > 0
    assert (tmp_path / "again" / "model.safetensors").is_file()


def test_no_more_documents_are_encoded_than_allowed(begun, monkeypatch):
    encoded, encode = [], frozen.encode
    monkeypatch.setattr(frozen, "encode", lambda run, rows: encoded.append(rows) or encode(run, rows))
    training = begun("model", "train.max_documents=50")
    assert len(set(encoded[0].tolist())) == 50
    assert np.isin(encoded[0], training.train.rows).all()


@pytest.mark.parametrize("stop_at", [1, 5, 8])
def test_resumed_run_equals_uninterrupted_one(corpus, tmp_path, stop_at):
    """Six steps on states, then twelve: it dies among the former, which begin again, or among the latter."""

    def resumable(out, resume=False):
        run(corpus, out, "train.checkpoint_steps=5", "model.hidden_dropout=0.3", resume=resume)

    assert_resumed_equals_uninterrupted(resumable, tmp_path, stop_at)


def test_they_are_not_done_again(corpus, tmp_path, begun, monkeypatch):
    begun("model")
    monkeypatch.setattr(network, "train_on_states", lambda running: pytest.fail("done again"))
    screen = Recorder()
    run(corpus, tmp_path / "model", resume=True, screen=screen)
    assert "resuming from step-00000000" in screen.text


@pytest.mark.parametrize("spread", [[], ["train.shard_labels=true", "train.shard_encoder=true"]])
def test_several_processes_train_the_model_of_one(corpus, tmp_path, spread):
    settings = ["train.frozen_epochs=2", "train.epochs=1", *spread]
    for processes in (1, 3):
        launch(train_command(corpus, tmp_path / str(processes), *settings, processes=processes))
    expected, found = weights(tmp_path / "1"), weights(tmp_path / "3")
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 1e-5, name


def test_labels_that_were_not_reviewed_are_not_taken_as_wrong(tmp_path):
    """Feedback on half of the texts lists one label; the loss on states knows that, too."""
    rows = [{"text": text, "labels": [label]} for text, label in (("red cat", "a"), ("blue car", "b"))] * 20
    write_rows(tmp_path / "train.jsonl", rows)
    write_rows(tmp_path / "f.jsonl", [{"text": f"green {i}", "accepted": ["a"], "rejected": []} for i in range(20)])
    config = Config.from_preset("tiny").with_settings([*FROZEN, "data.validation=0"])
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        step = loop.train_step
        patch.setattr(loop, "train_step", lambda running, batch, rate: seen.append(batch) or step(running, batch, rate))
        source = Source.from_corpus(Corpus.open(tmp_path / "train.jsonl"), more=(tmp_path / "f.jsonl",))
        train(source, config, tmp_path / "model")
    on_states = [batch for batch in seen if batch.states is not None]
    assert sum(int(batch.partial.sum()) for batch in on_states if batch.partial is not None) == 2 * 20


def test_the_plan_knows_of_them(corpus):
    config = Config.from_preset("tiny").with_settings(FROZEN)
    found = plan(Source.from_corpus(Corpus.open(corpus)), config)
    timing = found.timing
    expected = 200 * timing.validation_seconds + 2 * 3 * timing.state_step_seconds
    assert found.frozen_seconds == pytest.approx(expected)
    assert timing.state_step_seconds > 0
    epoch = sum(found.epoch_seconds().values())
    assert found.total_seconds == pytest.approx(found.frozen_seconds + epoch)
    assert "train.frozen_epochs = 2: " in found.render()
    json.dumps(found.to_dict())
    without = plan(Source.from_corpus(Corpus.open(corpus)), config.with_settings(["train.frozen_epochs=0"]))
    assert without.frozen_seconds == 0
    assert "frozen" not in without.render()
