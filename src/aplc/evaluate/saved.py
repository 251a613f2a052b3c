"""An evaluation on disk: the figures as JSON, and each document's scores, which a paired test needs, as npz.

`FILE.json` has the name and checksum of `FILE.npz`, so that files of two evaluations can't be mixed up. No pickle.
"""

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aplc.errors import ModelError
from aplc.evaluate.metrics import DocumentScores
from aplc.evaluate.run import Evaluation
from aplc.files import STDOUT, output_json, output_stream
from aplc.store.folder import read_labels
from aplc.store.safety import CONFIG, EVALUATION

FORMAT = 1
_ARRAYS = ("names", "numerators", "denominators", "n_true")


@dataclass(frozen=True)
class SavedEvaluation:
    path: Path
    figures: dict[str, Any]
    """The content of the JSON file."""
    scores: DocumentScores

    @property
    def metrics(self) -> dict[str, float]:
        return self.figures["metrics"]


def save_evaluation(path: Path, evaluation: Evaluation, **about: str) -> None:
    """Write `path` (JSON) and its scores (npz). `about`: names of model, corpus and part, for the reader.

    On standard output (`-`) there is room for the JSON only, which then says `"scores": null`.
    """
    figures = {"format": FORMAT, **about} | evaluation.to_dict()
    if path == STDOUT:
        output_json(path, figures | {"scores": None})
        return
    scores = evaluation.metrics.document_scores()
    buffer = io.BytesIO()
    arrays = {name: np.asarray(getattr(scores, name)) for name in _ARRAYS}
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    beside = path.with_name(path.name.removesuffix(".json") + ".npz")
    with output_stream(beside) as out:
        out.write(content)
    output_json(path, figures | {"scores": {"file": beside.name, "blake2b": _digest(content)}})


def load_evaluation(path: Path) -> SavedEvaluation:
    """From a file that `aplc evaluate --json` wrote, or a model folder that has it as evaluation.json."""
    folder = None
    if path.is_dir():
        if not (path / EVALUATION).is_file():
            hint = f"aplc evaluate {path} CORPUS --json {path / EVALUATION}"
            raise ModelError(f"{path}: has no saved evaluation; run {hint}")
        folder, path = path, path / EVALUATION
    if not path.is_file():
        raise ModelError(f"{path}: no such file; run aplc evaluate MODEL CORPUS --json {path}")
    try:
        figures = json.loads(path.read_text("utf-8"))
        if figures["format"] != FORMAT:
            raise ModelError(f"{path}: format {figures['format']!r}, this version of aplc reads {FORMAT}")
        if folder and (folder / CONFIG).is_file():
            then, now = figures.get("label_set_version", 1), read_labels(folder).version
            if then != now:
                hint = f"aplc evaluate {folder} CORPUS --json {path}"
                raise ModelError(f"{folder}: its labels have changed since it was evaluated; run {hint}")
        if figures["scores"] is None:
            raise ModelError(f"{path}: has no scores of documents; evaluate again with --json FILE instead of --json -")
        beside = path.parent / Path(figures["scores"]["file"]).name
        if not beside.is_file():
            raise ModelError(f"{path}: {beside.name}, with the scores of the documents, is missing; evaluate again")
        content = beside.read_bytes()
        if _digest(content) != figures["scores"]["blake2b"]:
            raise ModelError(f"{path}: its scores file belongs to another evaluation; evaluate again")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            names, numerators, denominators, n_true = (arrays[name] for name in _ARRAYS)
    except ModelError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"{path}: not an evaluation saved by aplc evaluate --json ({reason})") from None
    return SavedEvaluation(path, figures, DocumentScores(tuple(names.tolist()), numerators, denominators, n_true))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
