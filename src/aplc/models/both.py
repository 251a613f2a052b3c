"""Words and meaning in one model: a words model and a network, blended label by label (`blend.py`).

A text is read twice. The words part counts its words; the network part reads its beginning with an encoder. Both give
every label a logit, and the blend makes one of the two. So the best k labels are exact: all labels of a batch are
blended, and the best are taken. The price is an array of a batch's documents times labels, as in the words model, and
the network's output layer evaluated whole; beside an encoder's pass both are small.

Shapes: B documents, L labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy.special import expit

from aplc.config import Config
from aplc.data.batches import Batch
from aplc.errors import ModelError
from aplc.files import atomic_path
from aplc.models import network as networks
from aplc.models.base import BLEND_FILE, WORDS_FILE, Ids, PartTopK, Probs
from aplc.models.blend import Blend, log_odds
from aplc.models.network import TaggingModel
from aplc.nn.checked import compare_headers, read_header
from aplc.words import model as words_models
from aplc.words.model import LOGITS_AT_ONCE, Floats, WordsBatch, WordsModel, best_labels


class Read(NamedTuple):
    """Logits of a batch, (B, L) each."""

    words: Floats
    network: Floats | None
    """None if c = 0 for every label; `_topk_of_network` then makes them."""
    both: Floats
    batch: Batch


@dataclass(frozen=True)
class BothModel:
    """A `LabelModel` of two parts."""

    words: WordsModel
    network: TaggingModel
    """Knows the labels that training documents have, which are the first ones."""
    blend: Blend

    kind = "both"

    @property
    def n_labels(self) -> int:
        return self.words.n_labels

    @property
    def bounds(self) -> Sequence[int]:
        return self.words.bounds

    @property
    def n_added(self) -> int:
        return self.words.n_added

    @property
    def batch_size(self) -> int:
        return max(1, min(self.network.batch_size, LOGITS_AT_ONCE // self.n_labels))

    @property
    def parts(self) -> Mapping[str, PartTopK]:
        return {"words": self._topk_of_words, "network": self._topk_of_network}

    def prepare(self, texts: Sequence[str]) -> tuple[WordsBatch, Batch]:
        return self.words.prepare(texts), self.network.prepare(texts)

    def read(self, batch: tuple[WordsBatch, Batch]) -> Read:
        if not self.blend.uses_network:
            words_BL = self.words.read(batch[0])
            return Read(words_BL, None, self.blend(words_BL, np.float32(0)), batch[1])
        words_BL, network_BL = self.opinions(batch)
        return Read(words_BL, network_BL, self.blend(words_BL, network_BL), batch[1])

    def topk(self, states: Read, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Ids, Probs]:
        return best_labels(states.both, k, allowed)

    def probability_of(self, states: Read, label: int) -> NDArray[np.float64]:
        return expit(states.both[:, label].astype(np.float64))

    def opinions(self, batch: tuple[WordsBatch, Batch]) -> tuple[Floats, Floats]:
        """The words' logits and the network's, (B, L) each."""
        return self.words.read(batch[0]), self._network_logits(batch[1])

    def characters_read(self, text: str) -> int:
        return self.words.characters_read(text)

    def unknown_words(self, texts: Sequence[str]) -> Floats:
        return self.words.unknown_words(texts)

    def settings(self) -> dict[str, Any]:
        return self.network.settings() | self.words.settings() | {"n_network_labels": self.network.n_labels}

    def save_parts(self, folder: Path) -> None:
        self.network.save_parts(folder)

    def save_weights(self, folder: Path) -> None:
        self.network.save_weights(folder)
        self.words.save_weights(folder, WORDS_FILE)
        save_blend(self.blend, folder)

    def _network_logits(self, batch: Batch) -> Floats:
        """(B, L); labels that the network does not know are as improbable as it can say."""
        probs_BL = self.network.probabilities(self.network.read(batch))
        more = self.n_labels - self.network.n_labels
        return log_odds(np.pad(probs_BL, ((0, 0), (0, more)))).astype(np.float32)

    def _topk_of_words(self, states: Read, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Ids, Probs]:
        return best_labels(states.words, k, allowed)

    def _topk_of_network(self, states: Read, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Ids, Probs]:
        logits_BL = self._network_logits(states.batch) if states.network is None else states.network
        return best_labels(logits_BL, k, allowed)


def save_blend(blend: Blend, folder: Path) -> None:
    with atomic_path(folder / BLEND_FILE) as temporary:
        save_file({"curve": blend.curve_3L}, temporary)


def load_blend(folder: Path, n_labels: int) -> Blend:
    path = folder / BLEND_FILE
    compare_headers({"curve": (3, n_labels)}, read_header(path, {"curve": "F32"}), folder)
    try:
        curve_3L = load_file(path)["curve"]
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: damaged ({error})") from None
    if not (np.abs(curve_3L) < 1e6).all() or (curve_3L[1:] < 0).any():  # also refuses NaN
        raise ModelError(f"{path}: curve has NaN, negative or very large values; the model is damaged")
    return Blend(curve_3L)


def load(folder: Path, settings: dict[str, Any], config: Config) -> BothModel:
    """The two parts of a model folder and their blend. Nothing in the folder is trusted."""
    words = words_models.load(folder, settings, config, WORDS_FILE)
    n_network = settings.get("n_network_labels", settings["n_labels"])  # folders of before have no such entry
    if type(n_network) is not int or not 0 < n_network <= words.n_labels:
        raise ModelError(f"{folder}: n_network_labels = {str(n_network)[:40]}; the model is damaged")
    network = networks.load(folder, settings | {"n_labels": n_network}, config)
    return BothModel(words, network, load_blend(folder, settings["n_labels"]))
