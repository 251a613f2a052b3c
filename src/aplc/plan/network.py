"""What a run will cost, before it runs: size, work, memory and time, and what to change where it does not fit.

    aplc plan corpus --preset tiny

Label counts are exact, from one pass over the training part. Lengths, activations and time come from a sample of
documents, so that a million documents take no more than that pass. Parameters are exact. Memory is the sum of its parts
at the worst moment, a step on the longest documents: checkpoints are written from the tensors themselves, without a
copy. Time is that of this machine as busy as it is now.
"""

import math
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aplc.config import Config
from aplc.console import Screen
from aplc.data.batches import POOL, Batches
from aplc.data.cache import DocumentCache
from aplc.data.inspection import PICTURE_WIDTH, zipf_picture
from aplc.data.source import Source, split_rows
from aplc.data.survey import Survey, survey_source
from aplc.data.tokenizer import Tokenizer
from aplc.machine import resident_bytes
from aplc.models.network import TaggingModel
from aplc.nn.distributed import world
from aplc.nn.encoder import Encoder
from aplc.nn.partition import Partition
from aplc.plan.budget import FLOAT, Sizes, Suggestion, fits, suggest
from aplc.plan.probe import Timing, measure_activations, measure_time, memory_at_hand
from aplc.plan.units import duration, in_bytes
from aplc.train import frozen
from aplc.train.checkpoint import Progress
from aplc.train.network import TrainingRun, choose_partition, encoder_to_train, total_steps
from aplc.train.optim import Optimizers
from aplc.train.prepare import choose_tokenizer, token_dtype

SAMPLE = 2_000
"""Documents that stand for all in lengths and in the probe; more where a pool of batches needs more."""


