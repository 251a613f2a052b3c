"""Guards `aplc pretrain`: it learns, resumes to the bit, leaves what `transformers` and `aplc train` read, and says in
one line what is wrong with a corpus."""

import json
import random
import shutil
import sys

import pytest
import torch
import transformers

from aplc.config import Config, preset_names
from aplc.data.formats import BadRows
from aplc.errors import AplcError, CorpusError, RunError
from aplc.pretrain.config import PretrainConfig
from aplc.pretrain.loop import PretrainingRun, baseline_loss
from aplc.pretrain.objective import PermutationLM
from aplc.pretrain.prepare import open_texts, prepare
from aplc.pretrain.run import build, pretrain
from aplc.train import loop
from aplc.train.checkpoint import Progress
from helpers import (
    TOPICS,
    Recorder,
    aplc,
    assert_resumed_equals_uninterrupted,
    assert_same_weights,
    launch,
    ok,
    weights,
)

TINY = [
    "model.layers=2",
    "model.width=32",
    "model.heads=2",
    "model.inner_width=64",
    "data.vocab_size=60",
    "data.max_length=24",
    "data.memory=8",
    "data.validation=0.1",
    "train.batch_size=6",
    "train.steps=12",
    "train.warmup_steps=3",
    "train.evaluate_steps=5",
    "train.checkpoint_steps=5",
    "train.lr=3e-3",
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """150 texts, each the words of one topic over and over, so that context tells which words to expect."""
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    rng = random.Random(0)
    lines = []
    for _ in range(150):
        words, start = rng.choice(list(TOPICS.values())).split(), rng.randrange(6)
        lines.append(" ".join((words * 9)[start : start + rng.randint(8, 30)]))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def config(*settings):
    return PretrainConfig.from_preset("mini").with_settings([*TINY, *settings])


def run(texts, out, *settings, resume=False, screen=None):
    pretrain(open_texts(texts, BadRows()), config(*settings), out, resume=resume, screen=screen)


@pytest.fixture(scope="module")
def encoder(texts, tmp_path_factory):
    """An encoder that has learned the topics."""
    out = tmp_path_factory.mktemp("pretrained") / "encoder"
    wide = ("model.width=64", "train.batch_size=12", "train.lr=5e-3")
    run(texts, out, *wide, "train.steps=240", "train.evaluate_steps=80")
    return out


def test_held_out_loss_falls_well_below_unigram(encoder):
    lines = [json.loads(line) for line in (encoder / "metrics.jsonl").read_text().splitlines()]
    curve = [line for line in lines if "held_out" in line]
    assert [line["step"] for line in curve] == [80, 160, 240]
    assert curve[-1]["held_out"] < 0.75 * curve[-1]["unigram"]
    assert any("loss" in line and "rate" in line for line in lines)
    assert "unigram distribution" in (encoder / "curve.svg").read_text("utf-8")


def test_the_unigram_baseline_is_what_a_model_without_context_gets(texts, tmp_path):
    """All weights zero but for the output bias: the network's loss is the baseline."""
    settings = config()
    prepared = prepare(open_texts(texts, BadRows()), settings, Recorder())
    model = build(settings, prepared)
    for name, parameter in model.named_parameters():
        if name != "lm_loss.bias":
            torch.nn.init.zeros_(parameter)
    running = PretrainingRun(
        network=model, config=settings, train=prepared.train, valid=prepared.valid, screen=Recorder(),
        out=tmp_path, optimizers=None, steps=settings.train, progress=Progress(), baseline=0.0, save=None,
    )  # fmt: skip
    baseline = baseline_loss(prepared.valid, prepared.unigram)
    assert running.held_out_loss() == pytest.approx(baseline, abs=1e-5)


def test_folder_is_an_xlnet_of_transformers(encoder):
    theirs, info = transformers.XLNetLMHeadModel.from_pretrained(encoder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert theirs.config.d_model == 64
    assert set(weights(encoder)) == set(PermutationLM.from_pretrained(encoder).state_dict())
    assert "the unigram distribution has" in (encoder / "README.md").read_text("utf-8")


def test_aplc_train_fine_tunes_it(corpus, encoder, tmp_path, small):
    done = aplc("train", corpus, "--out", tmp_path / "model", "--set", f"model.encoder={encoder}",
                *[x for s in [*small[4:], "train.epochs=1"] for x in ("--set", s)])  # fmt: skip
    ok(done)
    assert "tokenizer: the encoder's own" in done.stderr
    assert "width 64" in done.stderr
    ok(aplc("evaluate", tmp_path / "model", corpus))


@pytest.mark.parametrize("stop_at", [3, 5, 7])
def test_resumed_run_equals_uninterrupted_one(texts, tmp_path, stop_at):
    def resumable(out, resume=False):
        run(texts, out, "model.dropout=0.1", "train.accumulate=2", resume=resume)

    assert_resumed_equals_uninterrupted(resumable, tmp_path, stop_at)


def test_epochs_go_round_and_memory_is_left_behind(texts, tmp_path, monkeypatch):
    """More steps than an epoch has: memory is empty at the first step of each."""
    settings, empty = ("train.steps=400", "train.evaluate_steps=400", "data.max_length=48"), []
    prepared = prepare(open_texts(texts, BadRows()), config(*settings), Recorder())
    step = loop.train_step

    def watching(running, batch, rate):
        if not running.memory:
            empty.append(running.progress.step)
        if running.progress.step > 2 * len(prepared.train):
            raise MemoryError
        return step(running, batch, rate)

    monkeypatch.setattr(loop, "train_step", watching)
    with pytest.raises(MemoryError):
        run(texts, tmp_path / "out", *settings)
    assert empty == [0, len(prepared.train), 2 * len(prepared.train)]


def test_finished_or_changed_run_says_so(texts, encoder, tmp_path):
    out, screen = tmp_path / "out", Recorder()
    run(texts, out)
    with pytest.raises(RunError, match="--resume"):
        run(texts, out)
    run(texts, out, resume=True, screen=screen)
    assert "this run is finished (12 steps)" in screen.text
    with pytest.raises(RunError, match=r"objective.one_in was 6 and is 3"):
        run(texts, out, "objective.one_in=3", resume=True)


def test_it_goes_on_from_an_encoder_and_from_transformers_xlnet(texts, encoder, tmp_path):
    """From our own folder, and from one as `transformers` saves it with a SentencePiece model beside it."""
    screen = Recorder()
    run(texts, tmp_path / "more", f"model.encoder={encoder}", "train.lr=0", screen=screen)
    assert "tokenizer: the encoder's own" in screen.text
    assert_same_weights(encoder, tmp_path / "more")

    sentencepiece = pytest.importorskip("sentencepiece")
    genuine = tmp_path / "genuine"
    genuine.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(texts), model_prefix=str(genuine / "spiece"), vocab_size=70, hard_vocab_limit=False, minloglevel=2,
        control_symbols="<cls>,<sep>,<pad>,<mask>,<eod>", user_defined_symbols="<eop>",
    )  # fmt: skip
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(genuine / "spiece.model")).get_piece_size()
    sizes = transformers.XLNetConfig(vocab_size=pieces, d_model=32, n_layer=2, n_head=2, d_inner=64)
    transformers.XLNetLMHeadModel(sizes).save_pretrained(genuine)
    run(texts, tmp_path / "adapted", f"model.encoder={genuine}")
    before, after = weights(genuine), weights(tmp_path / "adapted")
    changed = [name for name in after if not torch.equal(before[name], after[name])]
    assert "transformer.layer.1.rel_attn.q" in changed
    assert "lm_loss.bias" in changed
    with pytest.raises(AplcError, match=r"the tokenizer has \d+ pieces and the encoder \d+ embeddings"):
        run(texts, tmp_path / "wrong", f"model.encoder={genuine}", f"data.tokenizer={encoder}")


