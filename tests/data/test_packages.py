"""Guards what is fetched with pip: no code of a package is run."""

import io
import tarfile

import pytest

from aplc.data.packages import pip_download
from aplc.errors import CorpusError


def test_code_of_a_source_archive_is_not_run(tmp_path, monkeypatch):
    ran, links, out = tmp_path / "ran", tmp_path / "links", tmp_path / "out"
    links.mkdir()
    out.mkdir()
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n',
        "build.py": f"open({str(ran)!r}, 'w').close()\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n",
    }
    with tarfile.open(links / "odd-1.0.tar.gz", "w:gz") as tarred:
        for name, text in files.items():
            member = tarfile.TarInfo(f"odd-1.0/{name}")
            member.size = len(text)
            tarred.addfile(member, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    with pytest.raises(CorpusError, match="can't download odd"):
        pip_download("odd==1.0", out)
    assert not ran.exists()
