"""A training run's state on disk: enough to go on as if nothing had happened.

`checkpoints/step-00001000/` holds `state.safetensors` (weights, optimizer moments, random states) and `state.json`
(progress, and the SHA-256 of the former). A checkpoint has a temporary name until it is complete; the one before it is
kept until the next is complete. No pickle: a checkpoint from elsewhere can't run code.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aplc.errors import RunError
from aplc.models.sharding import gather_state, gather_whole, load_state
from aplc.nn.device import module_of
from aplc.nn.distributed import world
from aplc.train.optim import Optimizers

FOLDER = "checkpoints"
KEPT = 2
"""The newest, and one to fall back on."""


@dataclass
class Progress:
    """Where a run stands. `epoch` and `batch` name the next batch to train on."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best_score: float = float("-inf")
    best_step: int = 0
    bad_evaluations: int = 0
    """Evaluations in a row without a better score."""
    loss_sum: float = 0.0
    """Since the last evaluation or the start of the epoch."""
    loss_count: int = 0
    """Batches in `loss_sum`."""
    seconds: float = 0.0
    """Time spent training, over all sessions."""


def save_checkpoint(
    run: Path, progress: Progress, model: nn.Module, optimizers: Optimizers, extra: dict[str, Tensor] | None = None
) -> None:
    """Write the checkpoint of this step; keep the one before it, and remove all others.

    `extra` is what else a run needs to go on, the same on every rank.
    """
    tensors = {f"random.{i}": state for i, state in enumerate(world().gather(_random_state()))}
    tensors |= {f"model.{name}": tensor for name, tensor in gather_state(model).items()}
    for name, kind, tensor in optimizers.state(model):
        tensors[f"optimizer.{name}.{kind}"] = gather_whole(model, name, tensor)
    tensors |= {f"extra.{name}": tensor for name, tensor in (extra or {}).items()}
    if not world().is_main:
        return
    folder = run / FOLDER / f"step-{progress.step:08d}"
    temporary = run / FOLDER / f".{folder.name}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary / "state.safetensors")
        state = {"progress": asdict(progress), "sha256": _sha256(temporary / "state.safetensors")}
        (temporary / "state.json").write_text(json.dumps(state, indent=2))
        for name in ("state.safetensors", "state.json"):
            with (temporary / name).open("rb") as stream:
                os.fsync(stream.fileno())
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one of the same step that was passed over
        os.rename(temporary, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        kept = "the one before it is intact" if checkpoints(run) else "it would be the first, so the run starts again"
        raise RunError(
            f"{folder}: can't write the checkpoint ({error}); {kept}: make room and run the same command with --resume"
        ) from None
    found = checkpoints(run)
    here = found.index(folder) + 1
    for other in (*found[: max(here - KEPT, 0)], *found[here:]):  # later ones are damaged, and were passed over
        shutil.rmtree(other, ignore_errors=True)


def checkpoints(run: Path) -> list[Path]:
    """The run's checkpoints, oldest first."""
    return sorted((run / FOLDER).glob("step-*"))


def newest_good(run: Path, say: Any) -> tuple[Path, Progress] | None:
    """The newest checkpoint whose checksum is right; damaged ones are named and passed over."""
    for folder in reversed(checkpoints(run)):
        try:
            state = json.loads((folder / "state.json").read_text("utf-8"))
            if state["sha256"] != _sha256(folder / "state.safetensors"):
                raise ValueError("state.safetensors does not match its checksum")
            return folder, Progress(**state["progress"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            say(f"{folder}: damaged ({error}); trying the one before it")
    return None


def load_checkpoint(folder: Path, model: nn.Module, optimizers: Optimizers) -> dict[str, Tensor]:
    """Put weights, optimizer and random states back; returns what was saved as `extra`."""
    tensors = load_file(folder / "state.safetensors")

    def named(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    load_state(model, named("model."))
    optimizers.load_state(model, named("optimizer."))
    state = named("random.").get(str(world().rank))
    if state is not None:  # else more processes than before: each goes on with what it was seeded with
        _set_random_state(state)
    return named("extra.")


def _random_state() -> Tensor:
    """This process' random state: the CPU's, and its GPU's behind it."""
    device, states = world().device, [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(module_of(device).get_rng_state(device))
    return torch.cat(states)


def _set_random_state(state: Tensor) -> None:
    device, size = world().device, len(torch.get_rng_state())
    torch.set_rng_state(state[:size].clone())
    if device.type != "cpu" and len(state) > size:  # else the run was on a CPU before
        module_of(device).set_rng_state(state[size:].clone(), device)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
