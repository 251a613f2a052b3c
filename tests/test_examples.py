"""Guards examples/: each script runs from end to end on its made sample, and finds what it should."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(name, folder):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", *sys.path)))}
    command = [sys.executable, ROOT / "examples" / f"{name}.py", folder, "--fast"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_subject_headings(tmp_path):
    pytest.importorskip("rdflib")
    printed = run("subject_headings", tmp_path)
    found, asked = map(int, re.search(r"(\d+) of (\d+) are among", printed).groups())
    assert asked >= 10
    assert found >= 0.8 * asked
    assert (tmp_path / "model" / "vocabulary.jsonl").exists()


@pytest.mark.slow
def test_product_categories(tmp_path):
    printed = run("product_categories", tmp_path)
    assert "$ aplc split" in printed
    with (tmp_path / "tags.csv").open(encoding="utf-8", newline="") as tags:
        rows = list(csv.DictReader(tags))
    with (tmp_path / "new.csv").open(encoding="utf-8", newline="") as new:
        wanted = [set(row["categories"].split("|")) for row in csv.DictReader(new)]
    right = sum(set(row["labels"].split(";")) == labels for row, labels in zip(rows, wanted, strict=True))
    assert right >= 0.8 * len(wanted)


def test_own_network(tmp_path):
    printed = run("own_network", tmp_path)
    assert float(re.search(r"P@1 on .*: ([\d.]+)%", printed)[1]) > 90


def test_every_script_is_described():
    described = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(re.findall(r"`(\w+\.py)`", described))
