"""A run's memory by part, and what to change where it is not enough.

`Sizes` holds what memory follows from; a changed copy of it answers "what if".
"""

import math
from dataclasses import dataclass, replace

from aplc.config import Config
from aplc.data.labels import LabelSet
from aplc.errors import AplcError
from aplc.nn.distributed import world
from aplc.plan.probe import Activations
from aplc.train.network import choose_partition

HEADROOM = 0.9
"""Share of the memory that a plan may fill."""
FLOAT = 4


def fits(peak: float, available: float) -> bool:
    return peak <= HEADROOM * available


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of training, by part."""

    process: int
    """Interpreter, libraries, label names: what there is before the model."""
    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def peak(self) -> int:
        return self.process + self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class Sizes:
    """What a run's memory follows from."""

    process: int
    encoder: int
    """Parameters of the encoder and the hidden layer."""
    clusters: int
    """Parameters of the clusters, all of them."""
    clusters_sgd: bool
    documents: int
    """Worked on at once: the batch over `accumulate`."""
    activations: Activations

    @property
    def parameters(self) -> int:
        return self.encoder + self.clusters

    def memory(self) -> Memory:
        moments = 2 * (self.encoder + (0 if self.clusters_sgd else self.clusters))
        on_gpu = world().device.type != "cpu"
        return Memory(
            process=0 if on_gpu else self.process,
            weights=FLOAT * self.parameters,
            gradients=FLOAT * self.parameters,
            optimizer=FLOAT * moments,
            activations=self.activations.of(self.documents),
        )

    def observed(self, resident: int) -> "Sizes":
        """Allowing for what a process of this plan was seen to hold: buffers of libraries, gaps in the heap."""
        more = resident - self.memory().peak
        if world().device.type != "cpu" or more <= 0:
            return self
        return replace(self, activations=replace(self.activations, fixed=self.activations.fixed + more))

    def largest_batch(self, available: float) -> int:
        """Documents that fit at once; 0 if not even one does."""
        room = HEADROOM * available - replace(self, documents=0).memory().peak
        return max(0, int(room / self.activations.each))


@dataclass(frozen=True)
class Suggestion:
    change: str
    """Options to add to the command."""
    peak: int
    limit: float

    @property
    def fits(self) -> bool:
        return self.peak <= self.limit


def suggest(config: Config, sizes: Sizes, available: float, labels: LabelSet, n_documents: int) -> list[Suggestion]:
    """Settings that lower the peak: first those with which the plan fits, and in each group first what changes the
    result least. None where the plan fits already."""
    limit = HEADROOM * available
    if sizes.memory().peak <= limit:
        return []
    found: list[tuple[str, Sizes]] = []
    batch = config.train.batch_size
    parts = math.ceil(batch / max(1, sizes.largest_batch(available)))
    if parts > config.train.accumulate:
        found.append((f"train.accumulate={parts}", replace(sizes, documents=math.ceil(batch / parts))))
    if not config.model.checkpoint_activations:
        less = replace(sizes, activations=sizes.activations.checkpointed())
        found.append(("model.checkpoint_activations=true", less))
    if not sizes.clusters_sgd:
        found.append(("train.clusters_optimizer=sgd", replace(sizes, clusters_sgd=True)))
    budget = (limit - replace(sizes, clusters=0).memory().peak) / (FLOAT * (2 if sizes.clusters_sgd else 4))
    auto = replace(config, clusters=replace(config.clusters, cutoffs="auto", max_parameters=max(0, int(budget))))
    if 0 < budget < sizes.clusters and (size := _clusters_size(auto, labels, n_documents)):
        change = f"clusters.cutoffs=auto --set clusters.max_parameters={int(budget)}"
        found.append((change, replace(sizes, clusters=size)))
    for width in (config.model.hidden_width // 2, config.model.hidden_width // 4):
        narrow = replace(config, model=replace(config.model, hidden_width=max(1, width)))
        if size := _clusters_size(narrow, labels, n_documents):
            found.append((f"model.hidden_width={width}", replace(sizes, clusters=size)))
            if found[-1][1].memory().peak <= limit:
                break
    if config.data.long_text == "truncate":
        half = replace(sizes.activations, tokens=sizes.activations.tokens // 2, each=sizes.activations.each / 2)
        found.append((f"data.max_length={half.tokens}", replace(sizes, activations=half)))
    # On a CPU processes share the memory, so that only another machine helps.
    several = "--nnodes 2" if world().device.type == "cpu" else "--nproc-per-node 2"
    sharded = replace(sizes, clusters=sizes.clusters // 2, documents=math.ceil(sizes.documents / 2))
    found.append((f"train.shard_labels=true, under torchrun {several}", sharded))
    suggestions = [Suggestion(f"--set {change}", changed.memory().peak, limit) for change, changed in found]
    helpful = [suggestion for suggestion in suggestions if suggestion.peak < sizes.memory().peak]
    return sorted(helpful, key=lambda suggestion: not suggestion.fits)


def _clusters_size(config: Config, labels: LabelSet, n_documents: int) -> int:
    """Parameters of the clusters that `config` asks for; 0 where there are none such."""
    try:
        partition = choose_partition(config, labels, n_documents)
    except AplcError:
        return 0
    return partition.parameters(config.model.hidden_width) + config.clusters.bias * partition.n_labels
