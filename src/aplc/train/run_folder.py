"""The folder a run leaves its model in: whether it may be used, and what the run was started with (`run.json`)."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aplc.data.corpus import Corpus, corpus_parts
from aplc.data.source import Source
from aplc.errors import RunError
from aplc.files import read_json, write_json
from aplc.nn.distributed import restarts
from aplc.store.safety import CONFIG, MODEL_FILES, RUN_FILE
from aplc.train.lock import locked
from aplc.train.tracking import METRICS_FILE
from aplc.version import __version__

WRITTEN = [*(file.name for file in MODEL_FILES if file.on_hub), METRICS_FILE]
"""Files that a run replaces or removes."""


@dataclass(frozen=True)
class RunFolder:
    path: Path
    started: bool
    """Whether it holds a run to go on with."""
    resume: bool
    """Whether going on was asked for, by the user or by torchrun, which restarted the workers."""

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path, *, resume: bool, reads: Mapping[str, Any] | None = None) -> "Iterator[RunFolder]":
        """Lock a folder for a run. Refuse one with anything in it that would be lost, or that another run has.

        `reads`: what is known of the run's identity already, so that --resume is not advised where it would refuse.
        """
        if path.exists() and not path.is_dir():
            raise RunError(f"{path}: is a file; --out must be a folder, or nothing yet")
        with locked(path):
            yield cls._open(path, resume=resume or restarts() > 0, reads=reads or {})

    @classmethod
    def _open(cls, path: Path, *, resume: bool, reads: Mapping[str, Any]) -> "RunFolder":
        started = (path / RUN_FILE).is_file()
        if started and not resume:
            before = read_json(path / RUN_FILE)
            if changed := [_part(name) for name, now in reads.items() if before.get(name) != now]:
                raise RunError(
                    f"{path}: holds a run already, and {' and '.join(changed)} has changed since, so that it can't be "
                    "resumed; give --out another folder"
                )
            raise RunError(
                f"{path}: holds a run already; go on with --resume, choose another --out, or delete it first"
            )
        if not started and (parts := corpus_parts(path)):
            raise RunError(f"{path}: holds a corpus ({parts[0].name}); give --out a folder of the model's own")
        if not started and (path / CONFIG).is_file():
            raise RunError(f"{path}: holds a model, but no run that can be resumed; choose another --out")
        if not started and (own := [name for name in WRITTEN if (path / name).exists()]):
            raise RunError(f"{path / own[0]}: already exists and would be replaced; choose another --out")
        return cls(path, started, resume)

    def check(self, identity: dict[str, Any]) -> None:
        """Refuse to go on with a run whose configuration, documents or tokenizer has changed."""
        if not self.started:
            return
        before = read_json(self.path / RUN_FILE)
        now, settings = json.loads(json.dumps(identity)), before.get("config", {})
        lacking = [
            f"{section}.{name}"
            for section, values in now["config"].items()
            for name in values
            if name not in settings.get(section, {})
        ]
        if lacking:
            raise RunError(
                f"{self.path}: an earlier version of aplc, or another command, which had no {lacking[0]}, started this "
                "run; choose another --out"
            )
        parts = [name for name in now if name != "config"]
        differences = [f"{_part(name)} has changed" for name in parts if before.get(name) != now[name]]
        for section, values in now["config"].items():
            for name, value in values.items():
                old = settings[section][name]
                if old != value:
                    differences.append(f"{section}.{name} was {old!r} and is {value!r}")
        if differences:
            raise RunError(
                f"{self.path}: can't resume, {'; '.join(differences)}. Use the same settings as before, or another "
                "--out"
            )

    def begin(self, identity: dict[str, Any]) -> None:
        """Note what the run was started with."""
        write_json(self.path / RUN_FILE, identity | {"aplc_version": __version__})

    def forget(self) -> None:
        """Take the note back: there is nothing to go on with."""
        (self.path / RUN_FILE).unlink(missing_ok=True)

    @property
    def has_begun(self) -> bool:
        """Whether there is something to go on with by now."""
        return (self.path / RUN_FILE).is_file()

    def check_labels(self) -> None:
        """Refuse to go on where the label set was changed after training: the run would undo that."""
        config = self.path / CONFIG
        version = read_json(config).get("label_set", {}).get("version", 1) if config.is_file() else 1
        if self.started and version != 1:
            raise RunError(
                f"{self.path}: its labels were changed after training (label-set version {version}); "
                "choose another --out"
            )


def _part(name: str) -> str:
    """What a key of run.json says of the run, for messages."""
    return "what --more adds" if name == "more" else f"the {name}"


def was_trained_on(model: Path, corpus: Corpus) -> bool:
    """Whether a model folder says that it was trained on this corpus; `Tagger.fit` leaves no such note."""
    note = model / RUN_FILE
    return note.is_file() and read_json(note).get("corpus") == Source.from_corpus(corpus).key
