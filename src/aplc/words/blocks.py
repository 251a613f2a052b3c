"""Finished blocks of labels: kept on disk while a words model is fitted, so that a killed run goes on with the next.

Each block is a file that appears when it is whole. Several processes share the blocks out and see each other's files,
so their folder must be one that all of them reach. When all are there, they are joined.
"""

import contextlib
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aplc.errors import ModelError
from aplc.files import atomic_path
from aplc.nn.distributed import world
from aplc.words.curves import Candidates, Scored
from aplc.words.matrices import transposed

FOLDER = "blocks"


class Finished(NamedTuple):
    """What a block of labels leaves behind: weights (C x V), and candidates for the curves."""

    weight_CV: sparse.csr_array
    candidates: Candidates


class Blocks:
    """The blocks of one fit, in a folder of their own; without one, in memory. Every process calls `begin` before the
    first: whoever finishes one, the run's folder then says what it is a part of."""

    def __init__(self, folder: Path | None = None, begin: Callable[[], None] = lambda: None) -> None:
        self.folder, self.begin, self.held = folder, begin, dict[int, Finished]()

    def save(self, number: int, block: Finished) -> None:
        if self.folder is None:
            self.held[number] = block
            return
        weight_CV, found = block
        with atomic_path(self._file(number), by_every_process=True) as temporary, temporary.open("wb") as out:
            np.savez(
                out,
                shape=np.array(weight_CV.shape),
                indptr=weight_CV.indptr,
                indices=weight_CV.indices.astype(np.int32, copy=False),
                data=weight_CV.data,
                own=np.array(list(found.own), dtype=np.int64),
                curves=np.array(list(found.own.values()), dtype=np.float32).reshape(-1, 3),
                **{f"best_{name}": column for name, column in found.best._asdict().items()},
                **{f"mentioned_{name}": column for name, column in found.mentioned._asdict().items()},
            )

    def has(self, number: int) -> bool:
        """Whether a block is finished, here or in an earlier session of the run."""
        return number in self.held if self.folder is None else self._file(number).is_file()

    def weights(self, number: int) -> sparse.csr_array:
        """Those of a block that is finished, C x V."""
        if self.folder is None:
            return self.held[number].weight_CV
        with self._kept(number) as kept:
            return sparse.csr_array((kept["data"], kept["indices"], kept["indptr"]), shape=kept["shape"])

    def candidates(self, number: int) -> Candidates:
        """Those of a block that is finished."""
        if self.folder is None:
            return self.held[number].candidates
        with self._kept(number) as kept:
            own = dict(zip(kept["own"].tolist(), kept["curves"], strict=True))
            best, mentioned = (
                Scored(*(kept[f"{which}_{name}"] for name in Scored._fields)) for which in ("best", "mentioned")
            )
            return Candidates(best, mentioned, own)

    @contextlib.contextmanager
    def _kept(self, number: int) -> Iterator[Mapping[str, NDArray]]:
        """A block's file; its arrays are read as they are asked for."""
        path = self._file(number)
        try:
            with np.load(path) as kept:
                yield kept
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ModelError(f"{path}: damaged ({error}); delete it, and go on with --resume") from None

    def join(self, n_blocks: int, n_words: int) -> sparse.csr_array:
        """The weights of all blocks, V x L. What is sorted by labels becomes sorted by words, a block at a time."""
        count_V = np.zeros(n_words, dtype=np.int64)
        for number in range(n_blocks):
            count_V += np.bincount(self.weights(number).indices, minlength=n_words)
        return transposed(map(self.weights, range(n_blocks)), count_V)

    def remove(self) -> None:
        """Once the model is saved."""
        if self.folder is not None and world().is_main:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{number:06d}.npz"


def shared_out(n: int) -> NDArray[np.int64]:
    """This process' numbers of n."""
    return np.arange(world().rank, n, world().size)
