"""Guards a model's use off the CPU: the same figures, tags, explanations and answers, and labels that are added."""

import json

import pytest
import torch
from starlette.testclient import TestClient

from aplc.config import Config
from aplc.data.batches import Batch
from aplc.nn.device import using_device
from aplc.nn.encoder import build_encoder
from aplc.plan import probe
from aplc.predict import export
from aplc.predict.explain import explain
from aplc.serve.app import Service, make_app
from aplc.store.folder import load_tagger, save_tagger
from helpers import SMALL, aplc, as_options, ok, topic_rows, with_both_parts, write_rows
from rehearsal.compared import assert_close, assert_close_weights, assert_said, network_of, on_both, run_on_both

TEXTS = ["violin and rain", "a dog in the snow", "zzz", "bread soup cheese " * 50]


SETTINGS = [*SMALL, "clusters.cutoffs=2,4", "train.patience=0"]


def train(corpus, out, *settings):
    options = as_options([*SETTINGS, *settings])
    ok(aplc("train", corpus, "--preset", "tiny", *options, "--out", out, "--device", "cpu"))
    return out


@pytest.fixture(scope="module")
def network(corpus, tmp_path_factory):
    """A model of a head and two tails, trained on the CPU."""
    return train(corpus, tmp_path_factory.mktemp("network") / "model", "train.epochs=12")


@pytest.fixture(scope="module")
def both(corpus, tmp_path_factory):
    """Words and such a network, of which both count."""
    folder = tmp_path_factory.mktemp("both")
    train(corpus, folder / "learned", "train.epochs=2", "model.kind=both")
    with using_device("cpu"):
        save_tagger(with_both_parts(load_tagger(folder / "learned")), folder / "model")
    return folder / "model"


@pytest.fixture(params=["network", "both"])
def model(request):
    return request.getfixturevalue(request.param)


def test_evaluating(model, corpus, tmp_path):
    files = run_on_both(tmp_path, "evaluate", model, corpus, out="--json", suffix=".json")
    one, other = (json.loads(file.read_text()) for file in files)
    assert_close(one | {"scores": None}, other | {"scores": None})  # a file's name


@pytest.mark.parametrize("rule", [["--top-k", "3"], ["--threshold", "0.3"], ["--allow", "allowed.txt"]])
def test_predicting(rule, model, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "allowed.txt").write_text("animals\nrare\n")
    command = ["predict", model, corpus / "test.jsonl", *rule]
    files = run_on_both(tmp_path, *command, suffix=".jsonl")
    assert_close(*([json.loads(line) for line in file.open()] for file in files))


def test_queueing_for_review(model, corpus, tmp_path):
    files = run_on_both(tmp_path, "review", model, corpus / "test.jsonl", suffix=".jsonl")
    assert_close(*([json.loads(line) for line in file.open()] for file in files))


def test_explaining(model):
    def explained(device):
        with using_device(device):
            trained = load_tagger(model)
        assert network_of(trained.model).device.type == device
        found = explain(trained, "a violin and some rain", "rare")
        return [found.probability, found.read, *((part.start, part.stop, part.effect) for part in found.parts)]

    assert_close(*on_both(explained), 1e-4)


def test_serving(model):
    def answers(device):
        with using_device(device):
            service = Service.load(model)
        with TestClient(make_app(service)) as client:
            asked = [
                client.post("/tag", json={"texts": TEXTS, "top_k": 4}),
                client.post("/explain", json={"text": "rain and snow", "label": "animals"}),
            ]
        assert all(answer.status_code == 200 for answer in asked)
        return [answer.json() for answer in asked]

    assert_close(*on_both(answers), 1e-4)


def test_adding_labels(model, tmp_path):
    rows = topic_rows(30, seed=7)
    for i, row in enumerate(rows):
        row["labels"] = ["warm" if i % 3 else "cold"]
    examples = write_rows(tmp_path / "examples.jsonl", rows)
    here, there = run_on_both(tmp_path, "labels", "add", model, examples)
    assert_close_weights(here, there, 1e-3)  # L-BFGS follows rounding further
    tags = on_both(lambda device: _tags(there, device, tmp_path))
    assert_close(*tags)
    assert {"warm", "cold"} <= {label for row in tags[0] for label in row["labels"]}


def _tags(model, device, folder):
    asked = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    done = aplc("predict", model, "-", "--out", "-", "--top-k", "8", "--device", device, stdin=asked)
    assert_said(done.stderr, device)
    return [json.loads(line) for line in ok(done).splitlines()]


def test_exporting_is_done_on_the_cpu(network, tmp_path, monkeypatch):
    """Whatever device there is: the graphs are for onnxruntime on a CPU."""
    pytest.importorskip("onnxruntime")

    class SeenError(Exception):
        pass

    def write(model, folder, *, int8):
        assert model.device.type == "cpu"
        raise SeenError

    monkeypatch.setattr(export, "function_for", lambda *_: write)
    with pytest.raises(SeenError), using_device("standin"):
        export.export(network, tmp_path / "out")


def test_planning(corpus):
    """Memory is the device's, and steps are timed on it."""
    settings = as_options([*SMALL, "train.batch_size=4"])
    done = aplc("plan", corpus, "--preset", "tiny", *settings, "--device", "standin")
    assert "2.1 GB (a stand-in)" in ok(done), done.stdout
    assert "steps on the GPU" in done.stdout


def test_activations_are_counted_without_weights_and_freed():
    """Weights have other addresses once they are moved; and a graph whose tensors know their history stays for ever."""
    config = Config.from_preset("tiny").with_settings([*SMALL, "model.layers=2"])
    encoder = build_encoder(config.model, vocab_size=50, max_length=16)
    batch = Batch(*(torch.ones(2, 8, dtype=torch.int64) for _ in range(4)))
    with using_device("standin"):
        counted = [probe._kept_bytes(encoder, batch) for _ in range(3)]
    assert len(set(counted)) == 1
    assert {parameter._use_count() for parameter in encoder.parameters()} == {1}  # no graph holds any of them
