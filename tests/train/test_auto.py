"""Guards the preset `auto`: what it takes on which machine, and that it says why."""

import pytest
import torch

import aplc.train.auto as module
from aplc import Tagger
from aplc.config import Config
from aplc.nn.distributed import World
from aplc.train.auto import choose_preset, configure
from helpers import Recorder, aplc, ok


class Gpu(World):
    device = torch.device("cuda", 0)


def test_a_cpu_without_an_encoder_gets_words(monkeypatch):
    monkeypatch.setattr(module, "world", World)
    preset, reason = choose_preset()
    assert preset == "words"
    assert "aplc encoder minilm" in reason


def test_an_encoder_at_hand_gets_both(monkeypatch):
    monkeypatch.setattr(module, "is_at_hand", lambda name: name == "minilm")
    assert choose_preset()[0] == "both"


def test_an_encoder_that_is_given_gets_both():
    assert choose_preset(["train.seed=1", "model.encoder = my/folder"]) == ("both", "model.encoder is given")


@pytest.mark.parametrize(
    ("kind", "preset"), [("words", "words"), ('"words"', "words"), ("both", "both"), ("network", "both")]
)
def test_a_kind_that_is_given_decides(kind, preset):
    assert choose_preset([f"model.kind={kind}"]) == (preset, "model.kind is given")


def test_a_gpu_gets_both_without_the_limit_for_cpus(monkeypatch):
    monkeypatch.setattr(module, "world", Gpu)
    assert choose_preset() == ("both", "there is a GPU")
    assert configure("auto", [], Recorder()).train.max_documents == 0
    assert configure("auto", ["train.max_documents=9"], Recorder()).train.max_documents == 9


def test_a_resumed_run_keeps_what_it_was_started_with(corpus, tmp_path, monkeypatch):
    ok(aplc("train", corpus, "--out", tmp_path / "model"))
    monkeypatch.setattr(module, "is_at_hand", lambda name: True)
    done = aplc("train", corpus, "--out", tmp_path / "model", "--resume")
    ok(done)
    assert "as " in done.stderr
    assert "this run is finished" in done.stderr


def test_without_transformers_there_are_words(monkeypatch):
    monkeypatch.setattr(module, "world", Gpu)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    preset, reason = choose_preset()
    assert preset == "words"
    assert "pip install transformers" in reason


def test_the_choice_is_said_once_and_settings_apply():
    screen = Recorder()
    config = configure("auto", ["train.seed=7"], screen)
    assert (config.model.kind, config.train.seed) == ("words", 7)
    assert screen.text.startswith("preset: words (")
    assert configure("tiny", [], screen) == Config.from_preset("tiny")
    assert len(screen.lines) == 1


def test_it_is_the_default(corpus, tmp_path):
    assert Tagger().preset == "auto"
    for command in (["train", corpus, "--out", tmp_path / "model"], ["plan", corpus]):
        done = aplc(*command)
        ok(done)
        assert "preset: words (" in done.stderr, command
