"""A network exported to ONNX and run by onnxruntime, as a `LabelModel`.

Two graphs: `encoder.onnx` from tokens to the encoder's vector, `clusters.onnx` from there to logits, with an output for
the head (labels, then roots) and one for each tail and addition. Only what is asked for is computed, so tails that
can't win are not visited, and the top k of the exported weights are exact (`nn/topk.py`). Windows of long texts are cut
and averaged here.
"""

import shutil
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aplc.config import Config
from aplc.data.batches import Batch, Collator
from aplc.data.tokenizer import Tokenizer
from aplc.errors import ModelError, needs
from aplc.files import atomic_path
from aplc.models.base import CLUSTERS_GRAPH, ENCODER_GRAPH, Ids, Probs
from aplc.models.network import check_vocabulary
from aplc.nn.checked import check_lengths, check_settings
from aplc.nn.pooling import average_windows, longest_document
from aplc.nn.topk import RunningTopK, TopK, sigmoid_

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Session:
    """One ONNX file. Weights stored as int8 become float32 once, when it is opened."""

    def __init__(self, path: Path) -> None:
        ort = _onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        options.add_session_config_entry("session.disable_quant_qdq", "1")  # fold int8 weights instead of keeping pairs
        try:
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own types are private
            raise ModelError(f"{path}: onnxruntime can't load it ({' '.join(str(error).split())[:160]})") from None
        self.inputs = [given.name for given in self._session.get_inputs()]
        self.outputs = {made.name: made.shape for made in self._session.get_outputs()}
        self._only_asked = ort.RunOptions()
        self._only_asked.only_execute_path_to_fetches = True

    def __call__(self, output: str, **inputs: Tensor) -> Tensor:
        feeds = {name: np.ascontiguousarray(inputs[name].numpy()) for name in self.inputs}
        return torch.from_numpy(self._session.run([output], feeds, self._only_asked)[0])


class OnnxEncoder:
    """Documents to vectors over a session, long ones in windows."""

    def __init__(self, session: Session, settings: dict[str, Any]) -> None:
        self.session, self.settings = session, settings
        self.long_text, self.max_length = str(settings["long_text"]), settings["max_length"]
        self.max_segments = settings["max_segments"]
        self.pad_left = settings["family"] == "xlnet"
        self.specials = (0, 2) if self.pad_left else (1, 1)
        self.max_tokens = longest_document(self.long_text, self.max_length, self.max_segments, self.specials)
        self.vocab_size = int(settings["config"]["vocab_size"])

    def __call__(self, batch: Batch) -> Tensor:
        inputs = batch.input_ids, batch.attention_mask, batch.token_type_ids
        if batch.input_ids.shape[1] <= self.max_length:
            return self._encode(*inputs)
        return average_windows(self._encode, *inputs, self.max_length, self.specials, self.pad_left)

    def _encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        return self.session("pooled", input_ids=input_ids, attention_mask=attention_mask, token_type_ids=types)


class OnnxClusters:
    """Hidden layer and label clusters over a session. `pooled_BE`: the encoder's vectors."""

    def __init__(self, session: Session, *, n_labels: int, cutoffs: Sequence[int], added: Sequence[int]) -> None:
        self.session, self.n_labels, self.cutoffs = session, n_labels, list(cutoffs)
        self.added = list(added)
        self.bounds = [0, *cutoffs, *accumulate(added, initial=n_labels - sum(added))]
        self.head_size = self.bounds[1]
        self.sizes = {"head": self.head_size + len(cutoffs)} | {
            name: stop - start
            for (name, _), (start, stop) in zip(self._others(), pairwise(self.bounds[1:]), strict=True)
        }
        """Columns of each output."""

    def _others(self) -> list[tuple[str, int | None]]:
        """Outputs besides the head, in the order of ids, with the place of their root; additions have none."""
        tails = [(f"tail_{t + 1}", self.head_size + t) for t in range(len(self.cutoffs))]
        return [*tails, *((f"added_{i + 1}", None) for i in range(len(self.added)))]

    def topk(self, pooled_BE: Tensor, k: int = 5, *, allowed: Tensor | None = None) -> TopK:
        """As `LabelClusters.topk`: a row visits a tail only while the tail's root exceeds its k-th probability."""
        head_CB = self._logits("head", pooled_BE).t()
        best = RunningTopK(len(pooled_BE), min(k, self.n_labels), head_CB.dtype, head_CB.device)
        best.update(head_CB[: self.head_size], 0, allowed_L=allowed)
        for (name, root), start in zip(self._others(), self.bounds[1:], strict=False):
            if root is None:
                best.update(self._logits(name, pooled_BE).t(), start, allowed_L=allowed)
                continue
            root_B = sigmoid_(head_CB[root].clone())
            rows_S = best.rows_below(root_B)
            if len(rows_S):
                best.update(self._logits(name, pooled_BE[rows_S]).t(), start, rows_S, root_B[rows_S], allowed)
        return TopK(best.probs_Bk, best.ids_Bk)

    def probabilities(self, pooled_BE: Tensor) -> Tensor:
        """Every label's probability, (B, L): for one label's sake, and for tests."""
        head_BC = sigmoid_(self._logits("head", pooled_BE))
        others = [
            sigmoid_(self._logits(name, pooled_BE)) * (1 if root is None else head_BC[:, root, None])
            for name, root in self._others()
        ]
        return torch.cat([head_BC[:, : self.head_size], *others], 1)

    def _logits(self, output: str, pooled_BE: Tensor) -> Tensor:
        return self.session(output, pooled=pooled_BE)


