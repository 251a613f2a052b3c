"""A training run of any kind of model: read the data, fit, calibrate, and leave a model folder.

`out` holds the best model so far, `run.json` (what the run was started with), `metrics.jsonl` and `checkpoints/`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aplc.config import Config
from aplc.console import Screen
from aplc.data.source import Source, TrainingData, read_training_data
from aplc.evaluate.bands import by_frequency
from aplc.evaluate.metrics import Metrics
from aplc.models.base import training_of
from aplc.models.calibration import depths
from aplc.models.trained import TrainedTagger
from aplc.predict.search import Found, calibrate, predict_documents
from aplc.store.folder import load_tagger, save_frame
from aplc.train.run_folder import RunFolder


def train(
    source: Source, config: Config, out: Path, *, resume: bool = False, screen: Screen | None = None
) -> TrainedTagger:
    """Train on `source`, leave the best model in `out` and return it."""
    screen = screen or Screen(quiet=True)
    training = training_of(config)
    with RunFolder.open(out, resume=resume, reads=source.files) as folder, _saying_what_is_lost(folder, screen):
        data = read_training_data(source, config.data, config.train.seed, screen)
        folder.check_labels()
        training.fit(data, config, folder, screen)
        return _calibrated(load_tagger(out), data, out, screen)


@contextlib.contextmanager
def _saying_what_is_lost(folder: RunFolder, screen: Screen) -> Iterator[None]:
    """Ctrl-C should not pass in silence: before a first block of labels, or a first step, there is nothing to keep."""
    try:
        yield
    except KeyboardInterrupt:
        begun = folder.has_begun
        screen.say("stopped; go on with the same command and --resume" if begun else "stopped; nothing was saved")
        raise


def _calibrated(trained: TrainedTagger, data: TrainingData, out: Path, screen: Screen) -> TrainedTagger:
    """The best model, with what the held-out documents say of its probabilities.

    They also chose the epoch, and taught a model of two parts its blend, 18 numbers: little enough to leave them nearly
    as good as fresh ones.
    """
    if not len(data.valid_rows):
        screen.say("calibration: none, no documents were held out")
        return trained
    trained = replace(trained, calibration=None)  # of a run that was finished before
    depth, width = depths(len(trained.labels))
    found, top, unknown = [], [], []
    with screen.bar("calibrating", len(data.valid_rows)) as advance:
        for block, ids, probs in predict_documents(trained, data.held_out(), width):
            found.append(Found(ids, probs, [trained.labels.encode(document.labels) for document in block]))
            unknown.append(trained.model.unknown_words([document.text for document in block]))
            advance(len(block))
        calibration = calibrate(trained, found)
    trained = replace(trained, calibration=calibration)
    metrics = Metrics(trained.labels.counts, n_documents=trained.n_documents)
    for part in found:
        ids, probs, _ = trained.ranking.settle(part.ids, part.probs, depth)
        metrics.update_lists(ids, probs, part.truth)
        top.append(probs[:, 0])
    bands = [asdict(band) for band in by_frequency(metrics.label_stats(5))]
    ranges = {"top_probability": _range(top), "unknown_words": _range([part for part in unknown if part is not None])}
    held_out = {"documents": metrics.n_evaluated, "metrics": metrics.result(), "bands": bands, "ranges": ranges}
    trained = replace(trained, held_out=held_out)
    save_frame(trained, out)
    screen.say(f"calibration: {calibration.summary(trained.cluster_names)}")
    return trained


ENOUGH = 100
"""Values needed for a range; of fewer, the outermost are mere chance."""


def _range(parts: Sequence[NDArray]) -> list[float] | None:
    """Where 19 in 20 of the values lie: how the server knows that texts are unlike these (`serve/drift.py`)."""
    values = np.concatenate(parts) if parts else np.empty(0)
    return np.quantile(values, [0.025, 0.975]).tolist() if len(values) >= ENOUGH else None