@dataclass(frozen=True)
class Plan:
    """All that `aplc plan` says."""

    config: Config
    partition: Partition
    counts: NDArray[np.int64]
    n_documents: int
    n_train: int
    """Documents trained on: those held out are among `n_documents`, those of a dev part are not."""
    n_valid: int
    label_mass: int
    reached: list[float]
    touching: list[int]
    sizes: Sizes
    token_cache: int
    available: int
    available_is: str
    timing: Timing | None
    suggestions: list[Suggestion]

    @property
    def fits(self) -> bool:
        return fits(self.sizes.memory().peak, self.available)

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return math.ceil(self.n_train / self.config.train.batch_size)

    @property
    def epochs(self) -> float:
        """That are trained for; the last one may be a part of one (`train.max_documents`)."""
        return total_steps(self.config.train, self.steps) / self.steps

    @property
    def total_seconds(self) -> float | None:
        """Of all epochs. A part of an epoch is validated and saved like a whole one."""
        seconds = self.epoch_seconds()
        if seconds is None:
            return None
        after = math.ceil(self.epochs) * (seconds["validation"] + seconds["saving"])
        return self.frozen_seconds + self.epochs * seconds["training"] + after

    @property
    def frozen_seconds(self) -> float:
        """Of `train.frozen_epochs`: the encoder's pass over the documents, the epochs on its states, and a score."""
        train, timing = self.config.train, self.timing
        if timing is None or not train.frozen_epochs:
            return 0.0
        n = min(self.n_train, train.max_documents or self.n_train)
        steps = train.frozen_epochs * math.ceil(n / frozen.BATCH_SIZE)
        return (n + self.n_valid) * timing.validation_seconds + steps * timing.state_step_seconds

    def epoch_seconds(self) -> dict[str, float] | None:
        if self.timing is None:
            return None
        memory = self.sizes.memory()
        checkpoints = 1 + self.steps // self.config.train.checkpoint_steps
        written = checkpoints * (memory.weights + memory.optimizer) + memory.weights
        return {
            "training": self.steps * self.timing.step_seconds,
            "validation": self.n_valid * self.timing.validation_seconds,
            "saving": written / self.timing.bytes_per_second,
        }

    def to_dict(self) -> dict[str, Any]:
        width, batch, memory = self.config.model.hidden_width, self.config.train.batch_size, self.sizes.memory()
        seconds = self.epoch_seconds()
        return {
            "documents": self.n_documents,
            "trained_on": self.n_train,
            "held_out": self.n_valid,
            "labels": self.partition.n_labels,
            "labels_per_document": self.label_mass / self.n_documents,
            "cutoffs": list(self.partition.cutoffs),
            "cluster_sizes": list(self.partition.sizes),
            "cluster_widths": list(self.partition.widths(width)),
            "documents_touching": self.touching,
            "p": self.reached,
            "parameters": {
                "clusters_equation_6": self.partition.parameters(width),
                "flat_layer": width * self.partition.n_labels,
                "clusters": self.sizes.clusters,
                "model": self.sizes.parameters,
            },
            "cost_per_batch": {
                "equation_12": self.partition.flat_cost(width, batch) / self.partition.cost_ratio(self.reached),
                "equation_11": self.partition.cost(width, batch, self.reached),
                "flat_layer": self.partition.flat_cost(width, batch),
                "ratio_equation_14": self.partition.cost_ratio(self.reached),
            },
            "memory_bytes": asdict(memory) | {"peak": memory.peak, "available": self.available, "fits": self.fits},
            "token_cache_bytes_on_disk": self.token_cache,
            "activation_bytes_per_document": self.sizes.activations.each,
            "longest_tokens": self.sizes.activations.tokens,
            "largest_batch": self.sizes.largest_batch(self.available),
            "steps_per_epoch": self.steps,
            "documents_per_second": batch / self.timing.step_seconds if self.timing else None,
            "epochs": self.epochs,
            "seconds": self.total_seconds,
            "frozen_seconds": self.frozen_seconds,
            "epoch_seconds": seconds and seconds | {"total": sum(seconds.values())},
            "suggestions": [{"change": s.change, "peak_bytes": s.peak, "fits": s.fits} for s in self.suggestions],
            "config": self.config.to_dict(),
        }

    def render(self) -> str:
        return "\n".join([*self._labels(), "", *self._size(), "", *self._memory(), "", *self._time()])

    def _labels(self) -> list[str]:
        mean = self.label_mass / self.n_documents
        sizes, widths = self.partition.sizes, self.partition.widths(self.config.model.hidden_width)
        touched = [self.n_documents, *self.touching]
        reached = [1.0, *self.reached]
        lines = [
            f"{self.partition.n_labels:,} labels in {self.n_documents:,} training documents, {mean:.1f} a document",
            *cut_picture(self.counts, self.partition.cutoffs),
            f"clusters: {self.partition.reason}",
            f"{'':<10}{'labels':>11}{'width':>8}{'documents that touch it':>26}{'batches that do (p_i)':>24}",
        ]
        for i, size in enumerate(sizes):
            name = "head" if i == 0 else f"tail {i}"
            share = f"{touched[i] / self.n_documents:.1%}"
            lines.append(f"  {name:<8}{size:>11,}{widths[i]:>8,}{share:>26}{reached[i]:>24.4f}")
        return lines

    def _size(self) -> list[str]:
        figures = self.to_dict()
        parameters, cost = figures["parameters"], figures["cost_per_batch"]
        ratio = parameters["flat_layer"] / parameters["clusters_equation_6"]
        return [
            f"{'parameters of the clusters (Eq. 6)':<36}{parameters['clusters_equation_6']:>14,}, "
            f"{_beside(ratio)} a flat layer's {parameters['flat_layer']:,}",
            f"{'parameters of the whole model':<36}{parameters['model']:>14,}",
            f"{'multiplications of a batch (Eq. 12)':<36}{cost['equation_12']:>14,.0f}, "
            f"{_beside(cost['ratio_equation_14'])} a flat layer's {cost['flat_layer']:,.0f} (Eq. 14)",
        ]

    def _memory(self) -> list[str]:
        memory, documents = self.sizes.memory(), self.sizes.documents
        notes = {
            "process": "interpreter, libraries, label names",
            "optimizer": "AdamW's two moments" + (", none for the clusters (SGD)" if self.sizes.clusters_sgd else ""),
            "activations": f"{documents:,} documents of {self.sizes.activations.tokens:,} tokens at once",
        }
        rows = [f"  {name:<12}{in_bytes(n):>10}   {notes.get(name, '')}".rstrip() for name, n in asdict(memory).items()]
        verdict = f"{'fits' if self.fits else 'does not fit'} in {in_bytes(self.available)} ({self.available_is})"
        lines = [
            "memory",
            *rows,
            f"  {'peak':<12}{in_bytes(memory.peak):>10}   {verdict}",
            f"  {'on disk':<12}{in_bytes(self.token_cache):>10}   token cache, read through a memory map",
        ]
        largest = self.sizes.largest_batch(self.available)
        if largest:
            lines.append(
                f"  largest batch that fits: {largest:,} documents of {self.sizes.activations.tokens:,} tokens"
            )
        else:
            lines.append("  not even one document fits")
        if not self.fits:
            lines.append("  to make it fit, what changes the result least first:")
            lines += [
                f"    {s.change:<72}{in_bytes(s.peak):>10}{'' if s.fits else ', not enough alone'}"
                for s in self.suggestions
            ]
        return lines

    def _time(self) -> list[str]:
        seconds = self.epoch_seconds()
        if seconds is None or self.timing is None:
            return ["time: not measured, as the model does not fit on this machine"]
        rate = self.config.train.batch_size / self.timing.step_seconds
        threads = torch.get_num_threads()
        where = f"{threads} CPU thread{'s' if threads > 1 else ''}" if world().device.type == "cpu" else "the GPU"
        parts = " + ".join(f"{duration(value)} {name}" for name, value in seconds.items())
        epoch, total = sum(seconds.values()), self.total_seconds or 0.0
        is_cut = self.epochs < self.config.train.epochs
        cut = f" within train.max_documents = {self.config.train.max_documents:,}" if is_cut else ""
        passes = self.config.train.frozen_epochs
        before = [f"  train.frozen_epochs = {passes}: {duration(self.frozen_seconds)}"] if passes else []
        return [
            f"time, from {self.timing.steps} steps on {where}",
            f"  {rate:,.0f} documents a second, {self.steps:,} steps an epoch",
            *before,
            f"  an epoch: {duration(epoch)} ({parts})",
            f"  train.epochs = {self.epochs:.3g}{cut}: {duration(total)}",
        ]


