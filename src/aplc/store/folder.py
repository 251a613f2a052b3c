"""A model folder: everything needed to tag texts, in files that can't run code.

config.json (settings, changes of the label set, digests of the files, what the kind of model needs to be built again),
model.safetensors (of a model of two parts also words.safetensors and blend.safetensors), tokenizer.json where the model
has one, labels.txt, label_counts.npy, README.md, calibration.json where documents were held out to learn it from,
evaluation.json where the model was evaluated, and vocabulary.jsonl where it was trained with a vocabulary.
"""

from pathlib import Path
from typing import Any

from aplc.config import Config
from aplc.data.corpus import corpus_parts
from aplc.data.labels import LabelSet
from aplc.data.vocabulary import VOCABULARY, Vocabulary
from aplc.errors import ModelError
from aplc.files import atomic_folder, atomic_write, new_folder, read_json, write_json
from aplc.machine import is_main_process
from aplc.models.base import KINDS, LabelModel, kind_of_folder
from aplc.models.calibration import CALIBRATION_FILE, Calibration
from aplc.models.trained import TrainedTagger
from aplc.nn.checked import check_settings
from aplc.store.card import model_card, read_evaluation, sound
from aplc.store.digests import changing, check_digests, damage
from aplc.store.safety import CARD, CONFIG, EVALUATION, MODEL_FILES, check_files
from aplc.version import __version__

FORMAT = 2
READ = (1, FORMAT)
"""Formats that this version reads; 1 did not name the kind of model."""


def load_tagger(folder: Path | str) -> TrainedTagger:
    """Read a model folder; its model is ready to tag, on this process' device."""
    folder = Path(folder)
    check_files(folder)
    settings = _read_settings(folder)
    check_digests(folder, settings)
    config = Config.from_dict(settings["config"], source=str(folder / CONFIG))
    return TrainedTagger(
        config=config,
        model=KINDS[config.model.kind].load(folder, settings, config),
        labels=LabelSet.load(folder, settings["n_labels"], settings["label_set"]),
        n_documents=settings["n_documents"],
        calibration=Calibration.load(folder),
        held_out=sound(settings.get("held_out")),
        evaluation=read_evaluation(folder / EVALUATION),
        vocabulary=Vocabulary.load(folder),
    )


def save_tagger(trained: TrainedTagger, folder: Path) -> None:
    """Write a model folder, config.json last."""
    with changing(folder):
        save_weights(trained.model, folder)
        save_frame(trained, folder)


def save_weights(model: LabelModel, folder: Path) -> None:
    """The weights alone, e.g. of a better epoch."""
    with changing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        model.save_weights(folder)


def save_frame(trained: TrainedTagger, folder: Path) -> None:
    """Everything but the weights. Files of what the tagger does not have, as it may once have had, are removed."""
    known = trained.vocabulary and trained.vocabulary.only(trained.labels.names)
    vocabulary = known if known and known.entries else None
    with changing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        trained.model.save_parts(folder)
        trained.labels.save(folder)
        if trained.calibration:
            trained.calibration.save(folder)
        if trained.evaluation:
            write_json(folder / EVALUATION, trained.evaluation)
        if vocabulary:
            vocabulary.save(folder)
        parts = {CALIBRATION_FILE: trained.calibration, EVALUATION: trained.evaluation, VOCABULARY: vocabulary}
        for name, part in parts.items():
            if not part and is_main_process():
                (folder / name).unlink(missing_ok=True)
        save_card(trained, folder)
        settings = {
            "format": FORMAT,
            "aplc_version": __version__,
            "n_labels": len(trained.labels),
            "n_documents": trained.n_documents,
            "label_set": trained.labels.state(),
            "held_out": trained.held_out,
            "config": trained.config.to_dict(),
        }
        write_json(folder / CONFIG, settings | trained.model.settings())


def save_card(trained: TrainedTagger, folder: Path) -> None:
    with atomic_write(folder / CARD) as out:
        out.write(model_card(trained).encode("utf-8"))


def read_labels(folder: Path) -> LabelSet:
    """A model folder's label set alone."""
    check_files(folder)
    settings = _read_settings(folder)
    check_digests(folder, settings)
    return LabelSet.load(folder, settings["n_labels"], settings["label_set"])


def replace_folder(path: Path, before: TrainedTagger, after: TrainedTagger, out: Path | None = None) -> None:
    """Put a changed tagger in the place of the one it was made from, in one step; or into a new folder `out`."""
    if out is not None:
        if out.exists():
            raise ModelError(f"{out}: already exists; choose another --out")
        with new_folder(out) as temporary:
            save_tagger(after, temporary)
        return
    with atomic_folder(path) as temporary:
        if after.model is not before.model:
            save_weights(after.model, temporary)
        save_frame(after, temporary)
        if read_labels(path).version != before.labels.version:
            raise ModelError(f"{path}: its labels were changed by somebody else meanwhile; try again")


def lost_files(folder: Path) -> list[str]:
    """Files of a model folder that are missing or damaged, as far as it knows."""
    if not (folder / CONFIG).is_file():
        return [CONFIG]
    return list(damage(folder, read_json(folder / CONFIG)))


def check_free(folder: Path) -> None:
    """Refuse a folder in which saving a model would replace somebody's files; an earlier model of ours it may."""
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder}: is a file; give a folder, or the name of a new one")
    taken = [folder / file.name for file in MODEL_FILES if (folder / file.name).exists()]
    if not taken:
        return
    try:
        _read_settings(folder)
    except ModelError:
        raise ModelError(
            f"{taken[0]}: already exists, does not belong to a model folder, and would be replaced; choose another "
            "folder"
        ) from None


def _no_model(path: Path) -> str:
    """What a path is that was given for a model folder."""
    if path.is_file():
        return "is a file, not a model folder; are the arguments in the wrong order? The model comes first"
    if corpus_parts(path):
        return f"is a corpus, not a model folder; train a model with aplc train {path} --out MODEL, and give MODEL"
    return f"not a model folder (no {CONFIG}); train one with aplc train ... --out {path}"


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise ModelError(f"{folder}: {_no_model(folder)}")
    settings = {"label_set": {}} | read_json(path)
    if settings.get("format") not in READ:
        known = " and ".join(map(str, READ))
        raise ModelError(f"{path}: format {settings.get('format')!r}, this version of aplc reads {known}")
    check_settings(settings, {"config": dict, "label_set": dict, "n_labels": int, "n_documents": int}, folder)
    kind = kind_of_folder(settings["config"], folder)
    model = settings["config"].get("model")
    return settings | {
        "config": settings["config"] | {"model": (model if isinstance(model, dict) else {}) | {"kind": kind}}
    }
