"""What `aplc plan` says against what `aplc train` then does: parameters, peak memory, time of an epoch.

    python bench/plan.py demo/corpus                                             # preset tiny
    python bench/plan.py CORPUS --set clusters.proportions=0.25,0.25,0.25,0.25
    python bench/plan.py CORPUS --cpu-time                                       # on a machine that others use, too

Plans, trains one epoch, compares. An epoch's time is that of all of it, from the first step to the last checkpoint.
With `--cpu-time` both sides count seconds of computing instead, training steps only: other processes slow wall time
down by different factors in the minute of the plan and in that of the run. This script imports nothing large, because a
child's peak memory starts from its parent's.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

CPU_CLOCK = """
import sys, time, types
import aplc.train.loop, aplc.plan.probe
clock = types.SimpleNamespace(monotonic=time.process_time)
aplc.train.loop.time = aplc.plan.probe.time = clock
from aplc.cli import main
main()
"""


def run(arguments: list[str], cpu_time: bool) -> int:
    """Run aplc; its peak memory in bytes."""
    start = ["-c", CPU_CLOCK] if cpu_time else ["-m", "aplc"]
    process = subprocess.Popen([sys.executable, *start, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"aplc {' '.join(arguments)} failed")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def stored_parameters(path: Path) -> int:
    with path.open("rb") as stream:
        header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            total += (tensor["data_offsets"][1] - tensor["data_offsets"][0]) // 4
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    settings = [word for setting in [*args.settings, "train.epochs=1"] for word in ("--set", setting)]
    common = [args.corpus, "--preset", args.preset, *settings]
    with tempfile.TemporaryDirectory() as folder:
        out, figures = Path(folder) / "model", Path(folder) / "plan.json"
        run(["plan", *common, "--json", str(figures)], args.cpu_time)
        plan = json.loads(figures.read_text())
        peak = run(["train", *common, "--out", str(out)], args.cpu_time)
        logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        last = max((line for line in logged if "seconds" in line), key=lambda line: line["step"])
        training = last["seconds"] / last["step"] * plan["steps_per_epoch"]
        ended = max(path.stat().st_mtime for path in (out / "checkpoints").glob("*/state.json"))
        rows = [
            ("parameters", plan["parameters"]["model"], stored_parameters(out / "model.safetensors")),
            ("peak memory, MB", plan["memory_bytes"]["peak"] / 1e6, peak / 1e6),
            ("training steps, s", plan["epoch_seconds"]["training"], training),
        ]
        if not args.cpu_time:
            rows.append(("epoch, s", plan["epoch_seconds"]["total"], ended - (out / "run.json").stat().st_mtime))
    print(f"{'':<20}{'planned':>14}{'measured':>14}{'difference':>12}")
    for name, planned, measured in rows:
        digits = ",.0f" if planned > 1000 else ",.1f"
        print(f"{name:<20}{planned:>14{digits}}{measured:>14{digits}}{planned / measured - 1:>+12.1%}")


if __name__ == "__main__":
    main()