def survey(source: Source, config: Config, screen: Screen) -> Survey:
    """Labels and a sample of documents, as `plan` needs them."""
    return survey_source(source, config.data, max(SAMPLE, POOL * config.train.batch_size), screen)


def plan(
    source: Source,
    config: Config,
    *,
    memory: float | None = None,
    screen: Screen | None = None,
    probe: bool = True,
    seen: Survey | None = None,
) -> Plan:
    """Plan a run on `source`. `memory` is what may be used, in bytes, if not what this machine has.

    `seen` is what `survey` found, where that is known.
    """
    screen = screen or Screen(quiet=True)
    seen = seen or survey(source, config, screen)
    seen = replace(seen, labels=seen.labels.seen)
    tokenizer = choose_tokenizer(source, config.data, config.model, seen.n_characters, screen)
    with tempfile.TemporaryDirectory(prefix="aplc-plan-") as folder:
        cache = DocumentCache.build(
            Path(folder) / "tokens", iter(seen.sample), tokenizer.encode, token_dtype(tokenizer), seen.labels
        )
        on_disk = sum(file.stat().st_size for file in (Path(folder) / "tokens").iterdir())
        partition = choose_partition(config, seen.labels, seen.n_documents)
        clusters = replace(config.clusters, cutoffs=partition.cutoffs, div_value=partition.div_value)
        cut = replace(config, clusters=clusters)
        process = resident_bytes()
        encoder = encoder_to_train(config, tokenizer)
        sizes = _sizes(cut, seen, encoder, tokenizer, cache, process)
        here, is_ = memory_at_hand()
        timing = None
        documents = min(sizes.documents, sizes.largest_batch(here))
        if probe and documents:
            with screen.bar("probing", unit="steps"):
                timing = _probe(cut, seen, encoder, tokenizer, cache, documents)
            sizes = sizes.observed(timing.resident)
    available = int(memory) if memory is not None else here
    n_train, n_valid = map(len, split_rows(source, seen.n_documents, config.data, config.train.seed))
    return Plan(
        config=config,
        partition=partition,
        counts=seen.labels.counts,
        n_documents=seen.n_documents,
        n_train=n_train,
        n_valid=n_valid,
        label_mass=len(seen.label_ids),
        reached=partition.reach_from_documents(seen.label_offsets, seen.label_ids, config.train.batch_size).tolist(),
        touching=partition.documents_touching(seen.label_offsets, seen.label_ids).tolist(),
        sizes=sizes,
        token_cache=round(on_disk / len(cache) * seen.n_documents),
        available=available,
        available_is="as given" if memory is not None else is_,
        timing=timing,
        suggestions=suggest(cut, sizes, available, seen.labels, seen.n_documents),
    )


