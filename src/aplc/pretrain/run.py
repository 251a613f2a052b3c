"""A pretraining run: prepare the text, build or load the encoder, train, and leave an encoder folder.

`out` holds the best encoder so far as `transformers` reads it (`config.json`, `model.safetensors`, `tokenizer.json`,
`README.md`), `run.json` (what the run was started with), `metrics.jsonl`, `curve.svg` and `checkpoints/`.
"""

from functools import partial
from pathlib import Path

import torch

from aplc.console import Screen
from aplc.data.source import Source
from aplc.errors import RunError
from aplc.files import atomic_write
from aplc.machine import is_main_process
from aplc.nn.distributed import world
from aplc.nn.encoder import new_xlnet
from aplc.nn.weights import encoder_folder, read_config
from aplc.pretrain.card import draw_curve, encoder_card
from aplc.pretrain.config import PretrainConfig
from aplc.pretrain.loop import PretrainingRun, baseline_loss
from aplc.pretrain.objective import PermutationLM
from aplc.pretrain.prepare import PretrainingData, prepare
from aplc.train import loop
from aplc.train.checkpoint import Progress
from aplc.train.optim import Optimizers, adamw, group
from aplc.train.run_folder import RunFolder
from aplc.train.tracking import METRICS_FILE


def pretrain(
    source: Source, config: PretrainConfig, out: Path, *, resume: bool = False, screen: Screen | None = None
) -> None:
    """Pretrain on the text of `source` and leave the best encoder in `out`."""
    with RunFolder.open(out, resume=resume) as folder:
        _pretrain(source, config, folder, screen or Screen(quiet=True))


def _pretrain(source: Source, config: PretrainConfig, folder: RunFolder, screen: Screen) -> None:
    out = folder.path
    if config.train.batch_size < world().size:
        raise RunError(f"train.batch_size = {config.train.batch_size}: must be at least {world().size}, the processes")
    with world().main_first():
        data = prepare(source, config, screen)
    identity = {"config": config.to_dict(), "corpus": source.key, "tokenizer": data.tokenizer.fingerprint}
    folder.check(identity)

    torch.manual_seed(config.train.seed)
    model = build(config, data).to(world().device)
    torch.manual_seed(config.train.seed + world().rank)  # weights are the same on every rank, dropout is not
    baseline = baseline_loss(data.valid, data.unigram) if data.valid else 0.0
    run = PretrainingRun(
        network=model,
        optimizers=Optimizers(adamw([group(model, config.train.lr)], config.train)),
        steps=config.train,
        progress=Progress(),
        out=out,
        screen=screen,
        config=config,
        train=data.train,
        valid=data.valid,
        baseline=baseline,
        save=partial(save_encoder, out, model, data, config, baseline),
    )
    loop.begin(run, folder, identity)
    if run.finished:
        screen.say(f"this run is finished ({run.progress.step:,} steps); its best encoder is in {out}")
        return
    passes = config.train.steps / len(run.train)
    screen.say(f"device: {world().choice}")
    work = loop.describe_work(model, bfloat16=loop.uses_bfloat16(world().device))
    screen.say(
        f"pretraining: {work}; {config.train.steps:,} steps of {config.train.batch_size} x "
        f"{config.data.max_length} tokens, {passes:.1f} passes over the text"
    )
    if run.valid:
        screen.say(f"baseline: the unigram distribution has a held-out loss of {run.baseline:.3f}")
    loop.fit(run)
    if run.valid and is_main_process():
        draw_curve(out / METRICS_FILE, out / "curve.svg")


def build(config: PretrainConfig, data: PretrainingData) -> PermutationLM:
    """The network that `config.model` asks for, new or from a folder or hub name.

    A new one's output bias starts at the pieces' log-frequencies: the first hundreds of steps learn little else.
    """
    model, memory, vocab_size = config.model, config.data.memory, data.tokenizer.vocab_size
    if model.encoder == "new":
        new = PermutationLM(new_xlnet(model, vocab_size=vocab_size, memory=memory or None))
        new.lm_loss.bias.data.copy_(torch.from_numpy(data.unigram))
        return new
    folder = encoder_folder(model.encoder)
    rows = read_config(folder).get("vocab_size")
    if rows != vocab_size:
        raise RunError(
            f"{folder}: the tokenizer has {vocab_size:,} pieces and the encoder {rows} embeddings; use the encoder's "
            f"own tokenizer (leave data.tokenizer empty)"
        )
    changes = {"dropout": model.dropout, "mem_len": memory or None}
    return PermutationLM.from_pretrained(folder, checkpoint_activations=model.checkpoint_activations, **changes)


def save_encoder(
    out: Path,
    model: PermutationLM,
    data: PretrainingData,
    config: PretrainConfig,
    baseline: float,
    loss: float | None,
    step: int,
) -> None:
    if not is_main_process():
        return
    data.tokenizer.save(out)
    with atomic_write(out / "README.md") as card:
        card.write(encoder_card(model, data, config, loss, baseline, step).encode("utf-8"))
    model.save_pretrained(out)
