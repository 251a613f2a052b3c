"""What every kind of model can do, and the table of kinds.

The rest of the package (predict, evaluate, calibrate, explain, serve, store, plan, the estimator) knows `LabelModel`
and this table, and no kind by name. A new kind is a class with these methods and one more entry below.

Entries name functions by their place ("aplc.train.words:fit") and import them when they are called. So the table can
stand below the rooms that train and plan, and a words model never waits for what only networks need.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from aplc import native
from aplc.config import Config
from aplc.console import Screen
from aplc.errors import ModelError

Ability = Literal["learn", "add_labels", "export", "clusters"]
"""learn: go on training with more documents. add_labels: take labels it was not trained with. export: to ONNX.
clusters: has label clusters that can be cut differently."""

ENCODER_GRAPH, CLUSTERS_GRAPH = "encoder.onnx", "clusters.onnx"
"""Files of an exported model."""
WORDS_FILE, BLEND_FILE = "words.safetensors", "blend.safetensors"
"""Files of a model of two parts; its network has model.safetensors."""

Ids = NDArray[np.int64]
Probs = NDArray[np.float32]
PartTopK = Callable[[Any, int, NDArray[np.bool_] | None], tuple[Ids, Probs]]
"""`LabelModel.topk` of a part of a model, from the whole model's states."""


class LabelModel(Protocol):
    """Texts in, the most probable labels out.

    A batch goes through three steps, so that each can be done where it costs least: `prepare` on a thread ahead of its
    use, `read` once a batch, `topk` as often as it takes to be sure of the best labels.
    """

    @property
    def kind(self) -> str:
        """Its name in `KINDS`."""

    @property
    def n_labels(self) -> int: ...

    @property
    def bounds(self) -> Sequence[int]:
        """Labels bounds[i] to bounds[i + 1] form a cluster: what calibration and reports group by."""

    @property
    def n_added(self) -> int:
        """How many of the last clusters hold labels that training documents did not have."""

    @property
    def batch_size(self) -> int:
        """Texts to hand over at a time."""

    @property
    def parts(self) -> Mapping[str, PartTopK]:
        """How the parts that this model is made of rank labels, each alone, by name; most models have none."""

    def prepare(self, texts: Sequence[str]) -> Any:
        """The texts as this model wants them. Safe to call on another thread."""

    def read(self, batch: Any) -> Any:
        """All that needs to be computed once for a prepared batch, whichever labels are asked for."""

    def topk(self, states: Any, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Ids, Probs]:
        """(ids, probabilities) of the k best labels of each text, best first, exact; ties go to the lower id.

        `allowed`, (n_labels,), leaves labels out. Where fewer than k are left a row ends with ids of -1.
        """

    def probability_of(self, states: Any, label: int) -> NDArray[np.floating]:
        """One label's probability in each text, in the type it was computed in."""

    def characters_read(self, text: str) -> int:
        """How many characters of `text` the model takes notice of."""

    def unknown_words(self, texts: Sequence[str]) -> NDArray[np.floating] | None:
        """The share of each text's words that the model has no weights for; None for models that know no words."""

    def settings(self) -> dict[str, Any]:
        """What config.json keeps, so that the kind's `load` can build the model again."""

    def save_parts(self, folder: Path) -> None:
        """Write its small files, such as the tokenizer's."""

    def save_weights(self, folder: Path) -> None:
        """Write its weights; under torchrun every process calls this."""


