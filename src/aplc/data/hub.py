"""Downloads from the Hugging Face hub, into the hub's own cache."""

import re
from collections.abc import Sequence
from pathlib import Path

from aplc.errors import ModelError


def is_hub_name(name: str, *, owner_needed: bool = True) -> bool:
    """Whether this could be "owner/name", or without `owner_needed` also a bare "name"."""
    pattern = r"[\w.-]+/[\w.-]+" if owner_needed else r"[\w.-]+(/[\w.-]+)?"
    return bool(re.fullmatch(pattern, name)) and not name.startswith(".")


def download(name: str, files: Sequence[str], *, cure: str, ignore: Sequence[str] = ()) -> Path:
    """The folder with a repository's `files`; `cure` tells what to do where it can't be had."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(files), ignore_patterns=list(ignore)))
    except Exception as error:  # offline, unknown, gated, proxy: many exceptions, one cure
        raise ModelError(
            f"{name}: is not a folder here and could not be downloaded from the hub ({reason_of(error)}); {cure}"
        ) from None


def reason_of(error: Exception) -> str:
    """An exception of the hub's in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
