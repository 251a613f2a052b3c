"""Guards export: ONNX gives PyTorch's answers, the top k of its weights are exact, and int8 is what it says."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import reference
from aplc import Tagger
from aplc.config import Config
from aplc.data.batches import Collator
from aplc.data.template import Template
from aplc.errors import ModelError
from aplc.models import graphs
from aplc.models.base import CLUSTERS_GRAPH, ENCODER_GRAPH, LabelModel
from aplc.models.graphs import int8_rows, quantise, save_graph, to_graphs
from aplc.models.network import TaggingModel
from aplc.models.onnx import OnnxModel
from aplc.nn.encoder import Encoder, build_encoder
from aplc.predict.export import export
from aplc.store.folder import load_tagger, save_tagger
from helpers import aplc, ok, topic_rows

TEXTS = [row["text"] for row in topic_rows(50, seed=7)] + ["", "x", "rain " * 500]


@pytest.fixture(scope="module", autouse=True)
def _one_export_of_a_model():
    """PyTorch's exporter takes seconds: the model that is exported with both kinds of weights passes it once."""
    made = {}

    def remembered(model):
        size = sum(parameter.numel() for parameter in model.parameters())
        if size not in made:
            made[size] = list(to_graphs(model))
        for name, graph in made[size]:
            copy = type(graph)()
            copy.CopyFrom(graph)
            yield name, copy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "to_graphs", remembered)
        yield


@pytest.fixture(scope="module")
def exported(trained, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "onnx"
    done = ok(aplc("export", trained, "--out", out, "--corpus", corpus))
    return out, done


@pytest.fixture(scope="module")
def int8(trained, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("int8") / "onnx"
    return out, export(trained, out, int8=True, corpus=corpus)


def probabilities(trained):
    """Every label's, (texts, labels)."""
    model = trained.model
    states = model.read(model.prepare(TEXTS))
    return np.stack([model.probability_of(states, label) for label in range(model.n_labels)], 1)


def test_onnx_matches_pytorch(trained, exported):
    before, after = load_tagger(trained), load_tagger(exported[0])
    assert isinstance(after.model, OnnxModel)
    np.testing.assert_allclose(probabilities(after), probabilities(before), atol=1e-4, rtol=0)
    tags, others = (Tagger.from_pretrained(path).predict(TEXTS, top_k=6) for path in (trained, exported[0]))
    for mine, its in zip(tags, others, strict=True):
        assert dict(its) == pytest.approx(dict(mine), abs=1e-4)


def test_report_is_printed_and_saved(exported):
    out, printed = exported
    saved = json.loads((out / "parity.json").read_text())
    assert saved["documents"] == 60
    assert saved["largest_difference"] < 1e-4
    assert saved["same_five"] == 1
    for name, (before, after) in saved["precision"].items():
        assert before == after > 0.2
        assert f"{name}: {100 * before:.2f} before" in printed


def test_exported_folder_serves_the_commands(exported, corpus, tmp_path):
    out, _ = exported
    assert "P " in ok(aplc("evaluate", out, corpus))
    ok(aplc("predict", out, corpus / "test.jsonl", "--out", tmp_path / "tags.jsonl"))
    assert len((tmp_path / "tags.jsonl").read_text().splitlines()) == 60
    assert not list(out.glob("*.safetensors"))


def test_exported_model_neither_learns_nor_exports_again(exported, tmp_path):
    out, _ = exported
    done = aplc("export", out, "--out", tmp_path / "again")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{out}: the model is exported already" in done.stderr
    for label in ("animals", "something new"):
        with pytest.raises(ModelError, match="export that again"):
            Tagger.from_pretrained(out).partial_fit(["cat"], [[label]])


def test_exported_model_can_be_saved(exported, tmp_path):
    """Its ONNX files are copied, into another folder and into its own."""
    tagger = Tagger.from_pretrained(exported[0])
    tagger.save_pretrained(tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {path.name for path in exported[0].iterdir()} - {"parity.json"}
    copy = Tagger.from_pretrained(tmp_path / "copy")
    assert copy.predict(TEXTS, top_k=6) == tagger.predict(TEXTS, top_k=6)
    save_tagger(replace(copy.trained, n_documents=7), tmp_path / "copy")
    again = Tagger.from_pretrained(tmp_path / "copy")
    assert again.trained.n_documents == 7
    assert again.predict(TEXTS, top_k=6) == tagger.predict(TEXTS, top_k=6)


def test_labels_of_an_exported_model_can_be_retired(exported, tmp_path):
    shutil.copytree(exported[0], tmp_path / "fewer")
    ok(aplc("labels", "retire", tmp_path / "fewer", "food"))
    found = Tagger.from_pretrained(tmp_path / "fewer").predict("bread soup", top_k=6)
    assert len(found) == 5
    assert "food" not in dict(found)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_topk_of_exported_weights_matches_reference(int8, k):
    """The slow twin sorts all labels by `probability_of`."""
    model = load_tagger(int8[0]).model
    width = model.read(model.prepare(["rain"])).shape[1]
    states = torch.randn(40, width, generator=torch.Generator().manual_seed(0)) * 3
    every = np.stack([model.probability_of(states, label) for label in range(model.n_labels)], 1)
    for allowed in (None, np.array([True, False, True, True, True, True])):
        ids, probs = model.topk(states, k, allowed)
        expected = reference.best_labels(every, k, allowed)
        assert ids.tolist() == [[label for label, _ in row] for row in expected]
        assert np.allclose(probs, [[p for _, p in row] for row in expected], atol=1e-6)


def test_an_exported_model_has_all_that_label_models_have(exported):
    model = load_tagger(exported[0]).model
    assert model.kind == "exported"
    assert [name for name in vars(LabelModel) if not name.startswith("_") and not hasattr(model, name)] == []
    assert (model.bounds[0], model.bounds[-1]) == (0, model.n_labels)


def test_int8_is_a_quarter_and_close(int8):
    out, parity = int8
    sizes = {name: (out / name).stat().st_size for name in (ENCODER_GRAPH, CLUSTERS_GRAPH)}
    assert parity.bytes_exported == sum(sizes.values())
    before, after = parity.precision["P@5"]
    assert abs(before - after) <= 0.01
    assert 1e-6 < parity.largest_difference < 0.2  # int8 it is, and near


@pytest.mark.parametrize("axis", [0, 1])
def test_int8_rows_match_reference(axis):
    weights = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    weights[2] = 0
    rows, scales = int8_rows(weights, axis)
    expected = reference.int8_round_trip(weights, axis)
    undone = rows * (scales[:, None] if axis == 0 else scales)
    np.testing.assert_allclose(undone, expected, rtol=1e-6)
    assert np.abs(undone - weights).max() <= np.abs(weights).max() / 254 + 1e-7


@pytest.mark.parametrize("name", [ENCODER_GRAPH, CLUSTERS_GRAPH])
@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "swapped", "missing"])
def test_damaged_export_is_refused_in_one_line(exported, tmp_path, name, damage):
    folder = shutil.copytree(exported[0], tmp_path / "onnx")
    path, content = folder / name, (folder / name).read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "swapped":
        path.write_bytes((folder / (CLUSTERS_GRAPH if name == ENCODER_GRAPH else ENCODER_GRAPH)).read_bytes())
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "noise": b"\x07" * 5000}[damage])
    done = aplc("predict", folder, "-", "--out", tmp_path / "x.jsonl", stdin='{"text": "cat"}\n')
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def small_encoder(long_text, max_length=16):
    config = Config.from_preset("tiny").with_settings(
        ["model.width=16", "model.heads=2", "model.layers=2", "model.inner_width=32", "model.hidden_width=16"]
    )
    encoder = build_encoder(config.model, vocab_size=50, long_text=long_text, max_length=max_length)
    return config, encoder


