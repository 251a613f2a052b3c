"""Puts an evaluation beside the paper's row of Table 4.

python runs/beside.py eurlex-4k OUT/evaluation.json OUT/model
"""

import json
import sys
import tomllib
from pathlib import Path


def beside(name: str, evaluation: Path, model: Path) -> str:
    paper = tomllib.loads((Path(__file__).parent / "paper.toml").read_text("utf-8"))[name]
    figures = json.loads(evaluation.read_text("utf-8"))
    ours = [100 * figures["metrics"][f"P@{k}"] for k in (1, 3, 5)]
    lines = [f"{name:<26}{'P@1':>8}{'P@3':>8}{'P@5':>8}"]
    rows = [("this run", ours)]
    rows += [(f"{method} (the paper's)", row) for method, row in reversed(paper["precision"].items())]
    lines += [f"{title:<26}" + "".join(f"{value:8.2f}" for value in row) for title, row in rows]
    trained = json.loads((model / "config.json").read_text("utf-8"))["n_documents"]
    documents = [trained, figures["documents"]]
    if documents != paper["documents"]:
        seen, theirs = (
            f"{train:,} training and {test:,} test documents" for train, test in (documents, paper["documents"])
        )
        lines.append(f"not the paper's split: {seen} here, {theirs} in its Table 1; compare with care")
    return "\n".join(lines)


if __name__ == "__main__":
    print(beside(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
