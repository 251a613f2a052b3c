"""An exported model, run by onnxruntime behind the same interface as the PyTorch one.

Two graphs: `encoder.onnx` from tokens to the encoder's vector, `clusters.onnx` from there to logits, with an output for
the head (labels, then roots) and one for each tail and addition. Only what is asked for is computed, so tails that
can't win are not visited, and the top k of the exported weights are exact (`nn/topk.py`). Windows of long texts are cut
and averaged here.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aplc.data.batches import Batch
from aplc.errors import ModelError
from aplc.nn.encoder import Encoder
from aplc.nn.topk import RunningTopK, TopK, sigmoid_

ENCODER, CLUSTERS = "encoder.onnx", "clusters.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def is_exported(folder: Path) -> bool:
    return (folder / ENCODER).is_file()


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


class OnnxEncoder(nn.Module):
    """`Encoder.forward`, with windows, over a session instead of a network."""

    forward, max_tokens, _in_windows = Encoder.forward, Encoder.max_tokens, Encoder._in_windows

    def __init__(self, session: Session, settings: dict[str, Any]) -> None:
        super().__init__()
        self.session, self.settings = session, settings
        self.long_text, self.max_length = str(settings["long_text"]), int(settings["max_length"])
        self.max_segments = int(settings["max_segments"])
        self.pad_left = settings["family"] == "xlnet"
        self.specials = (0, 2) if self.pad_left else (1, 1)
        self.width = int(session.outputs["pooled"][1])
        self.vocab_size = int(settings["config"]["vocab_size"])

    def _encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        return self.session("pooled", input_ids=input_ids, attention_mask=attention_mask, token_type_ids=types)

    def save_config(self) -> dict[str, Any]:
        return self.settings


class OnnxClusters(nn.Module):
    """Hidden layer and label clusters over a session. `pooled_BE`: the encoder's vectors."""

    def __init__(self, session: Session, *, n_labels: int, cutoffs: Sequence[int], added: Sequence[int]) -> None:
        super().__init__()
        self.session, self.n_labels, self.cutoffs = session, n_labels, list(cutoffs)
        self.added = list(added)
        self.options = {"added": self.added}
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


class OnnxModel(nn.Module):
    """In place of `TaggingModel` where a folder holds an exported model. It tags; it does not train."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        super().__init__()
        if not (folder / CLUSTERS).is_file():
            raise ModelError(f"{folder / CLUSTERS}: missing; export the model again")
        self.encoder = OnnxEncoder(Session(folder / ENCODER), settings["encoder"])
        sizes = {name: settings[name] for name in ("n_labels", "cutoffs", "added")}
        self.clusters = OnnxClusters(Session(folder / CLUSTERS), **sizes)
        _check(self, folder)
        # Callers ask a model's first parameter for its device.
        self.device = nn.Parameter(torch.empty(0), requires_grad=False)

    def represent(self, batch: Batch) -> Tensor:
        """pooled_BE: the hidden layer is part of the clusters' graph."""
        return self.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)

    def topk(self, batch: Batch, k: int, *, allowed: Tensor | None = None) -> TopK:
        return self.clusters.topk(self.represent(batch), k, allowed=allowed)

    def probability_of(self, batch: Batch, label: int) -> Tensor:
        return self.clusters.probabilities(self.represent(batch))[:, label]

    def forward(self, *_: Any, **__: Any) -> Tensor:
        raise ModelError("an exported model can't be trained; train the model folder it was exported from")

    def state_dict(self, *_: Any, **__: Any) -> Any:
        raise ModelError("an exported model has no weights to save; copy its folder instead")

    def to(self, *_: Any, **__: Any) -> "OnnxModel":
        return self  # onnxruntime runs it, on the CPU


def load_exported(folder: Path, settings: dict[str, Any]) -> OnnxModel:
    """The model of an exported folder; `settings` is what its config.json holds."""
    try:
        return OnnxModel(folder, settings)
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModelError(
            f"{folder}: config.json and the ONNX files don't fit ({type(error).__name__}: {error})"
        ) from None


def _check(model: OnnxModel, folder: Path) -> None:
    """Names and sizes are those that config.json asks for."""
    clusters = model.clusters
    found = {name: shape[-1] for name, shape in clusters.session.outputs.items()}
    if found != clusters.sizes or clusters.session.inputs != ["pooled"]:
        raise ModelError(f"{folder / CLUSTERS}: outputs are {found}, config.json asks for {clusters.sizes}")
    if list(model.encoder.session.outputs) != ["pooled"] or not set(model.encoder.session.inputs) <= set(INPUTS):
        raise ModelError(f"{folder / ENCODER}: not an encoder that aplc export wrote")


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError("an exported model needs onnxruntime: pip install onnxruntime") from error
    return onnxruntime