def bert_encoder():
    transformers = pytest.importorskip("transformers")
    made = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    settings = {"family": "bert", "pooling": "mean", "reason": "", "source": "", "max_length": 16}
    return Encoder.from_config({**settings, "config": made.to_dict()})


@pytest.mark.parametrize("kind", ["windows", "bert"])
def test_other_encoders_match_pytorch(kind, trained, tmp_path):
    """Windows are cut outside of the graph; a transformers encoder pads on the right; labels were added later."""
    torch.manual_seed(0)
    tokenizer = load_tagger(trained).model.tokenizer  # not asked: the batch is of ids
    config, encoder = small_encoder("windows")
    encoder = bert_encoder() if kind == "bert" else encoder
    model = TaggingModel(encoder, tokenizer, config, n_labels=90, cutoffs=(30, 60), added=(10, 5)).eval()
    for name, graph in to_graphs(model):
        if kind == "bert":
            quantise(graph)
        save_graph(graph, tmp_path / name)
    other = OnnxModel(tmp_path, model.settings() | {"n_labels": 90}, tokenizer)
    template = Template(prefix=(), suffix=(1, 2), prefix_types=(), suffix_types=(0, 2), pad=0)
    if kind == "bert":
        template = Template(prefix=(1,), suffix=(2,), prefix_types=(0,), suffix_types=(0,), pad=0)
    collate = Collator(template, encoder.max_tokens, pad_left=encoder.pad_left)
    rng = np.random.default_rng(1)
    batch = collate([rng.integers(5, 50, n) for n in (3, 60 if kind == "windows" else 14, 1, 9)], [[]] * 4)
    states, other_states = model.read(batch), other.read(batch)
    with torch.inference_mode():
        wanted = model.clusters.probabilities(states).numpy()
        found = other.clusters.probabilities(other_states).numpy()
    np.testing.assert_allclose(found, wanted, atol=2e-2 if kind == "bert" else 1e-4, rtol=0)
    for label in (0, 29, 30, 75, 89):
        np.testing.assert_allclose(model.probability_of(states, label), wanted[:, label], rtol=1e-5)
        np.testing.assert_allclose(other.probability_of(other_states, label), found[:, label], rtol=1e-5)


def test_export_replaces_no_folder_and_leaves_none_half_written(trained, exported, tmp_path, monkeypatch):
    for out in (trained, exported[0]):
        done = aplc("export", trained, "--out", out)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "already exists" in done.stderr
    monkeypatch.setattr(graphs, "save_graph", lambda *_: (_ for _ in ()).throw(ModelError("too large")))
    with pytest.raises(ModelError, match="too large"):
        export(trained, tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"max_length": 10**12}, {"max_length": "96"}, {"max_segments": 0}], ids=str)
def test_an_exported_model_that_cuts_texts_at_no_possible_length_is_refused(exported, tmp_path, change):
    folder = shutil.copytree(exported[0], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["files"]
    config["encoder"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=rf"config.json: {next(iter(change))} = .* must be an integer from"):
        load_tagger(folder)


def test_a_network_with_memory_can_not_be_exported(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["encoder"]["long_text"] = "memory"
    (folder / "config.json").write_text(json.dumps(config))
    done = aplc("export", folder, "--out", tmp_path / "onnx")
    assert done.returncode == 2
    assert "memory" in done.stderr
    assert not (tmp_path / "onnx").exists()


def test_a_words_model_is_not_exported_and_says_why(corpus, tmp_path):
    ok(aplc("train", corpus, "--preset", "words", "--out", tmp_path / "words"))
    done = aplc("export", tmp_path / "words", "--out", tmp_path / "onnx")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "copy its folder" in done.stderr
    assert not (tmp_path / "onnx").exists()