@dataclass(frozen=True)
class Deferred:
    """A function named by its place, "module:name", and imported when it is called."""

    place: str

    def resolve(self) -> Any:
        module, name = self.place.split(":")
        return getattr(import_module(module), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.resolve()(*args, **options)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a kind of model is trained."""

    fit: Deferred
    """(TrainingData, configuration, RunFolder, screen) leaves the best model there."""
    plan: Deferred
    """(Source, configuration, memory, screen) -> what a run will cost."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One line of the table."""

    load: Deferred
    """(folder, what config.json holds, configuration) -> LabelModel, checked."""
    what: str
    """A sentence for the model card."""
    sections: tuple[str, ...]
    """Sections of the configuration that have an effect."""
    training: Training | None
    """None: not made by training."""
    learn: Deferred | None = None
    """(model, configuration, texts, label ids of each) -> the model after one more pass."""
    add_labels: Deferred | None = None
    """(model, configuration, `Examples`, advance) -> the larger model, and how probable a new label of few examples is
    in one that was left out, where that is asked."""
    export: Deferred | None = None
    """(model, folder, int8) writes the exported model's files and gives their size."""
    reads: Literal["all", "tokens", "all and tokens"]
    """How much of a long text is read: all of it, as many tokens as `data.max_length` and `data.long_text` say, or all
    by one part and so many by the other."""
    on_device: bool = False
    """Whether it, or a part of it, computes on the device that `nn/device.py` chooses; else on the CPU."""
    cannot: Mapping[Ability, str] = field(default_factory=dict)
    """What it can't do: a sentence each, with what to do instead."""

    @property
    def abilities(self) -> frozenset[Ability]:
        return frozenset(get_args(Ability)) - self.cannot.keys()


_NETWORK = "APLC-XLNet (Ye et al., ICML 2020): an encoder, a hidden layer, and label clusters"
_EXPORTED = "an exported model can't learn; train the model it was exported from, and export that again"

KINDS: dict[str, Kind] = {
    "network": Kind(
        load=Deferred("aplc.models.network:load"),
        what=_NETWORK,
        sections=("data", "model", "clusters", "train"),
        training=Training(fit=Deferred("aplc.train.network:fit"), plan=Deferred("aplc.plan.network:plan")),
        learn=Deferred("aplc.train.update:learn"),
        add_labels=Deferred("aplc.train.new_labels:add_labels"),
        export=Deferred("aplc.models.graphs:export"),
        reads="tokens",
        on_device=True,
    ),
    "words": Kind(
        load=Deferred("aplc.words.model:load"),
        what="A words model: ridge regression on TF-IDF of words and word pairs, scores calibrated label by label",
        sections=("data", "words"),
        training=Training(fit=Deferred("aplc.train.words:fit"), plan=Deferred("aplc.plan.words:plan")),
        learn=Deferred("aplc.words.later:learn"),
        add_labels=Deferred("aplc.words.later:add_labels"),
        reads="all",
        cannot={
            "export": "a words model can't be exported to ONNX; it needs no GPU and no runtime, so copy its folder",
            "clusters": "a words model has no clusters to compare; choose a preset with a network",
        },
    ),
    "both": Kind(
        load=Deferred("aplc.models.both:load"),
        what="Words and meaning: a words model (ridge regression on TF-IDF of words and word pairs) and a network "
        "(an encoder, a hidden layer, label clusters: APLC-XLNet, Ye et al., ICML 2020), blended by how frequent a "
        "label is",
        sections=("data", "model", "clusters", "train", "words"),
        training=Training(fit=Deferred("aplc.train.both:fit"), plan=Deferred("aplc.plan.both:plan")),
        learn=Deferred("aplc.train.both:learn"),
        add_labels=Deferred("aplc.train.both:add_labels"),
        reads="all and tokens",
        on_device=True,
        cannot={
            "export": "a model with a words part can't be exported to ONNX; export a network alone "
            "(--set model.kind=network), or copy the folder",
            "clusters": "ablations compare the clusters of a network alone; add --set model.kind=network",
        },
    ),
    "exported": Kind(
        load=Deferred("aplc.models.onnx:load"),
        what=f"{_NETWORK}; exported to ONNX",
        sections=("data", "model", "clusters", "train"),
        training=None,
        reads="tokens",
        cannot={
            "learn": _EXPORTED,
            "add_labels": _EXPORTED,
            "export": "the model is exported already; export the one it was made from",
            "clusters": "an exported model's clusters can't be cut again; choose a preset with a network",
        },
    ),
}


def training_of(config: Config) -> Training:
    """How the kind is trained that a configuration asks for."""
    training = KINDS[config.model.kind].training
    if training is None:
        made = ", ".join(name for name, kind in KINDS.items() if kind.training)
        raise ModelError(f"model.kind = {config.model.kind!r} is not made by training; choose one of {made}")
    return training


def exported(config: Config) -> Config:
    """The configuration of an exported copy of a model."""
    return replace(config, model=replace(config.model, kind="exported"))


def require(kind: str, ability: Ability, where: str = "") -> None:
    """Refuse what a kind of model can't do, in one sentence that says what to do instead."""
    sentence = KINDS[kind].cannot.get(ability)
    if sentence:
        raise ModelError(f"{where}: {sentence}" if where else sentence)


def function_for(kind: str, ability: Literal["learn", "add_labels", "export"], where: str = "") -> Deferred:
    """What a kind of model does it with; refused as by `require`."""
    require(kind, ability, where)
    function: Deferred | None = getattr(KINDS[kind], ability)
    assert function is not None, f"{kind}: {ability}"
    return function


SLOWER = "SciPy and NumPy find a text's labels by its words, which takes longer"


def say_how(kind: str, screen: Screen) -> None:
    """Say where a model's network computes, and why; and where scores of words would be found faster."""
    if line := device_line(kind):
        screen.say(line)
    if "words" in KINDS[kind].sections:
        native.tell(screen, SLOWER)


def device_line(kind: str) -> str:
    """Where a model's network computes, and why; empty for a kind without one."""
    if not KINDS[kind].on_device:
        return ""
    from aplc.nn.distributed import world

    return f"device: {world().choice}"


def kind_of_folder(config: dict[str, Any], folder: Path) -> str:
    """The kind of model that a folder holds; those of format 1 don't name it."""
    model = config.get("model")
    named = model.get("kind") if isinstance(model, dict) else None
    if named is not None:
        return str(named)
    if isinstance(model, dict) and model.get("encoder") == "words":
        raise ModelError(
            f"{folder}: a words model of an earlier version of aplc, which read words differently; train it again: "
            "aplc train CORPUS --preset words --out NEW"
        )
    return "exported" if (folder / ENCODER_GRAPH).is_file() else "network"
