"""A run as a tree of dataclasses, read from TOML and written as JSON beside the weights.

A preset is a TOML file in `presets/`; it names only what differs from the defaults below, which are the paper's.
`--set a.b=value` changes one field. Values are checked when the tree is built, before any work starts.
"""

import dataclasses
import difflib
import json
import tomllib
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from aplc.errors import AplcError

AUTO = "auto"
"""In a preset's place: the one that is best on this machine (`train/auto.py`)."""
PRESET_ALIASES = {"cpu": "words"}
"""Former names of presets."""


def check(section: str, name: str, value: object, ok: bool, bound: str) -> None:
    if not ok:
        raise AplcError(f"{section}.{name} = {value!r}: must be {bound}")


LONGEST = 1 << 20
"""Tokens of the longest document that a configuration may ask for."""


@dataclass(kw_only=True, frozen=True)
class TextsConfig:
    """What training and pretraining both ask of texts."""

    max_length: int = 512
    """Tokens a document may have, `<sep>` and `<cls>` included (the paper's L_seq)."""
    tokenizer: str = ""
    """A tokenizer.json or a folder with one; empty for the encoder's own, or for one trained on the corpus."""
    vocab_size: int = 16_000
    """Pieces of the tokenizer trained on the corpus."""
    validation: float = 0.05
    """Share of the training documents held out to choose the best epoch, where the corpus has no dev part."""
    validation_limit: int = 2_000
    """At most this many held-out documents, of a dev part too: more improve the estimate little and take time."""

    def __post_init__(self) -> None:
        possible, bounds = 3 <= self.max_length <= LONGEST, f"at least 3 (a piece, <sep>, <cls>), at most {LONGEST:,}"
        check("data", "max_length", self.max_length, possible, bounds)
        check("data", "vocab_size", self.vocab_size, self.vocab_size >= 16, "at least 16")
        check("data", "validation", self.validation, 0 <= self.validation < 1, "in [0, 1)")
        check("data", "validation_limit", self.validation_limit, self.validation_limit >= 1, "at least 1")


