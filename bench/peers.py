"""Everything a user would pick instead, and this project, on one corpus: one table, one picture.

    python bench/peers.py CORPUS --out DIR                       # all; make bench-peers does it on PubMed-MeSH
    python bench/peers.py CORPUS --out DIR --only omikuji-bonsai --only ours --preset tiny
    python bench/peers.py CORPUS --out DIR --only pecos-xr-transformer --limit 20000    # networks: only when named

Same split, TF-IDF built once from the same text, settings at each library's documented defaults. A peer runs in a
virtual environment of its own, made from PyPI with the exact versions in `bench/peer/versions/`. What is finished in
DIR is not run again unless its code or settings changed; what could not be installed, failed or took longer than
`--limit` is reported below the table and tried again by the next call. All are scored by `aplc.evaluate`. DIR gets
peers.md, peers.json and peers.svg.

Times are wall-clock, and beside them processor time, which hardly depends on what else the machine does; the load
average before each peer is kept in peers.json.
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import aplc
from aplc.config import Config
from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.errors import AplcError, CorpusError
from aplc.evaluate import PROPENSITIES
from aplc.evaluate.options import parse_propensity
from aplc.files import digest, write_json
from peer.environments import PeerError, python_of, run_limited, versions
from peer.features import Prepared, prepare
from peer.table import load_result, score, write_all

HERE = Path(__file__).resolve().parent / "peer"
LIBRARIES: dict[str, str | None] = {
    "baseline-prior": None,
    "baseline-knn": None,
    "pecos-xlinear": "pecos",
    "omikuji-parabel": "omikuji",
    "napkinxc-plt": "napkinxc",
    "omikuji-bonsai": "omikuji",
    "omikuji-attnxml-tree": "omikuji",
    "pecos-xlinear-flat": "pecos",
    "fasttext-ova": "fasttext",
    "napkinxc-br": "napkinxc",
    "libmultilabel-tree": "libmultilabel",
    "libmultilabel-1vsrest": "libmultilabel",
    "liblinear-dismec": "liblinear",
    "libmultilabel-xml-cnn": "libmultilabel+nltk",
    "pecos-xr-transformer": "pecos+minilm",
}
"""Peers, quick ones first, and the environment each needs (none: this one)."""
NETWORKS = {"libmultilabel-xml-cnn", "pecos-xr-transformer"}
"""Run only when named: on a CPU they take hours."""
OURS = "ours"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder with train.jsonl and test.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder for results; finished peers there are kept")
    parser.add_argument(
        "--only",
        action="append",
        choices=[*LIBRARIES, OURS],
        help="run only this (finished ones stay in the table); can be repeated",
    )
    parser.add_argument("--preset", action="append", help="of ours; can be repeated (default: words)")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="change a setting of the preset")
    parser.add_argument("--limit", type=float, default=7200, help="seconds a peer may take (default: 7200)")
    parser.add_argument("--propensity", default="default", help=f"for PSP: {', '.join(PROPENSITIES)} or A,B")
    options = parser.parse_args(given)
    options.preset = options.preset or ["words"]
    return options


@dataclass(frozen=True)
class Candidate:
    name: str
    key: str
    """What its result depends on; a result with another key is made anew."""
    command: Callable[[Path], list[str]]
    """Given the folder to write to. Makes the environment if there is none."""
    wanted: bool
    """False: in the table if it is finished, not run if it isn't."""
    ours: bool = False


def code(*files: Path) -> str:
    return digest(*(file.read_text("utf-8") for file in files))


def candidates(options: argparse.Namespace, prepared: Prepared) -> list[Candidate]:
    everyone = []
    wanted = options.only or {*LIBRARIES, OURS} - NETWORKS
    for name, library in LIBRARIES.items():

        def command(folder: Path, name: str = name, library: str | None = library) -> list[str]:
            return [str(python_of(library)), str(HERE / "methods.py"), name, str(prepared.folder), str(folder)]

        files = [HERE / "methods.py", HERE / "answers.py", *([HERE / "networks.py"] if name in NETWORKS else [])]
        key = digest(prepared.key, versions(library), code(*files))
        everyone.append(Candidate(name, key, command, name in wanted))
    own_files = sorted(file for file in Path(aplc.__file__).parent.rglob("*") if file.suffix in (".py", ".c"))
    for preset in options.preset:
        config = Config.from_preset(preset).with_settings(options.settings)  # a typo should not cost an hour

        def ours(folder: Path, preset: str = preset) -> list[str]:
            call = [sys.executable, str(HERE / "ours.py"), str(options.corpus), str(prepared.folder), str(folder)]
            return [*call, preset, *options.settings]

        name = f"aplc-{Path(preset).stem}{'-set' if options.settings else ''}"  # not to be taken for the preset itself
        key = digest(prepared.key, config.to_dict(), code(HERE / "ours.py", *own_files))
        everyone.append(Candidate(name, key, ours, OURS in wanted, ours=True))
    return everyone


def finished(candidate: Candidate, folder: Path) -> dict[str, Any] | None:
    done = load_result(folder / "result.json")
    return done if done and done["key"] == candidate.key else None


def measure(candidate: Candidate, folder: Path, limit: float) -> dict[str, Any]:
    """Run the candidate; its measurements."""
    folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    run_limited(candidate.command(folder), limit, folder / "log.txt")
    measured = json.loads((folder / "measured.json").read_text("utf-8"))
    result = {
        "name": candidate.name,
        "key": candidate.key,
        "ours": candidate.ours,
        **measured,
        "load_before": load,
    }
    write_json(folder / "result.json", result)
    return result


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    try:
        corpus, propensity = Corpus.open(options.corpus), parse_propensity(options.propensity)
        if corpus.is_file:
            raise CorpusError(f"{corpus.path}: has no test part; give a folder with train and test files")
        screen = Screen()
        prepared = prepare(corpus, options.out / "features")
        plan = candidates(options, prepared)
    except (AplcError, OSError) as error:  # OSError: an --out that can't be written
        print(f"bench/peers.py: {error}", file=sys.stderr)
        sys.exit(2)
    about = {
        "corpus": str(options.corpus),
        "settings": options.settings,
        "machine": f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}",
        "n_train": prepared.n_train,
        "n_test": prepared.n_test,
        "n_labels": len(prepared.labels),
        "tfidf_seconds": prepared.seconds,
        "propensity": PROPENSITIES[propensity] if isinstance(propensity, str) else propensity,
    }
    results, failed, text = [], {}, ""
    for candidate in plan:
        folder = options.out / candidate.name
        result = finished(candidate, folder)
        took = "done before"
        if result is None and not candidate.wanted:
            continue
        if result is None:
            screen.say(f"{candidate.name} ...")
            try:
                result = measure(candidate, folder, options.limit)
                took = f"trained in {result['train_seconds']:.1f} s"
            except (PeerError, OSError) as error:  # OSError: no room, or a cache that can't be written
                failed[candidate.name] = str(error)
                screen.say(f"{candidate.name}: {error}")
        if result:
            results.append(result | score(prepared, folder / "topk.npz", propensity))
            screen.say(f"{candidate.name}: P@5 {100 * results[-1]['metrics']['P@5']:.2f}, {took}")
        text = write_all(options.out, results, failed, about)  # after every peer: a run that is stopped leaves a table
    print(text, end="")


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the running peer ends too
        if signal.getsignal(ending) != signal.SIG_IGN:  # nohup
            signal.signal(ending, lambda number, _: sys.exit(128 + number))
    main()
