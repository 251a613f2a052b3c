"""Guards the interpreter against the compiled code: random and spoiled inputs are computed or refused, never a crash.

`make sanitize` runs twelve thousand cases under AddressSanitizer and UndefinedBehaviorSanitizer, this some hundreds.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aplc import native
from aplc.native import loader

HERE = Path(__file__).parent
SANITIZED = HERE.parents[1] / "src/aplc/native"

compiled = pytest.mark.skipif(native.library() is None, reason="compiled code is not used: see aplc info")


def run(*arguments, **variables):
    command = [sys.executable, HERE / "hostile.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@compiled
def test_random_and_spoiled_inputs():
    assert f"{native.library().vector}: " in run("--cases", 2_000)


@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("cmake")), reason="needs gcc and cmake")
@pytest.mark.skipif(not (SANITIZED / "CMakeLists.txt").is_file(), reason="needs the C sources")
@compiled
@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path):
    for step in ["-S", SANITIZED, "-B", tmp_path, "-DSANITIZE=ON", "-DCMAKE_C_COMPILER=gcc"], ["--build", tmp_path]:
        done = subprocess.run(["cmake", *map(str, step)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    names = ["gcc", "-print-file-name=libasan.so"], ["gcc", "-print-file-name=libubsan.so"]
    preload = " ".join(subprocess.check_output(name, text=True).strip() for name in names)
    assert loader.PATH.name in os.listdir(tmp_path)
    run("--cases", 300, "--library", tmp_path / loader.PATH.name, LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")
