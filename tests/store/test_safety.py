"""Guards against model folders from anywhere: a lie or damage is an error, never a crash, hang or code run."""

import json
import os
import random
import resource
import shutil
import struct
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from aplc import Tagger
from aplc.errors import AplcError
from aplc.nn.checked import check_depth
from aplc.store.folder import load_tagger, save_tagger

FILES = ["config.json", "model.safetensors", "tokenizer.json", "labels.txt", "label_counts.npy", "calibration.json"]


@pytest.fixture
def model(trained, tmp_path):
    """Without digests: whoever writes a folder that lies can make them fit."""
    for name in FILES:
        shutil.copy(trained / name, tmp_path / name)
    edit(tmp_path / "config.json", lambda tree: tree.pop("files"))
    return tmp_path


def edit(path, change):
    tree = json.loads(path.read_text("utf-8"))
    change(tree)
    path.write_text(json.dumps(tree))


def put(*keys, value):
    def change(tree):
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = value

    return change


HUGE = 10**12


@pytest.mark.parametrize(
    "change",
    [
        put("n_labels", value=HUGE),
        put("n_labels", value=0),
        put("n_labels", value=6.5),
        put("n_documents", value="many"),
        put("cutoffs", value=[1] * 100_000),
        put("cutoffs", value=[HUGE]),
        put("cutoffs", value="3"),
        put("added", value=[HUGE]),
        put("added", value=[-1]),
        put("config", "model", "hidden_width", value=HUGE),
        put("config", "clusters", "div_value", value=-1.0),
        put("config", value=[]),
        put("encoder", "config", "d_model", value=HUGE),
        put("encoder", "config", "n_layer", value=HUGE),
        put("encoder", "config", "n_head", value=0),
        put("encoder", "config", "d_inner", value=-5),
        put("encoder", "config", "vocab_size", value=4),
        put("encoder", "config", value=None),
        put("encoder", "family", value="bert"),
        put("encoder", "family", value="../../evil"),
        put("encoder", "pooling", value=7),
        put("encoder", "extra", value=1),
        *(put("encoder", "max_length", value=value) for value in (HUGE, -5, 2, 16.5, "16", True, None)),
        *(put("encoder", "max_segments", value=value) for value in (HUGE, -1, 0, "8", None)),
        put("label_set", "aliases", value={"food": "nothing"}),
        put("label_set", "retired", value=["nothing"]),
        put("label_set", "version", value="x"),
        put("label_set", "history", value=[{"version": 2}]),
        put("label_set", value=3),
    ],
)
def test_config_that_lies(model, change):
    edit(model / "config.json", change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AplcError):
        load_tagger(model)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KB


@pytest.mark.parametrize("value", [3, {"documents": "x"}, {"documents": 1, "metrics": 3, "bands": [{}]}])
def test_figures_that_lie_are_not_shown(model, value):
    edit(model / "config.json", put("held_out", value=value))
    save_tagger(load_tagger(model), model / "again")
    assert "Not measured" in (model / "again" / "README.md").read_text()


def test_code_named_in_a_configuration_is_not_fetched(model):
    evil = {"model_type": "bert", "auto_map": {"AutoModel": "evil--x"}, "_attn_implementation": "evil/kernel"}
    edit(model / "config.json", lambda tree: tree["encoder"].update(family="bert", config=evil))
    with pytest.raises(AplcError, match=r"config\.json asks for"):  # a plain BERT, built without memory, differs
        load_tagger(model)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("bert", {"num_hidden_layers": HUGE}),
        ("bert", {"num_labels": HUGE}),
        ("albert", {"num_hidden_groups": HUGE}),
        ("albert", {"inner_group_num": HUGE}),
        ("albert", {"num_hidden_layers": HUGE}),  # one layer's weights, used so often
        ("funnel", {"block_sizes": [4, HUGE], "architectures": ["FunnelModel"]}),
        ("funnel", {"block_sizes": [4], "block_repeats": [HUGE]}),
        ("swin", {"depths": [2, HUGE]}),
        ("lxmert", {"l_layers": HUGE}),
    ],
)
def test_a_network_without_end_is_refused_whatever_its_family_calls_that(model, family, sizes):
    sizes |= {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "embedding_size": 32}
    config = {"model_type": family, "vocab_size": 100, **sizes}
    edit(model / "config.json", lambda tree: tree["encoder"].update(family=family, config=config))
    before = time.monotonic()
    with pytest.raises(AplcError, match=r"weights have \d+ tensors|the \d+ tensors of the weights"):
        load_tagger(model)
    assert time.monotonic() - before < 60


