"""A training run: prepare the data, build the model, train, and leave a model folder.

`out` holds the best model so far, `run.json` (what the run was started with), `metrics.jsonl` and `checkpoints/`.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from aplc import __version__
from aplc.config import WORDS, Config
from aplc.console import Screen
from aplc.data.batches import Batches
from aplc.data.labels import NAMES, LabelSet
from aplc.data.tokenizer import TOKENIZER_FILE as TOKENIZER
from aplc.distributed import restarts, world
from aplc.errors import AplcError, RunError
from aplc.evaluate.bands import by_frequency
from aplc.evaluate.metrics import Metrics
from aplc.files import write_json
from aplc.folder import CARD, CONFIG, WEIGHTS, ModelFolder
from aplc.nn.encoder import build_encoder
from aplc.nn.model import TaggingModel
from aplc.nn.partition import Partition
from aplc.predict import calibrate, predict_rows
from aplc.safety import read_json
from aplc.sharding import shard_model
from aplc.train.checkpoint import Progress, load_checkpoint, newest_good
from aplc.train.loop import Run, fit, uses_bfloat16
from aplc.train.optim import Optimizers
from aplc.train.prepare import Prepared, Source, prepare
from aplc.train.words import fit_words

RUN = "run.json"


def train(
    source: Source, config: Config, out: Path, *, resume: bool = False, screen: Screen | None = None
) -> ModelFolder:
    """Train on `source`, leave the best model in `out` and return it."""
    screen = screen or Screen(quiet=True)
    if config.model.encoder == WORDS and world().size > 1:
        raise RunError("a model of words is fitted by one process; leave out torchrun")
    resume = resume or restarts() > 0
    started = is_started(out, resume)
    with world().main_first():
        prepared = prepare(source, config, screen)
    if started:
        _refuse_changed_labels(out)
    identity = {
        "config": config.to_dict(),
        "corpus": source.key,
        "tokenizer": prepared.tokenizer.fingerprint,
    }
    if started:
        refuse_changes(out, identity)
    if config.model.encoder == WORDS:
        if not (started and (out / WEIGHTS).is_file()):
            fitted = fit_words(prepared, config, screen)  # a fit that fails leaves no run behind: nothing to go on with
            write_json(out / RUN, identity | {"aplc_version": __version__})
            fitted.save(out)
        else:
            screen.say(f"this run is finished; its model is in {out}")
        return _calibrated(ModelFolder.load(out), prepared, out, screen)

    torch.manual_seed(config.train.seed)
    folder = _build(prepared, config, screen)
    torch.manual_seed(config.train.seed + world().rank)  # weights are the same on every rank, dropout is not
    shard_model(folder.model, config)
    optimizers = Optimizers.for_tagging(folder.model, config.train)
    progress = Progress()
    if started and (found := newest_good(out, screen.say)):
        path, progress = found
        load_checkpoint(path, folder.model, optimizers)
        screen.say(f"resuming from {path.name}: epoch {progress.epoch + 1}, batch {progress.batch + 1}")
    elif resume:
        screen.say("no checkpoint to resume from: starting from the beginning")
    write_json(out / RUN, identity | {"aplc_version": __version__})

    batches = Batches(prepared.train, prepared.train_rows, folder.collator, config.train.batch_size, config.train.seed)
    run = Run(folder, optimizers, batches, prepared.valid, prepared.valid_rows, progress, out, screen)
    if run.finished:
        screen.say(f"this run is finished ({progress.step:,} steps); its best model is in {out}")
    else:
        screen.say(_describe(run))
        folder.save_frame(out)
        fit(run)
    del run, optimizers, folder, batches  # what training needed must not be there twice when the model is read again
    return _calibrated(ModelFolder.load(out), prepared, out, screen)


def _calibrated(folder: ModelFolder, prepared: Prepared, out: Path, screen: Screen) -> ModelFolder:
    """The best model, with what the held-out documents say of its probabilities. They also chose the epoch: one choice
    among few, which leaves them nearly as good as fresh ones."""
    if not len(prepared.valid_rows):
        screen.say("calibration: none, no documents were held out")
        return folder
    tokens, labels = zip(*map(prepared.valid.row, prepared.valid_rows), strict=True)
    with screen.bar("calibrating"):
        calibration = calibrate(folder, tokens, labels)
        folder = replace(folder, calibration=calibration)
        k = min(100, len(folder.labels))
        ids, probs = predict_rows(folder.model, folder.collator, tokens, k, ranking=folder.ranking)
    metrics = Metrics(folder.labels.counts, n_documents=folder.n_documents)
    metrics.update(ids, probs, np.cumsum([0, *map(len, labels)]), np.concatenate(labels))
    bands = [asdict(band) for band in by_frequency(metrics.label_stats(5))]
    folder = replace(folder, held_out={"documents": len(tokens), "metrics": metrics.result(), "bands": bands})
    folder.save_frame(out)
    n_curves = sum(len(points) > 2 for points in calibration.knots)
    screen.say(
        f"calibration: {n_curves} of {len(calibration.knots)} clusters, learned on {len(tokens):,} held-out documents"
        + ("" if n_curves else "; too few hits there, so probabilities stay as they are")
    )
    return folder


def _build(prepared: Prepared, config: Config, screen: Screen) -> ModelFolder:
    encoder = build_encoder(
        config.model,
        vocab_size=prepared.tokenizer.vocab_size,
        long_text=config.data.long_text,
        max_length=config.data.max_length,
    )
    screen.say(f"encoder: {encoder.description}")
    partition = choose_partition(config, prepared.labels, prepared.n_documents)
    screen.say(f"clusters: {partition.reason}")
    clusters = replace(config.clusters, cutoffs=partition.cutoffs, div_value=partition.div_value)
    config = replace(config, clusters=clusters)
    model = TaggingModel(encoder, config, n_labels=len(prepared.labels), cutoffs=partition.cutoffs)
    if config.clusters.bias:
        train = prepared.train
        touched = partition.documents_touching(train.label_offsets, train.label_ids)
        model.clusters.init_bias(prepared.labels.counts, prepared.n_documents, touched)
    return ModelFolder(config, model, prepared.tokenizer, prepared.labels, prepared.n_documents)


def choose_partition(config: Config, labels: LabelSet, n_documents: int) -> Partition:
    """The cut that the configuration asks for."""
    clusters, n_labels = config.clusters, len(labels)
    widths: Any = {"div_value": clusters.div_value, "min_tail_width": clusters.min_tail_width}
    try:
        if clusters.cutoffs == "proportions":
            return Partition.from_proportions(n_labels, clusters.proportions, **widths)
        if clusters.cutoffs != "auto":
            return Partition.from_cutoffs(n_labels, clusters.cutoffs, **widths)
        return Partition.automatic(
            labels.counts,
            n_documents=n_documents,
            in_features=config.model.hidden_width,
            batch_size=config.train.batch_size,
            max_parameters=clusters.max_parameters or None,
            min_tail_width=clusters.min_tail_width,
        )
    except ValueError as error:
        raise AplcError(f"clusters: {error}") from None


def _describe(run: Run) -> str:
    return f"training: {describe_work(run.folder.model)}, {len(run.batches):,} steps an epoch"


def describe_work(model: nn.Module) -> str:
    """How large the model is and where it will be trained."""
    n_parameters = sum(p.numel() for p in model.parameters())
    device, size = world().device, world().size
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    dtype = "bfloat16 where it is safe" if uses_bfloat16(device) else "float32"
    processes = f"{size} processes with " if size > 1 else ""
    return f"{n_parameters:,} parameters on {processes}{where} in {dtype}"


def _refuse_changed_labels(out: Path) -> None:
    """A run that went on would write the label set it was started with over the one that was changed since."""
    version = read_json(out / CONFIG).get("label_set", {}).get("version", 1) if (out / CONFIG).is_file() else 1
    if version != 1:
        raise RunError(
            f"{out}: its labels were changed after training (label-set version {version}); choose another --out"
        )


def is_started(out: Path, resume: bool) -> bool:
    """Whether `out` holds a run to go on with; what must not be touched is an error."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file; --out must be a folder, or nothing yet")
    started = (out / RUN).is_file()
    if started and not resume:
        raise RunError(f"{out}: holds a run already; go on with --resume, choose another --out, or delete it first")
    if not started and (out / CONFIG).is_file():
        raise RunError(f"{out}: holds a model that is no run to go on with; choose another --out")
    if not started and (mine := [name for name in (CARD, NAMES, TOKENIZER, WEIGHTS) if (out / name).exists()]):
        raise RunError(f"{out / mine[0]}: is there already and would be replaced; choose another --out")
    return started


def was_trained_on(model: Path, source: Source) -> bool:
    """Whether a model folder says so; one from `Tagger.fit` does not say."""
    return (model / RUN).is_file() and read_json(model / RUN).get("corpus") == source.key


def refuse_changes(out: Path, identity: dict[str, Any]) -> None:
    """A resumed run must be the run that was started."""
    before = read_json(out / RUN)
    now = json.loads(json.dumps(identity))
    differences = [f"the {name} has changed" for name in ("corpus", "tokenizer") if before.get(name) != now[name]]
    for section, values in now["config"].items():
        for name, value in values.items():
            old = before.get("config", {}).get(section, {}).get(name)
            if old != value:
                differences.append(f"{section}.{name} was {old!r} and is {value!r}")
    if differences:
        raise RunError(f"{out}: can't resume, {'; '.join(differences)}. Use the settings of before, or another --out")
