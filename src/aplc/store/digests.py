"""config.json has a digest of each file, so that damage is noticed (a file sorted by an editor, an incomplete copy).

`changing` removes the digests before files are replaced and writes new ones at the end; after a crash in between the
folder still loads, unchecked, like one without digests. This does not protect against attackers, who can write digests
too.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aplc.errors import ModelError
from aplc.files import read_json, write_json
from aplc.machine import is_main_process
from aplc.store.safety import CONFIG, MODEL_FILES, RUN_FILE

FILES = "files"
WHOLE = 64 << 20
"""Bytes up to which all of a file is read. Of longer ones, the length and both ends: a folder must open quickly.

Saved digests depend on both figures: another figure needs another name in config.json."""
ENDS = 1 << 20
DIGESTED = [file.name for file in MODEL_FILES if file.has_digest]
WEIGHT_FILES = {file.name for file in MODEL_FILES if file.is_weights}


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Around everything that replaces files of a model folder, config.json included. May be nested."""
    config = folder / CONFIG
    if not is_main_process():
        yield
        return
    settings = read_json(config) if config.is_file() else {}
    noted, before = _noted(settings, folder), _states(folder)
    if noted:
        write_json(config, {name: value for name, value in settings.items() if name != FILES})
    yield
    if config.is_file():
        # A file that was not written keeps its digest: damage must not be taken for the model's own.
        digests = {
            name: noted[name] if name in noted and state == before.get(name) else _digest(folder / name)
            for name, state in _states(folder).items()
        }
        write_json(config, read_json(config) | {FILES: digests})


def _states(folder: Path) -> dict[str, tuple[int, ...]]:
    """The files that exist; a file that is written again has another state."""
    found: dict[str, tuple[int, ...]] = {}
    for name in DIGESTED:
        if (folder / name).is_file():
            stat = (folder / name).stat()
            found[name] = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    return found


def _noted(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    noted = settings.get(FILES, {})
    if not isinstance(noted, dict):
        raise ModelError(f"{folder / CONFIG}: {FILES} = {str(noted)[:40]}: must be a JSON object")
    return noted


def _digest(path: Path) -> dict[str, Any]:
    size, hashed = path.stat().st_size, hashlib.blake2b(digest_size=16)
    with path.open("rb") as stream:
        if size <= WHOLE:
            while block := stream.read(ENDS):
                hashed.update(block)
        else:
            hashed.update(stream.read(ENDS))
            stream.seek(-ENDS, 2)
            hashed.update(stream.read(ENDS))
    return {"bytes": size, "blake2b": hashed.hexdigest()}


def damage(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """What has become of files since the model was saved, by name; `settings` is what config.json holds."""
    noted, found = _noted(settings, folder), {}
    for name in DIGESTED:
        path = folder / name
        if name in noted and not path.is_file():
            found[name] = "is not a regular file" if path.exists() else "is missing"
        elif name in noted and _digest(path) != noted[name]:
            found[name] = "has changed since the model was saved"
    return found


def check_digests(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a folder with damaged files, and say how to get them back."""
    found = damage(folder, settings)
    if not found:
        return
    name, what = next(iter(found.items()))
    others = f", and {', '.join(list(found)[1:])} with it" if len(found) > 1 else ""
    cure = "copy the whole folder again"
    if WEIGHT_FILES & found.keys():
        cure += ", or train again into another --out"
    elif (folder / RUN_FILE).is_file() and settings["label_set"].get("version", 1) == 1:
        cure += ", or run the aplc train command that made it with --resume, which rewrites it"
    raise ModelError(f"{folder / name}: {what}{others}; {cure}")
