"""`aplc info`: what a bug report should contain."""

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from aplc.cli.help import say_next
from aplc.version import __version__

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "tokenizers", "safetensors", "transformers")
DEVELOPMENT = ("test", "check", "release", "docs")
"""Extras that nobody needs to use the package."""


def info(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Print versions, device, threads, whether compiled code is used, the cache: what a bug report should contain."""
    import json

    facts = gather()
    print(json.dumps(facts, indent=2) if as_json else render(facts))
    if not as_json:
        say_next("data", "pubmed-mesh", "--out", "demo/corpus")


def gather() -> dict[str, Any]:
    """The facts, for programs."""
    import torch

    from aplc import native
    from aplc.files import cache_root
    from aplc.machine import free_bytes
    from aplc.nn.distributed import world

    library, root, choice = native.library(), cache_root(), world().choice
    return {
        "aplc": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "extras": _extras(),
        "device": str(choice.device),
        "device_reason": choice.reason,
        "threads": torch.get_num_threads(),
        "free_memory": free_bytes(),
        "native": {
            "used": library is not None,
            "vector": library.vector if library else None,
            "path": str(library.path) if library else None,
            "why": native.why_not(),
        },
        "cache": {"folder": str(root), "bytes": _size(root)},
    }


def render(facts: dict[str, Any]) -> str:
    """The same, for people."""
    from aplc.data.checks import count  # numpy takes a while to import; --help should not

    native, cache = facts["native"], facts["cache"]
    extras = [
        f"{name} ({'installed' if not missing else 'without ' + ', '.join(missing)})"
        for name, missing in facts["extras"].items()
    ]
    rows = {
        "aplc": f"{facts['aplc']}, Python {facts['python']}, {facts['system']}",
        "packages": ", ".join(f"{name} {version or 'missing'}" for name, version in facts["packages"].items()),
        "extras": ", ".join(extras) or "unknown: aplc is not installed, only run from its sources",
        "device": f"{facts['device']} ({facts['device_reason']}), {count(facts['threads'], 'thread')}, "
        f"{facts['free_memory'] / 1e9:.1f} GB of memory free",
        "compiled code": f"used, {native['vector']}: {native['path']}"
        if native["used"]
        else f"not used: {native['why']}",
        "cache": f"{cache['folder']}, {cache['bytes'] / 1e6:,.1f} MB",
    }
    return "\n".join(f"{name:15}{text}" for name, text in rows.items())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _extras() -> dict[str, list[str]]:
    """For each extra the packages of it that are missing; empty if aplc was not installed."""
    try:
        wanted = metadata.requires("aplc") or []
    except metadata.PackageNotFoundError:
        return {}
    missing: dict[str, list[str]] = {}
    for requirement in wanted:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if extra and extra[1] not in DEVELOPMENT:
            name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            missing.setdefault(extra[1], []).extend([] if _version(name) else [name])
    return missing


def _size(folder: Path) -> int:
    """Bytes of a folder's files; other processes may be removing some meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total
