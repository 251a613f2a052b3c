"""Training a network: tokens, model, the objective of Equation 5, and the choice of the best epoch."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aplc import native
from aplc.config import Config, TrainConfig
from aplc.console import Screen
from aplc.data.batches import Batch, Batches, by_length
from aplc.data.cache import DocumentCache
from aplc.data.labels import LabelSet
from aplc.data.source import TrainingData
from aplc.data.tokenizer import Tokenizer
from aplc.errors import AplcError, RunError
from aplc.evaluate.metrics import Metrics
from aplc.models.base import LabelModel
from aplc.models.network import TaggingModel
from aplc.models.sharding import shard_model
from aplc.models.trained import TrainedTagger
from aplc.nn.checks import check_tail_widths
from aplc.nn.distributed import world
from aplc.nn.encoder import Encoder, build_encoder
from aplc.nn.partition import Partition
from aplc.nn.weights import WEIGHTS
from aplc.predict.search import predict_batches
from aplc.store.folder import lost_files, save_frame, save_weights
from aplc.train import loop
from aplc.train.checkpoint import Progress, load_checkpoint, newest_good
from aplc.train.frozen import train_on_states
from aplc.train.optim import Optimizers
from aplc.train.prepare import choose_tokenizer, tokenize
from aplc.train.run_folder import RunFolder
from aplc.train.tracking import Tracker

SCORE = "nDCG@5"
"""Chooses the best epoch: it looks at all five places of a list and weighs the first ones most."""


@dataclass
class TrainingRun(loop.Run):
    """A training run in progress."""

    network: TaggingModel
    config: Config
    labels: LabelSet
    n_documents: int
    """Training documents in which the labels were counted."""
    train: Batches
    valid: DocumentCache
    valid_rows: np.ndarray

    @property
    def total_steps(self) -> int:
        return total_steps(self.config.train, len(self.train))

    @property
    def epochs(self) -> int:
        """The last one may be a part of one (`train.max_documents`)."""
        return math.ceil(self.total_steps / len(self.train))

    @property
    def finished(self) -> bool:
        out_of_patience = 0 < self.config.train.patience <= self.progress.bad_evaluations
        return self.progress.epoch >= self.epochs or out_of_patience

    @property
    def loss_is_global(self) -> bool:
        return self.config.train.shard_labels

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        return islice(self.train.epoch(epoch, start=start), self.total_steps - epoch * len(self.train) - start)

    def losses(self, batch: Batch) -> Iterator[tuple[Tensor, float]]:
        """The batch is shared out among the processes, each share processed in `train.accumulate` parts."""
        config, device, weigh = self.config.train, world().device, self.network.loss_weight
        whole = weigh(batch)
        filler = batch.split(len(batch))[0].to(device)
        parts = batch.split(world().size * min(config.accumulate, len(batch)))
        for turn in (parts[i : i + world().size] for i in range(0, len(parts), world().size)):
            part = turn[world().rank]
            # Sharded clusters see the documents of all ranks at once, and give the loss of all.
            share = (sum(map(weigh, turn)) if config.shard_labels else weigh(part)) / whole
            with loop.autocast(device, config.precision):
                part_loss = self.network(part.to(device), filler)
            yield part_loss, share

    def after_step(self, tracker: Tracker) -> None:
        """Evaluation waits for the end of the epoch."""

    def after_epoch(self, tracker: Tracker) -> None:
        config, progress = self.config.train, self.progress
        scores = self.keep_if_better(f"epoch {progress.epoch + 1}/{self.epochs}: loss {self.mean_loss:.5f}")
        tracker.log(progress.step, epoch=progress.epoch, mean_loss=self.mean_loss, validation=scores)
        progress.epoch, progress.batch, progress.loss_sum, progress.loss_count = progress.epoch + 1, 0, 0.0, 0
        if self.finished and progress.epoch < self.epochs:
            self.screen.say(f"no better score in {config.patience} evaluations (train.patience): stopping early")

    def keep_if_better(self, line: str) -> dict[str, float] | None:
        """Score the network on the held-out documents, and keep it if it is the best so far. Says so behind `line`."""
        progress = self.progress
        scores = self.validate() if len(self.valid_rows) else None
        better = scores is None or scores[SCORE] > progress.best_score
        if scores:
            shown = ", ".join(f"{name} {100 * scores[name]:.2f}" for name in ("P@1", "P@3", "P@5", SCORE))
            line += f", held out {shown}" + (" (best)" if better else "")
            progress.best_score = max(progress.best_score, scores[SCORE])
        self.screen.say(line)
        progress.bad_evaluations = 0 if better else progress.bad_evaluations + 1
        if better:
            progress.best_step = progress.step
            save_weights(self.network, self.out)
        return scores

    def validate(self) -> dict[str, float]:
        """Metrics on the held-out documents."""
        items, truth = zip(*map(self.valid.document, self.valid_rows), strict=True)
        collate = self.network.collator
        batches = by_length([min(len(own), collate.max_length) for own in items], self.network.batch_size)
        self.network.eval()
        with loop.autocast(world().device, self.config.train.precision):
            ids, probs = predict_batches(
                self.network, batches, lambda members: collate([items[i] for i in members], [[]] * len(members)), k=5
            )
        self.network.train()
        metrics = Metrics(self.labels.counts, n_documents=self.n_documents)
        metrics.update_lists(ids, probs, truth)
        return metrics.result()

    def bar(self) -> contextlib.AbstractContextManager[Any]:
        n, progress = len(self.train.rows), self.progress
        done = progress.epoch * n + min(progress.batch * self.train.batch_size, n)
        total = self.total_steps * n // len(self.train)
        return self.screen.bar("training", total, done=done)

    def note(self) -> str:
        return f"epoch {self.progress.epoch + 1}/{self.epochs}, loss {self.mean_loss:.5f}"

    def units(self, batch: Batch) -> int:
        return len(batch)

    def salvage(self) -> str:
        kept = f"the best model so far (step {self.progress.best_step:,}) is in {self.out}"
        if not (self.out / WEIGHTS).is_file():
            good = newest_good(self.out, self.screen.say)
            if good:
                load_checkpoint(good[0], self.network, self.optimizers)
                save_weights(self.network, self.out)
            kept = f"the model of {good[0].name} is in {self.out}" if good else "no model was complete before that"
        rates = "train.lr_clusters, train.lr_hidden, train.lr_encoder"
        return f"{kept}. Try lower rates ({rates}) or train.warmup_steps"


@dataclass(frozen=True)
class Tokens:
    """What a network reads of the data."""

    tokenizer: Tokenizer
    train: DocumentCache
    valid: DocumentCache
    """The part with the held-out documents."""
    identity: dict[str, Any]
    """What a run on them is started with, and must be resumed with."""

    @classmethod
    def of(cls, data: TrainingData, config: Config, screen: Screen) -> "Tokens":
        source, labels = data.source, data.labels
        with world().main_first():
            tokenizer = choose_tokenizer(source, config.data, config.model, data.n_characters, screen)
            train = valid = tokenize(source, "train", tokenizer, labels, screen, data.n_documents)
            if source.dev:
                valid = tokenize(source, "dev", tokenizer, labels, screen)
        identity = {"config": config.to_dict(), **source.identity, "tokenizer": tokenizer.fingerprint}
        return cls(tokenizer, train, valid, identity)


def fit(data: TrainingData, config: Config, folder: RunFolder, screen: Screen) -> None:
    """Train a network and leave the best epoch's in the folder."""
    if more := len(data.labels) - data.labels.n_seen:
        screen.say(
            f"labels: {more:,} of the vocabulary have no training document; a network alone can't learn them, "
            "--preset words and --preset both can"
        )
    data = data.with_seen_labels()
    tokens = Tokens.of(data, config, screen)
    folder.check(tokens.identity)
    fit_network(data, tokens, config, folder, screen)


