"""A model folder: everything needed to tag texts, in files that can't run code.

config.json (settings, encoder, cut-offs), model.safetensors, tokenizer.json, labels.txt, label_counts.npy, README.md.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from aplc import __version__
from aplc.card import model_card
from aplc.config import Config
from aplc.data.batches import Collator
from aplc.data.labels import LabelSet
from aplc.data.tokenizer import Tokenizer
from aplc.data.words import WordHasher
from aplc.distributed import world
from aplc.errors import AplcError, ModelError
from aplc.files import atomic_path, atomic_write, is_main_process, write_json
from aplc.nn.encoder import Encoder
from aplc.nn.model import TaggingModel
from aplc.sharding import gather_state

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


@dataclass(frozen=True)
class ModelFolder:
    """A trained model with its tokenizer and label set."""

    config: Config
    model: TaggingModel
    tokenizer: Tokenizer
    labels: LabelSet
    n_documents: int
    """Training documents the labels were counted in."""

    def save(self, folder: Path) -> None:
        self.save_frame(folder)
        self.save_weights(folder)

    def save_frame(self, folder: Path) -> None:
        """Everything but the weights."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder)
        self.labels.save(folder)
        with atomic_write(folder / CARD) as out:
            out.write(model_card(self.config, self.labels, self.n_documents).encode("utf-8"))
        write_json(
            folder / CONFIG,
            {
                "format": FORMAT,
                "aplc_version": __version__,
                "n_labels": len(self.labels),
                "n_documents": self.n_documents,
                "cutoffs": list(self.config.clusters.cutoffs),
                "encoder": self.model.encoder.save_config(),
                "config": self.config.to_dict(),
            },
        )

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
        settings = _read_settings(folder)
        labels, tokenizer = LabelSet.load(folder), Tokenizer.load(folder)
        try:
            config = Config.from_dict(settings["config"], source=str(folder / CONFIG))
            encoder = Encoder.from_config(settings["encoder"])
            cutoffs, n_labels = tuple(settings["cutoffs"]), int(settings["n_labels"])
            n_documents = int(settings["n_documents"])
            model = TaggingModel(encoder, config, n_labels=n_labels, cutoffs=cutoffs)
        except AplcError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / CONFIG}: {type(error).__name__}: {error}") from None
        if n_labels != len(labels):
            raise ModelError(f"{folder}: config.json has {n_labels} labels, labels.txt {len(labels)}")
        _load_weights(model, folder / WEIGHTS)
        return cls(config, model.eval().to(world().device), tokenizer, labels, n_documents)

    @cached_property
    def collator(self) -> Collator:
        encoder = self.model.encoder
        size = self.config.model.words
        hasher = WordHasher.of(self.tokenizer, size) if size else None
        return Collator(self.tokenizer.template, encoder.max_tokens, pad_left=encoder.pad_left, hash_words=hasher)


def _read_settings(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{folder}: not a model folder (no {CONFIG}); train one with aplc train ... --out {folder}")
    try:
        settings = json.loads((folder / CONFIG).read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{folder / CONFIG}: not JSON ({error})") from None
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        found = settings.get("format") if isinstance(settings, dict) else None
        raise ModelError(f"{folder / CONFIG}: format {found!r}, this version of aplc reads format {FORMAT}")
    return settings


def _load_weights(model: TaggingModel, path: Path) -> None:
    """Names and shapes are compared before a tensor is read."""
    if not path.is_file():
        raise ModelError(f"{path}: no weights yet; the training run has not finished its first epoch")
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                raise ModelError(f"{path}: {name} is {found.get(name)}, config.json asks for {expected.get(name)}")
        model.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        raise ModelError(f"{path}: damaged ({error})") from None
