"""A model folder: everything needed to tag texts, in files that can't run code.

config.json (settings, encoder, cut-offs, changes of the label set), model.safetensors, tokenizer.json, labels.txt,
label_counts.npy, README.md, calibration.json where documents were held out to learn it from, and evaluation.json
where it was evaluated.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file

from aplc import __version__
from aplc.calibration import FILE as CALIBRATION
from aplc.calibration import Calibration, Ranking
from aplc.card import model_card, read_evaluation, sound
from aplc.config import WORDS, Config
from aplc.data.batches import Collator
from aplc.data.labels import LabelSet
from aplc.data.tokenizer import Tokenizer
from aplc.data.words import WordHasher
from aplc.distributed import world
from aplc.errors import ModelError
from aplc.files import atomic_folder, atomic_path, atomic_write, is_main_process, new_folder, write_json
from aplc.nn.encoder import Encoder
from aplc.nn.model import TaggingModel
from aplc.nn.words import WordModel
from aplc.safety import build_checked, check_depth, check_files, load_weights, read_header, read_json
from aplc.sharding import gather_state
from aplc.ship import onnx

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
EVALUATION = "evaluation.json"
"""Where a model folder keeps its evaluation, if it has one."""


@dataclass(frozen=True)
class ModelFolder:
    """A trained model with its tokenizer and label set."""

    config: Config
    model: TaggingModel
    tokenizer: Tokenizer
    labels: LabelSet
    n_documents: int
    """Training documents the labels were counted in."""
    calibration: Calibration | None = None
    """What the held-out documents taught about probabilities."""
    held_out: dict[str, Any] | None = None
    """Number of held-out documents, and metrics and bands on them, for the card."""
    evaluation: dict[str, Any] | None = None
    """What `aplc evaluate --json` left in the folder, for the card."""

    @cached_property
    def ranking(self) -> Ranking:
        """How candidates become the best labels."""
        merged = self.labels.stands_for if self.labels.has_merged else None
        return Ranking(tuple(self.model.clusters.bounds[:-1]), self.calibration, merged)

    @property
    def allowed(self) -> NDArray[np.bool_] | None:
        """Which ids may be predicted; None if all may."""
        return None if self.labels.active.all() else self.labels.active

    def save(self, folder: Path) -> None:
        self.save_frame(folder)
        self.save_weights(folder)

    def save_frame(self, folder: Path) -> None:
        """Everything but the weights."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder)
        self.labels.save(folder)
        if self.calibration:
            self.calibration.save(folder)
        elif is_main_process():
            (folder / CALIBRATION).unlink(missing_ok=True)
        if self.evaluation:
            write_json(folder / EVALUATION, self.evaluation)
        elif is_main_process():
            (folder / EVALUATION).unlink(missing_ok=True)
        self.save_card(folder)
        write_json(
            folder / CONFIG,
            {
                "format": FORMAT,
                "aplc_version": __version__,
                "n_labels": len(self.labels),
                "n_documents": self.n_documents,
                "cutoffs": list(self.config.clusters.cutoffs),
                "added": self.model.clusters.options["added"],
                "label_set": self.labels.state(),
                "held_out": self.held_out,
                "encoder": self.model.encoder.save_config(),
                "config": self.config.to_dict(),
            },
        )

    def save_card(self, folder: Path) -> None:
        text = model_card(
            self.config,
            self.labels,
            self.n_documents,
            calibration=self.calibration,
            held_out=self.held_out,
            evaluation=self.evaluation,
        )
        with atomic_write(folder / CARD) as out:
            out.write(text.encode("utf-8"))

    def save_weights(self, folder: Path) -> None:
        state = gather_state(self.model)
        if not is_main_process():
            return
        try:
            with atomic_path(folder / WEIGHTS) as aside:
                save_file(state, aside)
        except SafetensorError as error:
            raise ModelError(f"{folder / WEIGHTS}: can't be written ({error}); the one before it is intact") from None

    @classmethod
    def load(cls, folder: Path | str) -> "ModelFolder":
        """Read a folder; the model is in evaluation mode, on this process' device."""
        folder = Path(folder)
        check_files(folder)
        settings = _read_settings(folder)
        config = Config.from_dict(settings["config"], source=str(folder / CONFIG))
        n_labels = settings["n_labels"]
        exported = onnx.is_exported(folder)
        # An exported model and one of words have the methods that tagging needs, and refuse what they can't do.
        model = (
            cast(TaggingModel, onnx.load_exported(folder, settings)) if exported else _build(folder, settings, config)
        )
        labels = LabelSet.load(folder, n_labels, settings["label_set"])
        tokenizer, calibration = Tokenizer.load(folder), Calibration.load(folder)
        body = model.encoder.body.config if isinstance(model, TaggingModel) else model.encoder
        rows = int(getattr(body, "vocab_size", tokenizer.vocab_size))
        if tokenizer.vocab_size > rows:
            raise ModelError(f"{folder}: the tokenizer has {tokenizer.vocab_size:,} pieces, the encoder {rows:,}")
        if not exported:
            load_weights(model, folder / WEIGHTS)
        if isinstance(model, WordModel):
            model.check()  # and left on the CPU: there its sums are always the same
        else:
            model = model.to(world().device)
        held_out, evaluation = sound(settings.get("held_out")), read_evaluation(folder / EVALUATION)
        n_documents = settings["n_documents"]
        return cls(config, model.eval(), tokenizer, labels, n_documents, calibration, held_out, evaluation)

    @cached_property
    def collator(self) -> Collator:
        encoder = self.model.encoder
        hasher = WordHasher.of(self.tokenizer) if isinstance(self.model, WordModel) else None
        return Collator(self.tokenizer.template, encoder.max_tokens, pad_left=encoder.pad_left, hash_words=hasher)