def fit_network(
    data: TrainingData,
    tokens: Tokens,
    config: Config,
    folder: RunFolder,
    screen: Screen,
    whole: Callable[[TaggingModel], LabelModel] = lambda network: network,
    labels: LabelSet | None = None,
) -> None:
    """`fit` on tokens at hand. `whole` makes the model that the network is a part of, `labels` are that one's."""
    if config.train.shard_labels and len(tokens.train.partial):
        raise RunError(
            "train.shard_labels: feedback can't be learned from where labels are spread over processes; leave it out, "
            "or set train.shard_labels=false"
        )
    torch.manual_seed(config.train.seed)
    config, model = build(data, tokens.train, tokens.tokenizer, config, screen)
    if world().device.type == "cpu":
        native.tell(screen, "the label clusters take about twice the time")
    torch.manual_seed(config.train.seed + world().rank)  # weights are the same on every rank, dropout is not
    shard_model(model, config)
    batches = Batches(tokens.train, data.train_rows, model.collator, config.train.batch_size, config.train.seed)
    run = TrainingRun(
        network=model,
        optimizers=Optimizers.for_tagging(model, config.train),
        steps=config.train,
        progress=Progress(),
        out=folder.path,
        screen=screen,
        config=config,
        labels=data.labels,
        n_documents=data.n_documents,
        train=batches,
        valid=tokens.valid,
        valid_rows=data.valid_rows,
    )
    goes_on = loop.begin(run, folder, tokens.identity)
    trained = TrainedTagger(
        config=config,
        model=whole(model),
        labels=labels or data.labels,
        n_documents=data.n_documents,
        vocabulary=data.vocabulary,
    )
    if run.finished:
        screen.say(f"this run is finished ({run.progress.step:,} steps); its best model is in {folder.path}")
        lost = lost_files(folder.path)
        if lost and WEIGHTS not in lost:
            screen.say(f"rewriting damaged or missing files: {', '.join(lost)}")
            save_frame(trained, folder.path)
        world().barrier()
        return
    on_gpu = loop.uses_bfloat16(world().device, config.train.precision)
    screen.say(f"device: {world().choice}")
    work = loop.describe_work(model, bfloat16=on_gpu or model.encoder.in_bfloat16)
    screen.say(f"training: {work}, {len(batches):,} steps an epoch")
    save_frame(trained, folder.path)
    if config.train.frozen_epochs and not goes_on:
        train_on_states(run)
        run.keep_if_better("encoder frozen")
        run.save_checkpoint()
    loop.fit(run)


