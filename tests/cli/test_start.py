"""Guards how long commands take to start: what they don't use is not imported."""

import json
import subprocess
import sys

import pytest

from helpers import aplc, environment, ok

CODE = """
import json, sys
from aplc.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps([name for name in sys.modules if "." not in name]), file=sys.stderr)
"""
HEAVY = {"torch", "transformers", "sklearn", "scipy", "numpy", "matplotlib", "tokenizers", "fastapi", "huggingface_hub"}


def imported(*arguments):
    """Packages that a command imports, in a process of its own."""
    alone = [sys.executable, "-c", CODE, *map(str, arguments)]
    done = subprocess.run(alone, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["predict", "--help"], ["labels", "add", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    assert not imported(*arguments) & HEAVY


def test_the_package_imports_nothing_heavy_and_has_all_that_it_names():
    code = "import sys, aplc; print(*sys.modules); print(*(getattr(aplc, name) for name in dir(aplc)))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    before, found = done.stdout.splitlines()
    assert not set(before.split()) & HEAVY
    for name in ("IndicatorTagger", "LabelClusters", "Partition", "Tagger"):
        assert f".{name}'>" in found


def test_info_imports_torch_and_what_compiled_code_takes():
    assert imported("info", "--json") & HEAVY <= {"torch", "numpy", "scipy"}


def test_predicting_with_words_does_not_import_transformers(corpus, tmp_path):
    ok(aplc("train", corpus, "--preset", "words", "--out", tmp_path / "model"))
    found = imported("predict", tmp_path / "model", corpus / "test.jsonl", "--out", tmp_path / "tags.jsonl")
    assert (tmp_path / "tags.jsonl").is_file()
    assert not found & {"transformers", "matplotlib", "fastapi", "huggingface_hub"}