def _build(folder: Path, settings: dict[str, Any], config: Config) -> TaggingModel:
    """The network without its weights, once it is known to fit them."""
    header = read_header(folder / WEIGHTS)
    check_depth(settings["encoder"], header, folder / CONFIG)
    check_depth({name: settings[name] for name in ("cutoffs", "added")}, header, folder / CONFIG)

    def build() -> TaggingModel | WordModel:
        if settings["encoder"].get("family") == WORDS:
            return WordModel.from_config(settings["encoder"], settings["n_labels"])
        encoder = Encoder.from_config(settings["encoder"])
        cutoffs, added = tuple(settings["cutoffs"]), tuple(settings["added"])
        return TaggingModel(encoder, config, n_labels=settings["n_labels"], cutoffs=cutoffs, added=added)

    return cast(TaggingModel, build_checked(build, header, folder))


def read_labels(folder: Path) -> LabelSet:
    """A model folder's label set alone."""
    check_files(folder)
    settings = _read_settings(folder)
    return LabelSet.load(folder, settings["n_labels"], settings["label_set"])


def replace_folder(path: Path, before: ModelFolder, after: ModelFolder, out: Path | None = None) -> None:
    """Put a changed model in the place of the one it was made from, at once; or in a new folder `out`."""
    if out is not None:
        if out.exists():
            raise ModelError(f"{out}: is there already; choose another --out")
        with new_folder(out) as aside:
            after.save(aside)
        return
    with atomic_folder(path) as aside:
        after.save_frame(aside)
        if after.model is not before.model:
            after.save_weights(aside)
        if read_labels(path).version != before.labels.version:
            raise ModelError(f"{path}: its labels were changed by somebody else meanwhile; try again")


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise ModelError(f"{folder}: not a model folder (no {CONFIG}); train one with aplc train ... --out {folder}")
    settings = {"added": [], "label_set": {}} | read_json(path)
    if settings.get("format") != FORMAT:
        raise ModelError(f"{path}: format {settings.get('format')!r}, this version of aplc reads format {FORMAT}")
    kinds = {"config": dict, "encoder": dict, "label_set": dict, "cutoffs": list, "added": list}
    for name, kind in (kinds | {"n_labels": int, "n_documents": int}).items():
        value = settings.get(name)
        if type(value) is not kind or (kind is int and value < 1):
            raise ModelError(f"{path}: {name} = {str(value)[:40]}: must be a JSON {_JSON_KINDS[kind]}")
    return settings


_JSON_KINDS = {dict: "object", list: "list", int: "integer of at least 1"}
