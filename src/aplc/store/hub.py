"""Model folders on the Hugging Face hub: fetched into its cache, and uploaded with their card.

What is fetched is no more trusted than any folder (`safety.py`): only the files a model folder has are downloaded, and
none of them can run code.
"""

import os
from pathlib import Path

from aplc.data.hub import download, is_hub_name, reason_of
from aplc.errors import ModelError
from aplc.store.safety import MODEL_FILES

_NAMES = [file.name for file in MODEL_FILES if file.on_hub]


def fetch_model(name: str | Path) -> Path:
    """The folder of a model, given as a path or as a name on the hub (`user/model`), which is downloaded once."""
    if not isinstance(name, str | os.PathLike):
        raise ModelError(f"{name!r}: give a model folder, or the name of a model on the hub such as user/model")
    folder = Path(name).expanduser()
    if folder.exists() or isinstance(name, Path) or not is_hub_name(name):
        return folder
    return download(name, _NAMES, cure="check the name, or download the folder elsewhere and give its path")


def push_model(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Upload a model folder; returns its address."""
    if not is_hub_name(name):
        raise ModelError(f"{name!r} is not a name on the hub; write it as user/model")
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=_NAMES, commit_message=message)
    except Exception as error:
        raise ModelError(f"{name}: could not be uploaded ({reason_of(error)}); log in with: hf auth login") from None
    return str(address)