def test_two_processes_train_the_encoder_of_one(texts, tmp_path):
    """An odd batch, so that shares are unequal."""
    run(texts, tmp_path / "one", "train.batch_size=5")
    sets = [x for s in [*TINY, "train.batch_size=5"] for x in ("--set", s)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch([*torchrun, "-m", "aplc", "pretrain", str(texts), "--out", str(tmp_path / "two"), *sets])
    for name, tensor in weights(tmp_path / "one").items():
        assert (weights(tmp_path / "two")[name] - tensor).abs().max() < 1e-5, name


def test_a_folder_of_text_files_is_read_whole_and_a_test_part_never(texts, tmp_path):
    many = tmp_path / "many"
    many.mkdir()
    (many / "b.txt").write_text("three\n")
    (many / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (many / "notes.md").write_text("not read")
    assert [d.text for d in open_texts(many, BadRows()).train()] == ["one", "two", "three"]
    shutil.copy(many / "b.txt", many / "test.txt")
    with pytest.raises(CorpusError, match="no train part"):
        open_texts(many, BadRows())
    (many / "train.txt").write_text("four\n")
    assert [d.text for d in open_texts(many, BadRows()).train()] == ["four"]


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ("", [], "the corpus has no text"),
        ("\n  \n", [], "the corpus has no text"),
        ("a cat and a dog\n", ["data.vocab_size=16"], "fewer than one segment of data.max_length = 24"),
        ("a cat and a dog sat on a log\n" * 4, ["data.vocab_size=16"], "--set train.batch_size="),
        ("a cat and a dog sat on a log\n" * 99, ["data.vocab_size=5000"], r"data.vocab_size = 5000, but this text"),
    ],
)
def test_bad_corpus_is_one_line(tmp_path, content, settings, message):
    (tmp_path / "corpus.txt").write_text(content)
    with pytest.raises(CorpusError, match=message) as caught:
        run(tmp_path / "corpus.txt", tmp_path / "out", *settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_suggested_vocabulary_works(tmp_path):
    (tmp_path / "corpus.txt").write_text("a cat and a dog sat on a log\n" * 99)
    with pytest.raises(CorpusError) as caught:
        run(tmp_path / "corpus.txt", tmp_path / "out", "data.vocab_size=5000")
    size = str(caught.value).partition("--set ")[2].partition(",")[0]
    run(tmp_path / "corpus.txt", tmp_path / "out", size, "train.steps=1")
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_presets_are_sizes_of_pretraining_alone():
    assert preset_names(PretrainConfig.presets) == ["base", "mini", "small"]
    sizes = {name: PretrainConfig.from_preset(name).model for name in ("mini", "small", "base")}
    assert (sizes["mini"].layers, sizes["mini"].width) == (4, 256)
    assert (sizes["base"].layers, sizes["base"].width, sizes["base"].inner_width) == (12, 768, 3072)
    with pytest.raises(AplcError, match=r"no preset 'mini'; there are .*tiny"):
        Config.from_preset("mini")
    with pytest.raises(AplcError, match="no preset 'tiny'; there are base, mini, small"):
        PretrainConfig.from_preset("tiny")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("objective.one_in=1", "at least 2"),
        ("data.max_length=1", "at least 3"),
        ("train.accumulate=99", "at most train.batch_size"),
        ("model.heads=5", "a divisor of model.width"),
        ("train.epochs=3", "no such setting"),
    ],
)
def test_bad_setting_is_named_with_its_bound(setting, message):
    with pytest.raises(AplcError, match=message):
        config(setting)


def test_diverging_loss_stops_the_run(texts, tmp_path):
    with pytest.raises(RunError, match=r"not finite .*train.lr"):
        run(texts, tmp_path / "out", "train.lr=1e30", "train.warmup_steps=0", "train.clip_norm=1e30")


def test_command_line(texts, tmp_path):
    sets = [x for s in [*TINY, "train.steps=2"] for x in ("--set", s)]
    done = aplc("pretrain", texts, "--out", tmp_path / "out", *sets)
    assert ok(done).strip() == f"encoder: {tmp_path / 'out'}"
    assert "baseline: the unigram distribution" in done.stderr
    assert "held out" in done.stderr
    again = aplc("pretrain", texts, "--out", tmp_path / "on", "--encoder", tmp_path / "out", *sets)
    assert "tokenizer: the encoder's own" in again.stderr
    refused = aplc("pretrain", tmp_path / "nothing", "--out", tmp_path / "x")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
