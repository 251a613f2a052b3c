"""Model folders on the Hugging Face hub: fetched into its cache, and uploaded with their card.

What is fetched is no more trusted than any folder (`safety.py`): only the files a model folder has are downloaded, and
none of them can run code.
"""

import re
from pathlib import Path

from aplc.errors import ModelError
from aplc.store.safety import MODEL_FILES

_NAMES = [file.name for file in MODEL_FILES if file.on_hub]


def fetch_model(name: str | Path) -> Path:
    """The folder of a model, given as a path or as a name on the hub (`user/model`), which is downloaded once."""
    folder = Path(name).expanduser()
    if folder.exists() or isinstance(name, Path) or not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_NAMES))
    except Exception as error:  # offline, unknown, gated, proxy: many types, one cure
        reason = " ".join(str(error).split())[:160]
        raise ModelError(
            f"{name}: no folder here, and could not be fetched from the hub ({type(error).__name__}: {reason}); check "
            f"the name, or download the folder elsewhere and give its path"
        ) from None


def push_model(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Upload a model folder; returns its address."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ModelError(f"{name!r} is no name on the hub; write it as user/model")
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=_NAMES, commit_message=message)
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise ModelError(
            f"{name}: could not be uploaded ({type(error).__name__}: {reason}); log in with: hf auth login"
        ) from None
    return str(address)