def _sizes(
    config: Config, seen: Survey, encoder: Encoder, tokenizer: Tokenizer, cache: DocumentCache, process: int
) -> Sizes:
    with torch.device("meta"):  # shapes without memory: it need not fit to be counted
        model = _network(config, seen, encoder, tokenizer)
    train = config.train
    documents = math.ceil(train.batch_size / train.accumulate)
    longest = np.argsort(-cache.lengths, kind="stable")[: min(documents, len(cache))]
    batch = model.collator(*zip(*map(cache.document, longest), strict=True))
    workspace = 3 * FLOAT * min(model.clusters.chunk_size, len(seen.labels))  # a chunk's logits and two like them
    n_clusters = sum(parameter.numel() for parameter in model.clusters.parameters())
    return Sizes(
        process=process,
        encoder=sum(parameter.numel() for parameter in model.parameters()) - n_clusters,
        clusters=n_clusters,
        clusters_sgd=train.clusters_optimizer == "sgd",
        documents=documents,
        activations=measure_activations(
            encoder, batch, after=workspace, checkpointed=config.model.checkpoint_activations
        ),
    )


def _probe(
    config: Config, seen: Survey, encoder: Encoder, tokenizer: Tokenizer, cache: DocumentCache, documents: int
) -> Timing:
    """The run's own model, optimizer and step on the sample, at most this many documents at once."""
    train = replace(config.train, accumulate=math.ceil(config.train.batch_size / documents))
    config = replace(config, train=train)
    model = _network(config, seen, encoder, tokenizer)
    if config.clusters.bias:
        partition = choose_partition(config, seen.labels, seen.n_documents)
        touched = partition.documents_touching(seen.label_offsets, seen.label_ids)
        model.clusters.init_bias(seen.labels.counts, seen.n_documents, touched)
    model.to(world().device)
    run = TrainingRun(
        network=model,
        optimizers=Optimizers.for_tagging(model, train),
        steps=train,
        progress=Progress(),
        out=Path("never written"),
        screen=Screen(quiet=True),
        config=config,
        labels=seen.labels,
        n_documents=seen.n_documents,
        train=Batches(cache, np.arange(len(cache)), model.collator, train.batch_size, train.seed),
        valid=cache,
        valid_rows=np.arange(0),
    )
    return measure_time(run)


def _network(config: Config, seen: Survey, encoder: Encoder, tokenizer: Tokenizer) -> TaggingModel:
    cutoffs = config.clusters.cutoffs
    assert isinstance(cutoffs, tuple)
    return TaggingModel(encoder, tokenizer, config, n_labels=len(seen.labels), cutoffs=cutoffs)


def cut_picture(counts: NDArray[np.int64], cutoffs: tuple[int, ...]) -> list[str]:
    """The label histogram, most frequent first, with a line where each tail begins."""
    *rows, axis, ends = zipf_picture(counts)
    places = np.unique(np.linspace(0, len(counts) - 1, min(PICTURE_WIDTH, len(counts))).astype(int))
    edge = axis.index("└") + 1
    columns = [edge + int(np.searchsorted(places, cutoff)) for cutoff in cutoffs]
    for column in columns:
        rows = [_put(row, column, "┊") if row[column : column + 1] in ("", " ") else row for row in rows]
        axis = _put(axis, column, "┴")
    names = " " * edge + "head"
    for t, (column, cutoff) in enumerate(zip(columns, cutoffs, strict=True), start=1):
        names = f"{names:<{column}}" if len(names) < column else f"{names} "
        names += f"tail {t} from {cutoff + 1:,}"
    return [*rows, axis, ends, *([names] if cutoffs else [])]


def _put(line: str, column: int, mark: str) -> str:
    line = line.ljust(column)
    return line[:column] + mark + line[column + 1 :]


def _beside(ratio: float) -> str:
    return f"1/{ratio:.2f} of" if ratio >= 1 else f"{1 / ratio:.2f} times"
