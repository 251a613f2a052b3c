"""Installs the sdist and the wheel of a folder into empty environments outside the clone, and uses each.

    python .ci/release_check.py dist [--only wheel] [--python python3.13]

The wheel must do without a compiler: its programs run with nothing on PATH but the environment's own. Used are: `aplc
info`, README's Python examples, the loss of the output layer with compiled code and without, a training of some seconds
and a prediction, of words and of a network; and the last again with APLC_NATIVE=0.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 5_000_000
"""Bytes of a wheel."""
LOSS = """
import sys
import torch
from aplc import LabelClusters
torch.manual_seed(0)
layer, hidden = LabelClusters(64, [500], 3000), torch.randn(8, 64, requires_grad=True)
loss = layer(hidden, torch.randint(0, 3000, (8, 4)))
loss.backward()
torch.save((loss.detach(), hidden.grad, layer.head.weight.grad), sys.argv[1])
"""
SAME = """
import torch
for one, other in zip(torch.load("with.pt"), torch.load("without.pt"), strict=True):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
"""
SMALL = ["--preset", "tiny", "--set", "data.vocab_size=300", "--set", "train.epochs=2", "--set", "train.batch_size=16"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=["sdist", "wheel"])
    parser.add_argument("--python", default=sys.executable)
    arguments = parser.parse_args()
    (wheel,), (sdist,) = (list(arguments.folder.resolve().glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    check_contents(wheel)
    for name, path in {"wheel": wheel, "sdist": sdist}.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix=f"aplc-{name}-") as folder:
                check(path, Path(folder), arguments.python)
            print(f"{path.name}: good", flush=True)


def check_contents(wheel: Path) -> None:
    """Small, with the library, and without a path of the machine that built it."""
    assert wheel.stat().st_size < LIMIT, f"{wheel}: {wheel.stat().st_size:,} bytes"
    assert "linux_" not in wheel.name or "manylinux" in wheel.name, f"{wheel}: not checked by auditwheel"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            for place in (str(ROOT), str(Path.home()), sys.prefix):
                assert place.encode() not in content, f"{wheel}: {name} has {place}"
        assert "aplc/native/_native.so" in archive.namelist()


def check(package: Path, folder: Path, python: str) -> None:
    """Install one of them and use it."""
    bin_ = folder / "env" / "bin"
    subprocess.run([python, "-m", "venv", folder / "env"], check=True)
    install = [bin_ / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", ROOT / "constraints.txt", package], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "APLC_", "CC"))}
    clean |= {"PATH": str(bin_), "APLC_CACHE": str(folder / "cache")}

    def run(*command: str, **variables: str) -> str:
        done = subprocess.run(
            [bin_ / command[0], *command[1:]],
            cwd=folder,
            env=clean | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    facts = json.loads(run("aplc", "info", "--json"))
    assert facts["native"]["used"], facts
    print(run("aplc", "info"))
    assert not json.loads(run("aplc", "info", "--json", APLC_NATIVE="0"))["native"]["used"]
    run("python", "-c", LOSS, "with.pt")
    run("python", "-c", LOSS, "without.pt", APLC_NATIVE="0")
    run("python", "-c", SAME)
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL):
        run("python", "-c", example)
    write_corpus(folder / "corpus.jsonl")
    for switch in {}, {"APLC_NATIVE": "0"}:
        for name, settings in {"words": ["--preset", "words"], "network": SMALL}.items():
            model = f"{name}{len(switch)}"
            run("aplc", "train", "corpus.jsonl", "--out", model, *settings, **switch)
            run("aplc", "predict", model, "corpus.jsonl", "--out", "tags.jsonl", "--top-k", "1", **switch)
            assert len((folder / "tags.jsonl").read_text("utf-8").splitlines()) == 300


def write_corpus(path: Path) -> None:
    rng = random.Random(0)
    topics = {"animals": "cat dog horse fur paw bark", "food": "bread cheese apple soup cook eat"}
    with path.open("w", encoding="utf-8") as out:
        for _ in range(300):
            label = rng.choice(list(topics))
            row = {"text": " ".join(rng.choices(topics[label].split(), k=8)), "labels": [label]}
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
