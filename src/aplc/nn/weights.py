"""Reading encoder checkpoints: find the folder, read its config and weights, or say what is missing and what to do.

A folder is what `transformers` saves: `config.json`, `model.safetensors` (or shards with an index) and a tokenizer. A
hub name is downloaded into the hub's cache first. Only safetensors are read: a `pytorch_model.bin` is a pickle, and
opening a pickle can run any code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from aplc.data.encoders import ENCODERS, fetch_encoder
from aplc.data.hub import download, is_hub_name
from aplc.errors import ModelError
from aplc.files import read_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_FILES = ["*.json", "*.safetensors", "*.txt", "spiece.model", "*.vocab"]
_CURE = (
    "download it on a machine with a network, put config.json, model.safetensors and spiece.model (or tokenizer.json) "
    "into a folder and pass --set model.encoder=FOLDER"
)


def encoder_folder(name: str | Path) -> Path:
    """The folder of an encoder, given as a path, a name of `ENCODERS`, or a hub name; the latter are downloaded."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name in ENCODERS:
        return fetch_encoder(str(name))
    if folder.is_file():
        raise ModelError(f"encoder {str(name)!r} is a file; pass its folder: --set model.encoder={folder.parent}")
    if not is_hub_name(str(name), owner_needed=False):
        raise ModelError(
            f"no folder {str(name)!r}: put config.json, model.safetensors and the tokenizer's file (spiece.model or "
            f"tokenizer.json) there, or pass another folder or a hub name with --set model.encoder=NAME"
        )
    return download(str(name), _FILES, ignore=["onnx/*", "openvino/*"], cure=_CURE)


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"no config.json in {folder}: it must hold config.json, {WEIGHTS} and the tokenizer's file")
    return read_json(path)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder; without any, a `ModelError` says what to do."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        files = read_json(folder / INDEX).get("weight_map")
        if not isinstance(files, dict):
            raise ModelError(f"{folder / INDEX}: not an index of weights, it has no weight_map; copy it again")
        names = sorted(set(map(str, files.values())))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"{folder / INDEX} names {missing[0]}, which isn't there: copy all {len(names)} shards")
        return [folder / name for name in names]
    if (folder / "pytorch_model.bin").is_file():
        raise ModelError(
            f"{folder} has only pytorch_model.bin, a pickle, which aplc never opens; convert it once with: python -c "
            f"\"from transformers import AutoModel; AutoModel.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    raise ModelError(f"no weights in {folder}: put {WEIGHTS} there")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors.update(load_file(path))
        except SafetensorError as error:
            raise ModelError(f"{path} is damaged ({error}): copy or download it again") from error
    return tensors


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor], *, source: Path, prefix: str) -> list[str]:
    """Copy tensors into a module; returns the names of those that it doesn't use.

    Names may begin with `prefix`, as in a checkpoint of a model with a head. Raises `ModelError` with the name of a
    tensor that is missing or has the wrong shape.
    """
    found = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    wanted = module.state_dict()
    for name, tensor in wanted.items():
        if name in found and found[name].shape != tensor.shape:
            raise ModelError(
                f"{source}: {name} has shape {tuple(found[name].shape)} but config.json asks for "
                f"{tuple(tensor.shape)}; weights and config.json are of different models"
            )
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelError(
            f"{source}: {len(missing)} of {len(wanted)} tensors are missing ({some}); do they belong to another model?"
        )
    module.load_state_dict({name: found[name] for name in wanted})
    return sorted(found.keys() - wanted.keys())
