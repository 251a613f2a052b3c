"""The files of a model folder, and what is checked of them before any is read: the folder may come from anywhere.

No file can run code: there are JSON, plain text, one .npy read without pickle, safetensors and ONNX. What is left to
check are sizes: a file must be a regular one of a plausible length. `nn/checked.py` has the checks of the weights.
"""

from dataclasses import dataclass
from pathlib import Path

from aplc.data.labels import COUNTS, NAMES
from aplc.data.tokenizer import TOKENIZER_FILE
from aplc.data.vocabulary import VOCABULARY
from aplc.files import MB, check_file
from aplc.models.base import BLEND_FILE, CLUSTERS_GRAPH, ENCODER_GRAPH, WORDS_FILE
from aplc.models.calibration import CALIBRATION_FILE
from aplc.nn.weights import WEIGHTS

CONFIG, CARD = "config.json", "README.md"
EVALUATION = "evaluation.json"
"""Where a model folder keeps its evaluation, if it has one."""
RUN_FILE = "run.json"
"""What a training run was started with, in the folder that it left."""


@dataclass(frozen=True)
class ModelFile:
    name: str
    limit: int | None = None
    """Bytes, far beyond what any model needs; None where the number of labels or the weights' header decides."""
    on_hub: bool = True
    """Whether it goes to the hub and comes from it."""
    has_digest: bool = True
    """Whether its digest is in config.json; not that of what people may edit."""
    is_weights: bool = False


MODEL_FILES = (
    ModelFile(CONFIG, 100 * MB, has_digest=False),
    ModelFile(WEIGHTS, is_weights=True),
    ModelFile(WORDS_FILE, is_weights=True),
    ModelFile(BLEND_FILE, is_weights=True),
    ModelFile(TOKENIZER_FILE, 500 * MB),
    ModelFile(NAMES),
    ModelFile(COUNTS),
    ModelFile(VOCABULARY, 2_000 * MB),
    ModelFile(CALIBRATION_FILE, 10 * MB),
    ModelFile(CARD, 100 * MB, has_digest=False),
    ModelFile(EVALUATION, 100 * MB, has_digest=False),
    ModelFile("spiece.model", 500 * MB, on_hub=False, has_digest=False),
    ModelFile(ENCODER_GRAPH, 2_148 * MB, is_weights=True),
    ModelFile(CLUSTERS_GRAPH, 2_148 * MB, is_weights=True),
)
"""Everything a model folder may hold that is read."""


def check_files(folder: Path) -> None:
    """Regular files of plausible length."""
    for file in MODEL_FILES:
        if file.limit is not None:
            check_file(folder / file.name, file.limit)
