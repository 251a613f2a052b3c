"""Guards the Makefile's part in compiled code: the cure that `aplc info` names, `make install`, does compile."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not ((ROOT / "Makefile").is_file() and shutil.which("make")), reason="needs make and a clone"
)


@pytest.fixture
def clone(tmp_path):
    """What `make install` left where there was no compiler; and a PATH with make and a shell alone."""
    native = tmp_path / "clone/src/aplc/native"
    native.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / "clone")
    (tmp_path / "clone/.venv").mkdir()
    (tmp_path / "clone/.venv/.core").touch()
    (tmp_path / "bin").mkdir()
    for name in ("make", "sh"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    return tmp_path / "clone"


def installs_again(clone):
    environment = os.environ | {"PATH": str(clone.parent / "bin")}
    done = subprocess.run(
        ["make", "-n", "install"], cwd=clone, env=environment, capture_output=True, text=True, check=True
    )
    return "installing aplc" in done.stdout


def test_a_compiler_that_came_later_is_used(clone):
    assert not installs_again(clone)
    (clone.parent / "bin/gcc").symlink_to("/bin/true")
    assert installs_again(clone)
    (clone / "src/aplc/native/_native.so").touch()
    assert not installs_again(clone)