def build(
    data: TrainingData, train: DocumentCache, tokenizer: Tokenizer, config: Config, screen: Screen
) -> tuple[Config, TaggingModel]:
    """The untrained network, and the configuration with the cut-offs that were chosen."""
    encoder = encoder_to_train(config, tokenizer)
    screen.say(f"encoder: {encoder.description}")
    partition = choose_partition(config, data.labels, data.n_documents)
    screen.say(f"clusters: {partition.reason}")
    clusters = replace(config.clusters, cutoffs=partition.cutoffs, div_value=partition.div_value)
    config = replace(config, clusters=clusters)
    model = TaggingModel(encoder, tokenizer, config, n_labels=len(data.labels), cutoffs=partition.cutoffs)
    if config.clusters.bias:
        touched = partition.documents_touching(train.label_offsets, train.label_ids)
        model.clusters.init_bias(data.labels.counts, data.n_documents, touched)
    return config, model


def encoder_to_train(config: Config, tokenizer: Tokenizer) -> Encoder:
    """The encoder that the configuration asks for, in the precision that training will have."""
    encoder = build_encoder(
        config.model,
        vocab_size=tokenizer.vocab_size,
        long_text=config.data.long_text,
        max_length=config.data.max_length,
    )
    if config.train.precision == "auto" and encoder.gains_by_bfloat16:
        encoder.train_in_bfloat16()
    return encoder


def total_steps(config: TrainConfig, per_epoch: int) -> int:
    """Steps of all epochs, within `train.max_documents`."""
    steps = config.epochs * per_epoch
    return min(steps, math.ceil(config.max_documents / config.batch_size)) if config.max_documents else steps


def choose_partition(config: Config, labels: LabelSet, n_documents: int) -> Partition:
    """The cut that the configuration asks for."""
    clusters, width = config.clusters, config.model.hidden_width
    try:
        partition = _partition(config, labels, n_documents)
        widths = partition.widths(width)[1:]
        check_tail_widths(widths, clusters.tail, in_features=width, div_value=partition.div_value)
    except ValueError as error:
        raise AplcError(f"clusters: {error}") from None
    return partition


def _partition(config: Config, labels: LabelSet, n_documents: int) -> Partition:
    clusters, n_labels = config.clusters, len(labels)
    widths: Any = {"div_value": clusters.div_value, "min_tail_width": clusters.min_tail_width}
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
