"""Training with aplc against the same model trained through `transformers`: documents a second and peak memory.

    python bench/training.py                            # all: about five minutes on an idle machine with two cores
    python bench/training.py --labels 1000 100000       # other label counts
    python bench/training.py --svg docs/pictures/training-scale.svg
    python bench/training.py --cpu-time                 # on a machine that others use, too

The model is an XLNet of 4 layers x 256 with random weights, a hidden layer and an output layer. `aplc` trains it as
`aplc train` does: batches of like length, label clusters (4 of equal size, q = 2), AdamW, clipping. `transformers` is
what one would write: `XLNetModel`, a flat `nn.Linear` to all labels, `BCEWithLogitsLoss` on multi-hot targets, every
text padded to the limit, AdamW, clipping. Texts are those of PubMed-MeSH with their real lengths.

The first table has its real labels too, and both take turns step by step in one process. The second has Zipf labels,
1,000 to 1,000,000 of them; each run is a process of its own, so that its peak memory can be read off, and the two
kinds take turns. Before a run starts its need is estimated; what would not fit is left out and said.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from aplc.config import Config
from aplc.console import Screen
from aplc.data.batches import Batches, Collator, prefetch
from aplc.data.cache import DocumentCache
from aplc.data.corpus import Corpus
from aplc.data.labels import LabelSet
from aplc.data.samples import write_pubmed_mesh
from aplc.data.source import Source, read_training_data
from aplc.data.tokenizer import Tokenizer
from aplc.files import cache_root
from aplc.models.network import TaggingModel
from aplc.nn.encoder import build_encoder
from aplc.nn.partition import Partition
from aplc.plan.probe import WARMUP, memory_at_hand, spread_batches
from aplc.train.checkpoint import Progress
from aplc.train.loop import train_step
from aplc.train.network import TrainingRun
from aplc.train.optim import Optimizers
from aplc.train.prepare import choose_tokenizer, tokenize

SETTINGS = [
    *("model.encoder=new", "model.layers=4", "model.width=256", "model.heads=4", "model.inner_width=1024"),
    *("model.hidden_width=256", "data.max_length=128", "data.vocab_size=8000", "train.batch_size=32"),
]
CONFIG = Config().with_settings(SETTINGS)
BATCH, LENGTH, WIDTH = CONFIG.train.batch_size, CONFIG.data.max_length, CONFIG.model.hidden_width
LABELS = (1_000, 10_000, 100_000, 1_000_000)
LABELS_EACH = 5
SAMPLE = "sample.npz"
DOCUMENTS = 1_600  # a pool of 50 batches, sorted by length together
KINDS = ("aplc", "transformers")
Step = Callable[[], int]


def write_sample(corpus: Path | None, folder: Path) -> dict[str, Any]:
    """Tokenizer, tokens and labels of some documents, for all runs alike."""
    if corpus is None:
        corpus = cache_root() / "bench" / "pubmed-mesh"
        if not (corpus / "train.jsonl").is_file():
            write_pubmed_mesh(corpus)
    source, screen = Source.from_corpus(Corpus.open(corpus)), Screen(quiet=True)
    data = read_training_data(source, CONFIG.data, CONFIG.train.seed, screen)
    tokenizer = choose_tokenizer(source, CONFIG.data, CONFIG.model, data.n_characters, screen)
    cache = tokenize(source, "train", tokenizer, data.labels, screen)
    chosen = np.random.default_rng(0).permutation(len(cache))[:DOCUMENTS]
    tokens, labels = zip(*map(cache.document, chosen), strict=True)
    tokenizer.save(folder)
    np.savez(
        folder / SAMPLE,
        items=np.concatenate(tokens),
        offsets=np.cumsum([0, *map(len, tokens)]),
        label_ids=np.concatenate(labels),
        label_offsets=np.cumsum([0, *map(len, labels)]),
    )
    lengths = np.minimum([len(own) + tokenizer.template.size for own in tokens], LENGTH)
    return {"n_labels": len(data.labels), "mean_length": float(lengths.mean())}


def load_sample(folder: Path, about: dict[str, Any], n_labels: int) -> tuple[DocumentCache, Tokenizer]:
    """The sample; with Zipf labels unless `n_labels` is the corpus' own."""
    arrays = dict(np.load(folder / SAMPLE))
    if n_labels != about["n_labels"]:
        rng = np.random.default_rng(1)
        size = (len(arrays["offsets"]) - 1) * LABELS_EACH
        arrays["label_ids"] = (np.exp(rng.random(size) * np.log(n_labels)) - 1).astype(np.int32)
        arrays["label_offsets"] = np.arange(0, size + 1, LABELS_EACH)
    return DocumentCache(**arrays), Tokenizer.load(folder)


