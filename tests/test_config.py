"""Guards the settings: presets are the paper's, and a mistyped setting is found before any work starts."""

import json
import re

import pytest

from aplc.config import Config, preset_names
from aplc.errors import AplcError

# Tables 2 and 3 of the paper: d_h, q, proportions; L_seq, eta_x, eta_h, eta_a, N_b, N_e.
PAPER = {
    "eurlex-4k": (768, 2, (0.5, 0.5), 512, 5e-5, 1e-4, 2e-3, 12, 8),
    "amazoncat-13k": (768, 2, (0.5, 0.5), 192, 5e-5, 1e-4, 2e-3, 48, 8),
    "wiki10-31k": (768, 2, (0.5, 0.5), 512, 1e-5, 1e-4, 1e-3, 12, 6),
    "wiki-500k": (768, 2, (0.33, 0.33, 0.34), 256, 5e-5, 1e-4, 2e-3, 64, 12),
    "amazon-670k": (512, 2, (0.25, 0.25, 0.25, 0.25), 128, 5e-5, 1e-4, 2e-3, 32, 25),
}


@pytest.mark.parametrize("name", PAPER)
def test_preset_equals_the_papers_tables(name):
    config = Config.from_preset(name)
    model, clusters, train = config.model, config.clusters, config.train
    assert (
        model.hidden_width,
        clusters.div_value,
        clusters.proportions,
        config.data.max_length,
        train.lr_encoder,
        train.lr_hidden,
        train.lr_clusters,
        train.batch_size,
        train.epochs,
    ) == PAPER[name]


@pytest.mark.parametrize("name", PAPER)
def test_preset_equals_the_released_code(name):
    config = Config.from_preset(name)
    train, clusters = config.train, config.clusters
    assert (train.warmup_steps, train.clip_norm, train.weight_decay, train.adam_epsilon) == (0, 1.0, 0.0, 1e-8)
    assert (clusters.objective, clusters.tail, clusters.bias) == ("released", "norm-relu", False)
    assert config.model.encoder == "xlnet-base-cased"


def test_every_preset_loads():
    assert set(PAPER) | {"tiny"} <= set(preset_names())
    for name in preset_names():
        Config.from_preset(name)


def test_former_name_of_the_words_preset():
    assert Config.from_preset("cpu") == Config.from_preset("words")


def test_settings_survive_json():
    config = Config.from_preset("tiny").with_settings(["clusters.cutoffs=[10,20]", "train.lr_hidden=1"])
    assert config.clusters.cutoffs == (10, 20)
    assert config.train.lr_hidden == 1.0
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("setting", "cutoffs"),
    [("clusters.cutoffs=7", (7,)), ("clusters.cutoffs=7,9", (7, 9)), ("clusters.cutoffs=[]", ())],
)
def test_cutoffs_may_be_written_briefly(setting, cutoffs):
    assert Config().with_settings([setting]).clusters.cutoffs == cutoffs


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epochs=0", "train.epochs = 0: must be at least 1"),
        ("train.epochs=many", "must be of type int"),
        ("train.epoch=3", "no such setting; did you mean train.epochs?"),
        ("nothing.like=it", "no such setting; there are data."),
        ("epochs=3", "write it as section.name=value"),
        ("clusters.objective=other", "must be one of 'released', 'paper'"),
        ("clusters.cutoffs=[9,7]", "rising label ranks"),
        ("clusters.proportions=[0.5,0.6]", "add up to 1"),
        ("model.heads=5", "a divisor of model.width"),
        ("data.max_length=2", "at least 3"),
        ("data.max_length=1048577", "at most 1,048,576"),
        ("train.accumulate=99", "at most train.batch_size"),
        ("train.seed=4294967296", "below 2^32"),
    ],
)
def test_bad_setting_is_named_with_its_bound(setting, message):
    with pytest.raises(AplcError, match=re.escape(message)):
        Config().with_settings([setting])


def test_unknown_preset_lists_the_known_ones():
    with pytest.raises(AplcError, match="tiny"):
        Config.from_preset("nope")


def test_preset_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nepochs = 3\n")
    assert Config.from_preset(str(path)).train.epochs == 3
    path.write_text("[train]\nepoch = 3\n")
    with pytest.raises(AplcError, match=r"mine.toml: no setting train.epoch"):
        Config.from_preset(str(path))
    path.write_text("# für\n", encoding="latin-1")
    with pytest.raises(AplcError, match=r"mine.toml: .*utf-8"):
        Config.from_preset(str(path))