def test_labels_of_a_checkpoint_may_have_any_names():
    config = {"label2id": {"multilayer": 900}, "num_hidden_layers": 12, "layer_types": ["full"] * 12}
    check_depth({"encoder": {"config": config}}, dict.fromkeys("abc", (1,)), Path("folder"))


def header(path, change):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tree = json.loads(data[8 : 8 + size])
    change(tree)
    text = json.dumps(tree).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: header(p, lambda t: t["hidden.weight"].update(shape=[HUGE, HUGE])),
        lambda p: header(p, lambda t: t["hidden.weight"].update(data_offsets=[0, HUGE])),
        lambda p: header(p, lambda t: t["hidden.weight"].update(dtype="I32")),
        lambda p: header(p, lambda t: t.pop("hidden.weight")),
        lambda p: p.write_bytes(struct.pack("<Q", 2**63) + p.read_bytes()[8:]),
        lambda p: p.write_bytes(b""),
        lambda p: save_file({**load_file(p), "hidden.bias": torch.full((32,), float("nan"))}, p),
        lambda p: save_file({**load_file(p), "more": torch.zeros(3)}, p),
        lambda p: save_file({**load_file(p), "hidden.bias": torch.zeros(32, dtype=torch.int64)}, p),
    ],
)
def test_weights_that_lie(model, damage):
    damage(model / "model.safetensors")
    with pytest.raises(AplcError):
        load_tagger(model)


def npy(shape):
    head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + b"\0" * 48


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("label_counts.npy", npy((HUGE,))),
        ("label_counts.npy", npy("__import__('os').abort()")),
        ("label_counts.npy", b"PK\x03\x04 not a zip"),
        ("labels.txt", b"x" * 2_000_000),
        ("labels.txt", b"\xff\xfe"),
        ("labels.txt", b"a\nb\n"),
        ("tokenizer.json", b'{"version": "1.0"}'),
        ("tokenizer.json", b"[" * 100_000),
        ("config.json", b"[" * 100_000),
        ("config.json", b"{" * 100),
        ("calibration.json", b'{"format": 1}'),
    ],
)
def test_files_that_lie(model, name, content):
    (model / name).write_bytes(content)
    with pytest.raises(AplcError):
        load_tagger(model)


@pytest.mark.parametrize("name", [*FILES, "evaluation.json"])
def test_pipes_and_devices_are_not_read(model, name):
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    with pytest.raises(AplcError):
        load_tagger(model)
    (model / name).unlink()
    (model / name).symlink_to("/dev/zero")
    with pytest.raises(AplcError):
        load_tagger(model)


def test_tokenizer_of_another_model(model):
    def widen(tree):
        tree["model"]["vocab"].append(["another", -3.0])

    edit(model / "tokenizer.json", widen)
    with pytest.raises(AplcError, match="the tokenizer has"):
        load_tagger(model)


def mutate(path, rng):
    """Cut, flip, insert, repeat, or change a number."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(min(len(data), rng.choice([64, 4096, len(data)])))
    match rng.choice(["cut", "flip", "insert", "remove", "repeat", "digit"]):
        case "cut":
            del data[at:]
        case "flip":
            data[at] ^= 1 << rng.randrange(8)
        case "insert":
            data[at:at] = rng.randbytes(rng.choice([1, 8, 500]))
        case "remove":
            del data[at : at + rng.choice([1, 8, 500])]
        case "repeat":
            data[at:at] = data[at : at + 1000]
        case "digit":
            places = [i for i, byte in enumerate(data[:100_000]) if chr(byte).isdigit()]
            at = rng.choice(places or [0])
            data[at : at + 1] = rng.choice([b"9" * 12, b"-1", b"0", b"1e9", b"null"])
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(100))
def test_mutated_folder_is_refused_or_harmless(model, seed):
    rng = random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(rng.choice([1, 1, 3])):
        mutate(model / rng.choice(FILES), rng)
    try:
        with warnings.catch_warnings(action="ignore"):
            tags = Tagger.from_pretrained(model).predict(["cat dog paw", ""], top_k=3)
    except AplcError:
        return
    assert all(np.isfinite(p) and 0 <= p <= 1 for row in tags for _, p in row)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KB
