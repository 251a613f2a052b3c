"""Guards what a person sees while waiting: on a terminal something moves from the start, elsewhere nothing does."""

import os
import pty
import subprocess
import sys

from helpers import aplc

TRAIN = ["train", "--preset", "words"]


def on_a_terminal(*arguments):
    """What a command writes where standard error is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "aplc", *map(str, arguments)]
    running = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 1 << 16):
            written += block
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(ours)
    assert running.wait(60) == 0, written
    return written.decode()


def test_something_moves_on_a_terminal_from_the_start(corpus, tmp_path):
    written = on_a_terminal(*TRAIN, corpus, "--out", tmp_path / "model")
    shown = ["starting", "counting labels", "reading train", "solving", "calibrating"]
    places = [written.find(what) for what in shown]
    assert -1 not in places
    assert places == sorted(places)
    assert written.rstrip().splitlines()[-1].startswith("next: aplc evaluate ")


def test_nothing_moves_elsewhere(corpus, tmp_path):
    done = aplc(*TRAIN, corpus, "--out", tmp_path / "model")
    assert done.returncode == 0
    assert not set("\r\x1b━") & set(done.stdout + done.stderr)
    assert "starting" not in done.stderr