@dataclass(kw_only=True, frozen=True)
class DataConfig(TextsConfig):
    long_text: Literal["truncate", "memory", "windows"] = "truncate"
    """Longer texts: cut (the paper), read in segments with Transformer-XL memory, or in windows that are averaged."""
    min_count: int = 1
    """Labels with fewer training documents are left out of the label set."""
    vocabulary_labels: Literal["all", "seen"] = "all"
    """Where there is a vocabulary: all its labels, or those only that training documents have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data", "min_count", self.min_count, self.min_count >= 1, "at least 1")


@dataclass(kw_only=True, frozen=True)
class EncoderConfig:
    """An encoder, as training and pretraining both name it."""

    encoder: str = "xlnet-base-cased"
    """A hub name, a folder, or "new": an XLNet of the size below with random weights."""
    layers: int = 12
    """Blocks of a new encoder."""
    width: int = 768
    """Width of a new encoder."""
    heads: int = 12
    """Attention heads of a new encoder."""
    inner_width: int = 3072
    """Width of a new encoder's feed-forward layers."""
    dropout: float = 0.1
    """Dropout inside the encoder."""
    checkpoint_activations: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "inner_width"):
            check("model", name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        check("model", "heads", self.heads, self.width % self.heads == 0, f"a divisor of model.width = {self.width}")
        check("model", "dropout", self.dropout, 0 <= self.dropout < 1, "in [0, 1)")


@dataclass(kw_only=True, frozen=True)
class ModelConfig(EncoderConfig):
    kind: Literal["network", "words", "both", "exported"] = "network"
    """What is trained: the paper's network; a words model, which ignores the other settings of `model`, `clusters` and
    `train` but the seed; or both, blended. "exported" is what `aplc export` makes."""
    pooling: Literal["auto", "last", "first", "mean"] = "auto"
    """Which state stands for the text: XLNet's is the last (`<cls>`); "auto" knows the common families."""
    hidden_width: int = 768
    """Width d_h of the hidden layer between encoder and clusters."""
    hidden_dropout: float = 0.1
    """Dropout after the hidden layer's tanh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder == "words":
            raise AplcError("model.encoder = 'words' is a kind of model now; use --preset words or model.kind=words")
        check("model", "hidden_width", self.hidden_width, self.hidden_width >= 1, "at least 1")
        check("model", "hidden_dropout", self.hidden_dropout, 0 <= self.hidden_dropout < 1, "in [0, 1)")


@dataclass(kw_only=True, frozen=True)
class ClustersConfig:
    proportions: tuple[float, ...] = (0.5, 0.5)
    """Share of the labels in the head and in each tail (the paper's P_num)."""
    cutoffs: tuple[int, ...] | Literal["proportions", "auto"] = "proportions"
    """First label rank of each tail; [] puts all labels into the head. "auto": the fewest clusters that keep within
    max_parameters by the paper's cost model."""
    max_parameters: int = 0
    """Weights the clusters may have, for "auto"; 0 for half of what a flat layer would need."""
    div_value: float = 2.0
    """The paper's q: tail t is d_h / q^t wide. With cutoffs "auto", 2 or 4 is chosen instead."""
    objective: Literal["released", "paper"] = "released"
    """Equation 5 as printed ("paper"), or as in the code that made the paper's tables ("released")."""
    tail: Literal["norm-relu", "linear"] = "norm-relu"
    """Inside a tail's projection: LayerNorm and ReLU (released code), or nothing (paper)."""
    bias: bool = False
    """Biases in the clusters, starting at each label's log-odds in the training data. The paper has none."""
    min_tail_width: int = 1
    """No tail is narrower than this."""
    tail_dropout: float = 0.0
    """Dropout on a tail's projected states."""

    def __post_init__(self) -> None:
        total = sum(self.proportions)
        ok = len(self.proportions) >= 1 and min(self.proportions) > 0 and abs(total - 1) < 1e-6
        check("clusters", "proportions", self.proportions, ok, "positive numbers that add up to 1")
        if isinstance(self.cutoffs, tuple):
            rising = all(a < b for a, b in zip((0, *self.cutoffs), self.cutoffs, strict=False))
            check("clusters", "cutoffs", self.cutoffs, rising, "rising label ranks of at least 1")
        check("clusters", "max_parameters", self.max_parameters, self.max_parameters >= 0, "at least 0")
        check("clusters", "div_value", self.div_value, self.div_value >= 1, "at least 1")
        check("clusters", "min_tail_width", self.min_tail_width, self.min_tail_width >= 1, "at least 1")
        check("clusters", "tail_dropout", self.tail_dropout, 0 <= self.tail_dropout < 1, "in [0, 1)")


@dataclass(kw_only=True, frozen=True)
class StepsConfig:
    """Steps, as training and pretraining both take them."""

    batch_size: int = 12
    """Documents a step (the paper's N_b), over all processes."""
    accumulate: int = 1
    """A batch is processed in this many parts: the same step in less memory."""
    warmup_steps: int = 0
    """Equation 15's t_w; at most a fifth of all steps."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    adam_epsilon: float = 1e-8
    """AdamW's epsilon."""
    clip_norm: float = 1.0
    """Gradients are scaled down to at most this norm."""
    checkpoint_steps: int = 1_000
    """A checkpoint every this many steps, and at the end of each epoch."""
    seed: int = 0
    """Weights, order and dropout follow from it."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "checkpoint_steps"):
            check("train", name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("warmup_steps", "weight_decay"):
            check("train", name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        check("train", "seed", self.seed, 0 <= self.seed < 1 << 32, "at least 0 and below 2^32")
        for name in ("adam_epsilon", "clip_norm"):
            check("train", name, getattr(self, name), getattr(self, name) > 0, "above 0")
        fits = self.accumulate <= self.batch_size
        check("train", "accumulate", self.accumulate, fits, f"at most train.batch_size = {self.batch_size}")


@dataclass(kw_only=True, frozen=True)
class TrainConfig(StepsConfig):
    epochs: int = 8
    """Passes over the training documents (the paper's N_e)."""
    max_documents: int = 0
    """Documents that the network reads in all its epochs together, so that a large corpus does not take days; 0 for no
    limit. The last epoch may be a part of one."""
    frozen_epochs: int = 0
    """Passes before these over the encoder's states alone, which are computed once: they train the hidden layer and the
    clusters while a pretrained encoder stays as it is. It takes a fraction of an epoch's time."""
    precision: Literal["auto", "float32"] = "auto"
    """"auto": products in bfloat16 where the processor is made for it: on a GPU, and on a CPU for encoders of
    `transformers`."""
    clusters_optimizer: Literal["adamw", "sgd"] = "adamw"
    """For the clusters: AdamW as the paper, or plain SGD, which keeps no moments: a third of the memory."""
    lr_encoder: float = 5e-5
    """Learning rate of the encoder (eta_x)."""
    lr_hidden: float = 1e-4
    """Learning rate of the hidden layer (eta_h)."""
    lr_clusters: float = 2e-3
    """Learning rate of the clusters (eta_a)."""
    shard_encoder: bool = False
    """With several processes: spread the encoder's weights over them (FSDP), for encoders that outgrow one device."""
    shard_labels: bool = False
    """With several processes: spread the labels over them, for label sets that outgrow one device."""
    patience: int = 3
    """Stop after this many evaluations on the held-out documents without a better score; 0 never stops early."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("train", "epochs", self.epochs, self.epochs >= 1, "at least 1")
        for name in ("max_documents", "frozen_epochs", "lr_encoder", "lr_hidden", "lr_clusters", "patience"):
            check("train", name, getattr(self, name), getattr(self, name) >= 0, "at least 0")


@dataclass(kw_only=True, frozen=True)
class WordsConfig:
    """For `model.kind = "words"`, and the words part of "both"."""

    limit: int = 8_192
    """Largest system that is solved directly: all documents, or else so many of the weightiest words and pairs. Memory
    grows with its square."""
    ridge: float = 0.0
    """Penalty on the weights; higher suits short texts and frequent labels, lower long texts and rare labels. 0: chosen
    by leave-one-out scores of a sample of the documents."""
    lead: Literal["auto", "on", "off"] = "auto"
    """Whether a text's first 32 words, its title and first sentence, count three times; "auto": chosen likewise."""
    prune: float = 0.02
    """Smaller weights are left out of the model."""
    runs: Literal["auto", "on", "off"] = "auto"
    """Also learn from runs of four characters inside words; "auto": where texts are short, titles for example."""
    names: Literal["auto", "off"] = "auto"
    """Whether texts that have the words of a label's name count for it; "auto": as much as the documents show."""

    def __post_init__(self) -> None:
        check("words", "limit", self.limit, self.limit >= 1, "at least 1")
        check("words", "ridge", self.ridge, 0 <= self.ridge <= 1_000, "between 0 and 1,000")
        check("words", "prune", self.prune, self.prune >= 0, "at least 0")


@dataclass(kw_only=True, frozen=True)
class Tree:
    """A configuration's fields are its sections; this is what all configurations can do."""

    presets: ClassVar[str] = "aplc.presets"
    """The package that holds the presets of this kind."""

    @classmethod
    def from_dict(cls, tree: dict[str, Any], source: str = "configuration") -> Self:
        """Build and check the tree; an unknown name is an error that lists the known ones."""
        sections = {f.name: f.default_factory for f in fields(cls)}
        built = {}
        for section, values in tree.items():
            if section not in sections or not isinstance(values, dict):
                raise AplcError(f"{source}: no section {section!r}; sections are {', '.join(sections)}")
            built[section] = _build(sections[section], section, values, source)
        return cls(**built)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        try:
            return cls.from_dict(tomllib.loads(path.read_text("utf-8")), source=str(path))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise AplcError(f"{path}: {error}") from None

    @classmethod
    def from_preset(cls, name: str) -> Self:
        """A preset by name, or any TOML file by path."""
        if name.endswith(".toml"):
            path = Path(name)
            if not path.is_file():
                raise AplcError(f"{path}: no such preset file")
            return cls.from_toml(path)
        name, names = PRESET_ALIASES.get(name, name), preset_names(cls.presets)
        if name not in names:
            names = [AUTO, *names] if cls.presets == Tree.presets else names
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}? There are" if near else "there are"
            raise AplcError(f"no preset {name!r}; {hint} {', '.join(names)}, or give a .toml file")
        with resources.as_file(resources.files(cls.presets) / f"{name}.toml") as path:
            return cls.from_toml(path)

    def with_settings(self, settings: list[str]) -> Self:
        """Apply `a.b=value` settings; the value is TOML, and bare words are strings."""
        tree = self.to_dict()
        for setting in settings:
            key, equals, text = setting.partition("=")
            section, dot, name = key.strip().partition(".")
            if not equals or not dot:
                raise AplcError(f"--set {setting}: write it as section.name=value, e.g. train.epochs=3")
            if section not in tree or name not in tree[section]:
                known = [f"{s}.{n}" for s, values in tree.items() for n in values]
                near = difflib.get_close_matches(key.strip(), known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
                raise AplcError(f"--set {setting}: no such setting{hint}")
            tree[section][name] = _parse(text.strip())
        return type(self).from_dict(tree, source="--set")

    def nearest_preset(self) -> tuple[str, list[str]]:
        """The preset that needs the fewest settings to become this, and these."""
        found = []
        for preset in preset_names(self.presets):
            theirs = self.from_preset(preset).to_dict()
            settings = [
                f"{section}.{name}={json.dumps(value)}"  # which is TOML, for what settings hold
                for section, values in self.to_dict().items()
                for name, value in values.items()
                if value != theirs[section][name]
            ]
            found.append((preset, settings))
        return min(found, key=lambda pair: len(pair[1]))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return dataclasses.asdict(self)


@dataclass(kw_only=True, frozen=True)
class Config(Tree):
    """A training run; `pretrain/config.py` has a pretraining run's."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    clusters: ClustersConfig = field(default_factory=ClustersConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    words: WordsConfig = field(default_factory=WordsConfig)


def preset_names(package: str = Tree.presets) -> list[str]:
    """Names of the presets that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in resources.files(package).iterdir() if p.name.endswith(".toml"))


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return tomllib.loads(f"value = [{text}]")["value"]  # 100,200 for [100, 200]
    except tomllib.TOMLDecodeError:
        return text


def _build(cls: Any, section: str, values: dict[str, Any], source: str) -> Any:
    hints = get_type_hints(cls)
    for name in values:
        if name not in hints:
            raise AplcError(f"{source}: no setting {section}.{name}; {section} has {', '.join(hints)}")
    return cls(**{name: _convert(f"{source}: {section}.{name}", value, hints[name]) for name, value in values.items()})


def _convert(where: str, value: Any, hint: Any) -> Any:
    """`value` as type `hint`, so that a mistyped setting is found here and not hours later."""
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise AplcError(f"{where} = {value!r}: must be one of {', '.join(map(repr, get_args(hint)))}")
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(where, v, item) for v in values)
    if get_args(hint):  # a union: the literal first, then the rest
        literals = [h for h in get_args(hint) if get_origin(h) is Literal]
        if isinstance(value, str):
            return _convert(where, value, literals[0])
        return _convert(where, value, next(h for h in get_args(hint) if h not in literals))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise AplcError(f"{where} = {value!r}: must be of type {hint.__name__}")
    return value
