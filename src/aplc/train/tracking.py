"""`metrics.jsonl`: one line a logged step and one a validation, for any plotting tool.

On resume, lines of steps that will be trained again are dropped, so that the file reads as one run.
"""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aplc.files import atomic_write, naming
from aplc.machine import is_main_process

METRICS_FILE = "metrics.jsonl"


class Tracker:
    def __init__(self, run: Path, resumed_step: int) -> None:
        path = run / METRICS_FILE
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        with atomic_write(path) as out:
            out.writelines(line for line in lines if _step(line) <= resumed_step)
        self.path = path
        self.stream = (path if is_main_process() else Path(os.devnull)).open("a", encoding="utf-8")

    def log(self, step: int, **values: Any) -> None:
        with naming(self.path):
            self.stream.write(json.dumps({"step": step, **values}) + "\n")
            self.stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()


def _step(line: bytes) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):  # the line a crash cut off
        return float("inf")
