"""Guards what commands say of themselves: an example in every --help that is understood, and what to type next."""

import shlex

import pytest
import typer

from aplc.cli import app
from aplc.cli.help import EXAMPLES, GROUPS
from helpers import aplc, fails, ok, topic_rows, write_rows

ROOT = typer.main.get_command(app)
COMMANDS = {name: command for name, command in ROOT.commands.items() if name != "labels"}
COMMANDS |= dict(ROOT.commands["labels"].commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_is_one_of_this_command_and_parses(name):
    command, words = COMMANDS[name], shlex.split(EXAMPLES[name].removeprefix("Example: aplc "))
    start = ["labels", name] if name in ROOT.commands["labels"].commands else [name]
    assert words[: len(start)] == start
    command.make_context(name, words[len(start) :])  # an unknown option, or one that is missing, raises
    assert EXAMPLES[name] in ok(aplc(*start, "--help"))


def test_groups_name_options_that_exist():
    for name, groups in GROUPS.items():
        known = {parameter.name for parameter in COMMANDS[name].params}
        assert {option for options in groups.values() for option in options} <= known


def test_what_to_type_next_can_be_typed(tmp_path, monkeypatch):
    """From one file to a server, each command names the next one; standard output stays as it was."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "all records.jsonl", topic_rows(120, seed=1))
    done = aplc("split", "all records.jsonl", "--out", "my corpus")
    for expected in ("train", "evaluate", "predict"):
        assert "next:" not in done.stdout
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith(f"next: aplc {expected} ")
        done = aplc(*shlex.split(last.removeprefix("next: aplc ").replace("FILE", "'all records.jsonl'")))
        assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "next: aplc serve model"


def test_what_to_type_next_keeps_the_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"title": row["text"], "labels": row["labels"]} for row in topic_rows(60, seed=1)]
    write_rows(tmp_path / "a.jsonl", rows)
    write_rows(tmp_path / "v.jsonl", [{"label": "food", "name": "Food"}])
    given = ["--preset", "words", "--vocabulary", "v.jsonl", "--text-column", "title"]
    done = aplc("inspect", "a.jsonl", *given)
    assert done.stderr.splitlines()[-1] == f"next: aplc plan a.jsonl {' '.join(given)}"
    done = aplc("plan", "a.jsonl", *given, "--set", "words.names=off")
    kept = "--preset words --set words.names=off --vocabulary v.jsonl --text-column title"
    assert done.stderr.splitlines()[-1] == f"next: aplc train a.jsonl {kept} --out model"


def test_resume_is_advised_only_where_it_would_not_refuse(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "a.jsonl", topic_rows(60, seed=1))
    write_rows(tmp_path / "b.jsonl", topic_rows(5, seed=2))
    run = ("train", "a.jsonl", "--preset", "words", "--out", "model")
    ok(aplc(*run))
    fails(aplc(*run), "holds a run already; go on with --resume")
    fails(aplc(*run, "--more", "b.jsonl"), "what --more adds has changed since", "give --out another folder")
    write_rows(tmp_path / "a.jsonl", topic_rows(61, seed=1))
    done = aplc(*run)
    fails(done, "the corpus has changed since, so that it can't be resumed; give --out another folder")
    assert "--resume" not in done.stderr