class OnnxModel:
    """An exported network as a `LabelModel`. It tags; it does not learn."""

    kind = "exported"
    batch_size = 32
    parts: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, folder: Path, settings: dict[str, Any], tokenizer: Tokenizer) -> None:
        if not (folder / CLUSTERS_GRAPH).is_file():
            raise ModelError(f"{folder / CLUSTERS_GRAPH}: missing; export the model again")
        self.folder, self.tokenizer = folder, tokenizer
        self.encoder = OnnxEncoder(Session(folder / ENCODER_GRAPH), settings["encoder"])
        sizes = {name: settings[name] for name in ("n_labels", "cutoffs", "added")}
        self.clusters = OnnxClusters(Session(folder / CLUSTERS_GRAPH), **sizes)
        self.collator = Collator(tokenizer.template, self.encoder.max_tokens, pad_left=self.encoder.pad_left)
        self.n_labels, self.bounds, self.n_added = self.clusters.n_labels, self.clusters.bounds, len(settings["added"])
        _check(self, folder)

    def prepare(self, texts: Sequence[str]) -> Batch:
        return self.collator(self.tokenizer.encode(list(texts)), [[]] * len(texts))

    @torch.inference_mode()
    def read(self, batch: Batch) -> Tensor:
        """pooled_BE: the hidden layer is part of the clusters' graph."""
        return self.encoder(batch)

    @torch.inference_mode()
    def topk(self, states: Tensor, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Ids, Probs]:
        found = self.clusters.topk(states, k, allowed=None if allowed is None else torch.from_numpy(allowed))
        return found.ids.numpy(), found.probs.float().clamp_min(0).numpy()

    @torch.inference_mode()
    def probability_of(self, states: Tensor, label: int) -> NDArray[np.float32]:
        return self.clusters.probabilities(states)[:, label].float().numpy()

    def characters_read(self, text: str) -> int:
        return self.collator.characters_read(self.tokenizer, text)

    def unknown_words(self, texts: Sequence[str]) -> None:
        """Its tokenizer has pieces for every word."""

    def settings(self) -> dict[str, Any]:
        clusters = self.clusters
        return {"encoder": self.encoder.settings, "cutoffs": clusters.cutoffs, "added": clusters.added}

    def save_parts(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    def save_weights(self, folder: Path) -> None:
        for name in (ENCODER_GRAPH, CLUSTERS_GRAPH):
            with atomic_path(folder / name) as temporary:
                shutil.copyfile(self.folder / name, temporary)


def load(folder: Path, settings: dict[str, Any], _config: Config) -> OnnxModel:
    """The model of an exported folder; `settings` is what its config.json holds."""
    settings = {"added": []} | settings
    check_settings(settings, {"encoder": dict, "cutoffs": list, "added": list}, folder)
    check_lengths(settings["encoder"], folder)
    tokenizer = Tokenizer.load(folder)
    try:
        model = OnnxModel(folder, settings, tokenizer)
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModelError(
            f"{folder}: config.json and the ONNX files don't fit ({type(error).__name__}: {error})"
        ) from None
    check_vocabulary(tokenizer, model.encoder.vocab_size, folder)
    return model


def _check(model: OnnxModel, folder: Path) -> None:
    """Names and sizes are those that config.json asks for."""
    clusters = model.clusters
    found = {name: shape[-1] for name, shape in clusters.session.outputs.items()}
    if found != clusters.sizes or clusters.session.inputs != ["pooled"]:
        raise ModelError(f"{folder / CLUSTERS_GRAPH}: outputs are {found}, config.json asks for {clusters.sizes}")
    if list(model.encoder.session.outputs) != ["pooled"] or not set(model.encoder.session.inputs) <= set(INPUTS):
        raise ModelError(f"{folder / ENCODER_GRAPH}: not an encoder that aplc export wrote")


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(needs("an exported model", "onnxruntime")) from error
    return onnxruntime
