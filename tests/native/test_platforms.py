"""Guards other processors: kernels compiled for aarch64 and run by qemu find what those of this one do, to rounding."""

import shutil
import subprocess
from pathlib import Path

import pytest

from aplc.native import loader

HERE = Path(__file__).parent
NATIVE = Path(loader.__file__).parent
CROSS, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64"

pytestmark = pytest.mark.skipif(
    not (shutil.which("gcc") and (NATIVE / "sweep.c").is_file()), reason="needs gcc and the C sources"
)


def run(tmp_path, compiler, variant, *options, emulator=()):
    program = tmp_path / variant
    sources = [HERE / "portable.c", *(NATIVE / name for name in loader.KERNEL_FILES)]
    flags = ["-std=gnu11", "-O3", "-static", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", f"-DVARIANT={variant}"]
    subprocess.run([compiler, *flags, *options, "-I", NATIVE, "-o", program, *sources, "-lm"], check=True)
    return subprocess.check_output([*emulator, program], text=True, timeout=120)


def assert_same(found, expected):
    lines = list(zip(found.splitlines(), expected.splitlines(), strict=True))
    assert len(lines) > 25
    for one, other in lines:
        name, *values = one.split()
        assert other.split()[0] == name
        assert [float(value) for value in values] == pytest.approx([float(v) for v in other.split()[1:]], rel=2e-4), (
            name
        )


@pytest.mark.skipif(not (shutil.which(CROSS) and shutil.which(QEMU)), reason=f"needs {CROSS} and {QEMU}")
def test_neon_finds_the_same(tmp_path):
    assert_same(run(tmp_path, CROSS, "neon", emulator=[QEMU]), run(tmp_path, "gcc", "baseline"))


@pytest.mark.skipif(not shutil.which("clang"), reason="needs clang")
def test_clang_finds_the_same(tmp_path):
    assert_same(run(tmp_path, "clang", "clangs"), run(tmp_path, "gcc", "baseline"))