def aplc_step(cache: DocumentCache, tokenizer: Tokenizer, n_labels: int, steps: int) -> Step:
    partition = Partition.from_proportions(n_labels, (0.25,) * 4)
    encoder = build_encoder(CONFIG.model, vocab_size=tokenizer.vocab_size, max_length=LENGTH)
    model = TaggingModel(encoder, tokenizer, CONFIG, n_labels=n_labels, cutoffs=partition.cutoffs).train()
    batches = Batches(cache, np.arange(len(cache)), model.collator, BATCH, 0)
    run = TrainingRun(
        network=model,
        optimizers=Optimizers.for_tagging(model, CONFIG.train),
        steps=CONFIG.train,
        progress=Progress(),
        out=Path("unused"),
        screen=Screen(quiet=True),
        config=CONFIG,
        labels=LabelSet((), np.empty(0, dtype=np.int64)),  # for validation, which is not measured
        n_documents=len(cache),
        train=batches,
        valid=cache,
        valid_rows=np.arange(0),
    )
    spread = spread_batches(batches, steps)
    stream = prefetch(batches.batch, chain(spread[:WARMUP], spread))

    def step() -> int:
        batch = next(stream)
        train_step(run, batch, 1.0)
        return len(batch)

    return step


def transformers_step(cache: DocumentCache, tokenizer: Tokenizer, n_labels: int, steps: int) -> Step:
    import transformers

    sizes, collate = CONFIG.model, Collator(tokenizer.template, LENGTH)
    body = transformers.XLNetModel(
        transformers.XLNetConfig(
            vocab_size=tokenizer.vocab_size,
            d_model=sizes.width,
            n_layer=sizes.layers,
            n_head=sizes.heads,
            d_inner=sizes.inner_width,
            dropout=sizes.dropout,
        )
    )
    hidden, output = nn.Linear(sizes.width, WIDTH), nn.Linear(WIDTH, n_labels)
    model = nn.ModuleList([body, hidden, output]).train()
    rates = zip((body, hidden, output), (CONFIG.train.lr_encoder, CONFIG.train.lr_hidden, CONFIG.train.lr_clusters))  # noqa: B905
    optimizer = torch.optim.AdamW([{"params": m.parameters(), "lr": lr} for m, lr in rates], weight_decay=0.0)
    criterion = nn.BCEWithLogitsLoss()
    shuffled = _shuffled(len(cache))

    def step() -> int:
        rows = [next(shuffled) for _ in range(BATCH)]
        batch = collate(*zip(*map(cache.document, rows), strict=True))
        missing = LENGTH - batch.input_ids.shape[1]
        ids = nn.functional.pad(batch.input_ids, (missing, 0), value=collate.template.pad)
        mask, types = (nn.functional.pad(x, (missing, 0)) for x in (batch.attention_mask, batch.token_type_ids))
        targets = torch.zeros(BATCH, n_labels + 1)
        targets.scatter_(1, batch.labels.where(batch.labels >= 0, n_labels), 1.0)  # padding goes to an extra column
        states = body(ids, attention_mask=mask, token_type_ids=types, use_mems=False).last_hidden_state[:, -1]
        logits = output(nn.functional.dropout(hidden(states).tanh(), sizes.hidden_dropout))
        optimizer.zero_grad()
        criterion(logits, targets[:, :-1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CONFIG.train.clip_norm)
        optimizer.step()
        return BATCH

    return step


def _shuffled(n: int) -> Iterator[int]:
    rng = np.random.default_rng(0)
    return chain.from_iterable(rng.permutation(n).tolist() for _ in repeat(None))


def build(kind: str, sample: Path, about: dict[str, Any], n_labels: int, steps: int) -> Step:
    torch.manual_seed(0)
    cache, tokenizer = load_sample(sample, about, n_labels)
    make = aplc_step if kind == "aplc" else transformers_step
    return make(cache, tokenizer, n_labels, steps)


def timed(step: Step, cpu_time: bool) -> tuple[int, float]:
    clock = time.process_time if cpu_time else time.perf_counter
    began = clock()
    n = step()
    return n, clock() - began


def taking_turns(sample: Path, about: dict[str, Any], steps: int, cpu_time: bool) -> dict[str, float]:
    """Documents a second of both, step by step in one process. Means: aplc's batches differ in length by design."""
    runs = {kind: build(kind, sample, about, about["n_labels"], steps) for kind in KINDS}
    done = {kind: [0, 0.0] for kind in KINDS}
    for i in range(steps + WARMUP):
        for kind, step in runs.items():
            n, seconds = timed(step, cpu_time)
            if i >= WARMUP:
                done[kind][0] += n
                done[kind][1] += seconds
    return {kind: n / seconds for kind, (n, seconds) in done.items()}


def child(
    kind: str, n_labels: int, sample: Path, about: dict[str, Any], steps: int, cpu_time: bool
) -> dict[str, float]:
    """A run of its own: documents a second and the process' peak memory."""
    step = build(kind, sample, about, n_labels, steps)
    runs = [timed(step, cpu_time) for _ in range(steps + WARMUP)][WARMUP:]
    rate = sum(n for n, _ in runs) / sum(seconds for _, seconds in runs)
    per_step = statistics.median(seconds for _, seconds in runs)
    return {"documents_per_second": rate, "step_seconds": per_step, "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """This process' peak. `getrusage` would include the parent's memory at the moment of the fork."""
    status = Path("/proc/self/status")
    if status.is_file():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def need(kind: str, n_labels: int) -> float:
    """Bytes a run will take, roughly: weights, gradients, moments; a flat layer's logits, targets and their like."""
    if kind == "transformers":
        return 1.5e9 + 16 * WIDTH * n_labels + 6 * 4 * BATCH * n_labels
    return 1.5e9 + 16 * Partition.from_proportions(n_labels, (0.25,) * 4).parameters(WIDTH)


def in_child(
    kind: str, n_labels: int, sample: Path, about: dict[str, Any], steps: int, cpu_time: bool
) -> dict[str, float] | None:
    room = 0.9 * memory_at_hand()[0]
    if need(kind, n_labels) > room:
        print(
            f"  {kind} with {n_labels:,} labels left out: needs {need(kind, n_labels) / 1e9:.1f} GB of {room / 1e9:.1f}"
        )
        return None
    task = {"kind": kind, "n_labels": n_labels, "sample": str(sample), "about": about}
    text = json.dumps(task | {"steps": steps, "cpu_time": cpu_time})
    done = subprocess.run([sys.executable, __file__, "--child", text], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"  {kind} with {n_labels:,} labels failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}")
        return None
    return json.loads(done.stdout.splitlines()[-1])


def table(results: dict[int, dict[str, dict[str, float] | None]]) -> None:
    print(f"{'labels':>10}{'documents a second':>36}{'peak memory, GB':>36}")
    print(f"{'':>10}" + f"{'aplc':>12}{'transformers':>14}{'ratio':>10}" * 2)
    for n_labels, kinds in results.items():
        ours, theirs = (kinds[kind] for kind in KINDS)
        cells = ""
        for key, scale, fmt in (("documents_per_second", 1.0, ",.1f"), ("peak_bytes", 1e-9, ",.2f")):
            a, b = (None if x is None else x[key] * scale for x in (ours, theirs))
            cells += f"{'-' if a is None else format(a, fmt):>12}{'-' if b is None else format(b, fmt):>14}"
            cells += f"{'-' if a is None or b is None else format(a / b, '.2f'):>10}"
        print(f"{n_labels:>10,}{cells}")


def draw(results: dict[int, dict[str, dict[str, float] | None]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    panels = (("documents_per_second", 1.0, "documents a second"), ("peak_bytes", 1e-9, "peak memory, GB"))
    for axis, (key, scale, title) in zip(axes, panels, strict=True):
        for kind, marker in zip(KINDS, "os", strict=True):
            points = [(n, found[key] * scale) for n, kinds in results.items() if (found := kinds[kind])]
            if points:
                axis.plot(*zip(*points, strict=True), marker=marker, label=kind)
        axis.set(xscale="log", yscale="log", xlabel="labels", title=title)
        axis.grid(alpha=0.3, which="both")
        axis.legend(frameon=False)
    figure.savefig(path)
    print(f"picture: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="PubMed-MeSH as `aplc data` writes it; fetched if not given")
    parser.add_argument("--labels", type=int, nargs="*", default=list(LABELS))
    parser.add_argument("--steps", type=int, default=12, help="of each in the first table; half of it in the second")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--cpu-time", action="store_true", help="CPU time of one thread, for a machine others use, too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        task = json.loads(args.child)
        if task["cpu_time"]:
            torch.set_num_threads(1)
        print(json.dumps(child(**task | {"sample": Path(task["sample"])})))
        return
    if args.cpu_time:
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder)
        about = write_sample(args.corpus, sample)
        speed = "CPU time of one thread" if args.cpu_time else f"{torch.get_num_threads()} threads"
        print(
            f"PubMed-MeSH, {about['n_labels']:,} labels, batch {BATCH}, texts of {about['mean_length']:.0f} tokens on "
            f"average up to {LENGTH}, {speed}"
        )
        rates = taking_turns(sample, about, args.steps, args.cpu_time)
        print(
            f"  taking turns: {', '.join(f'{kind} {rate:.1f}' for kind, rate in rates.items())} documents a second, "
            f"{rates['aplc'] / rates['transformers']:.2f} times as many"
        )
        results: dict[int, dict[str, dict[str, float] | None]] = {}
        for n_labels in [about["n_labels"], *args.labels]:
            steps = max(3, args.steps // 2)
            results[n_labels] = {kind: in_child(kind, n_labels, sample, about, steps, args.cpu_time) for kind in KINDS}
        real = {about["n_labels"]: results.pop(about["n_labels"])}
        print("\nits own labels, a process each")
        table(real)
        print("\nZipf labels, a process each")
        table(results)
        if args.svg and results:
            draw(results, args.svg)


if __name__ == "__main__":
    main()
