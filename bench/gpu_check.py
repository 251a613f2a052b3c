"""Everything that runs on a GPU, beside the CPU: for the first people who have one. About ten minutes.

    make gpu-check                                      # on the GPU that is found; GPU_CHECK="--device cuda:1"
    python bench/gpu_check.py demo/abstracts --out gpu-report

writes `gpu-report.txt` and `gpu-report.json`, to be sent back whatever they say. A check that fails does not stop the
others; its traceback is in the report. Limits are for rounding: a GPU adds in another order than a CPU, and not in the
same order every time. `--quick` has sizes for trying the script itself (`--device cpu` where there is no GPU).
"""

import argparse
import contextlib
import copy
import json
import platform
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from aplc import LabelClusters
from aplc.config import Config
from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.data.formats import BadRows
from aplc.data.source import Source
from aplc.evaluate.run import evaluate
from aplc.files import write_json
from aplc.nn.device import choose_device, using_device
from aplc.nn.encoder import build_encoder
from aplc.predict.explain import explain
from aplc.predict.search import predict_texts
from aplc.pretrain.config import PretrainConfig
from aplc.pretrain.prepare import open_texts
from aplc.pretrain.run import pretrain
from aplc.store.folder import load_tagger, save_tagger
from aplc.train import loop
from aplc.train.relabel import add_labels
from aplc.train.run import train
from aplc.version import __version__

Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    documents: int  # that a training run reads
    tested: int
    shapes: dict[str, tuple[int, list[int], int]]  # width, cut-offs and labels of label clusters
    network: list[str]  # settings of training runs
    base: list[str]  # settings of the encoder whose speed is measured
    tokens: int
    repeats: int


SMALL = ["model.layers=1", "model.width=32", "model.heads=2", "model.inner_width=64", "model.hidden_width=32"]
QUICK = Sizes(256, 50, {"small": (64, [100], 300)}, network=SMALL, base=SMALL, tokens=16, repeats=1)
SHAPES = {"eurlex-4k": (768, [1978], 3956), "amazon-670k": (512, [167523, 335046, 502568], 670091)}
BASE = ["model.layers=12", "model.width=768", "model.heads=12", "model.inner_width=3072"]
FULL = Sizes(6400, 500, SHAPES, network=[], base=BASE, tokens=512, repeats=10)
SAME = ["model.dropout=0", "model.hidden_dropout=0", "train.precision=float32", "train.lr_encoder=2e-4"]
"""Without chance, and at a rate at which rounding does not grow."""


class Check:
    """The corpus, the device, and what is needed by several checks."""

    def __init__(self, corpus: Path, device: str, sizes: Sizes, folder: Path) -> None:
        self.corpus, self.device, self.sizes, self.folder = corpus, device, sizes, folder

    def both(self, do: Callable[[str], Any]) -> list[Any]:
        """On the CPU, "here", and on the device, "there"."""
        found = []
        for where, device in (("here", "cpu"), ("there", self.device)):
            with using_device(device):
                found.append(do(where))
        return found

    def train(self, name: str, settings: list[str], **options: Any) -> tuple[Path, float]:
        """A run of the preset tiny; the folder, and its seconds."""
        settings = [f"train.max_documents={self.sizes.documents}", *self.sizes.network, *settings]
        config = Config.from_preset("tiny").with_settings([*settings, "data.validation=0.05"])
        began = time.monotonic()
        train(Source.from_corpus(Corpus.open(self.corpus)), config, self.folder / name, **options)
        return self.folder / name, time.monotonic() - began

    # The checks; each raises AssertionError, or gives its figures.

    def clusters(self) -> Figures:
        """Loss, gradients and top-k of the output layer, in float32 and in bfloat16, and their time."""
        figures: Figures = {}
        for name, (width, cutoffs, n_labels) in self.sizes.shapes.items():
            torch.manual_seed(0)
            layer = LabelClusters(width, cutoffs, n_labels, bias=True)
            hidden, labels = torch.randn(32, width), torch.randint(0, n_labels, (32, 5))
            there = copy.deepcopy(layer).to(self.device)
            exact, found = _gradients(layer, hidden, labels), _gradients(there, hidden, labels)
            figures[name] = {"float32 off by": _limit(_distance(exact, found), 1e-4)}
            if loop.uses_bfloat16(torch.device(self.device)):
                rounded = _gradients(there, hidden, labels, bfloat16=True)
                figures[name]["bfloat16 off by"] = _limit(_distance(exact, rounded), 1e-2)
            ids = [net.topk(hidden.to(net.head.weight.device)).ids.cpu() for net in (layer, there)]
            figures[name]["other top 5"] = _limit(float((ids[0] != ids[1]).float().mean()), 0.01)
            for where, net in (("CPU", layer), (self.device, there)):
                figures[name][f"ms on {where}"] = 1000 * self.seconds(partial(_gradients, net, hidden, labels))
        return figures

    def encoder(self) -> Figures:
        """States and gradients of XLNet: texts cut, with memory, and in windows."""
        figures = {}
        settings = ["model.dropout=0", "model.checkpoint_activations=true"]
        config = Config.from_preset("tiny").with_settings(settings)
        ids, mask = torch.randint(5, 90, (4, 40)), torch.ones(4, 40, dtype=torch.int64)
        mask[1, :30] = 0
        for long_text in ("truncate", "memory", "windows"):
            torch.manual_seed(0)
            length = 40 if long_text == "truncate" else 16
            here = build_encoder(config.model, vocab_size=100, long_text=long_text, max_length=length)
            states = []
            for net in (here, copy.deepcopy(here).to(self.device)):
                device = next(net.parameters()).device
                found = net(ids.to(device), mask.to(device), torch.zeros_like(ids, device=device))
                found.square().sum().backward()
                own = {name: p.grad.cpu() for name, p in net.named_parameters() if p.grad is not None}
                states.append(own | {"states": found.detach().cpu()})
            figures[f"{long_text} off by"] = _limit(_distance(*states), 1e-3)
        return figures

    def training(self) -> Figures:
        """The same run on both, in float32 and without dropout."""
        runs = self.both(lambda where: self.train(f"train-{where}", SAME))
        here, there = (path for path, _ in runs)
        off = [abs(a - b) / a for a, b in zip(_losses(here), _losses(there), strict=True)]
        figures: Figures = {"losses off by": _limit(max(off), 1e-2)}
        scores = [load_tagger(path).held_out["metrics"]["P@5"] for path in (here, there)]
        return figures | {"held out P@5": scores, "seconds": [seconds for _, seconds in runs]}

    def bfloat16(self) -> Figures:
        """A run as users start it: precision chosen, dropout on; its scores beside float32's."""
        found = {}
        with using_device(self.device):
            for precision in ("float32", "auto"):
                path, seconds = self.train(f"precision-{precision}", [f"train.precision={precision}"])
                found[precision] = (load_tagger(path).held_out or {})["metrics"]["P@1"], seconds
            used = loop.uses_bfloat16(torch.device(self.device))
        _limit(abs(found["auto"][0] - found["float32"][0]), 0.05)
        return {"bfloat16 is used": used} | {name: f"P@1 {s:.4f}, {t:.1f} s" for name, (s, t) in found.items()}

    def resuming(self) -> Figures:
        """A run with dropout that dies and goes on ends as one that did not die."""
        settings, step = ["train.checkpoint_steps=5", "train.precision=float32"], loop.train_step
        with using_device(self.device):
            whole, _ = self.train("whole", settings)

            def dying(running: Any, batch: Any, rate: float) -> float:
                if running.progress.step == 7:
                    raise InterruptedError
                return step(running, batch, rate)

            with contextlib.suppress(InterruptedError), mock.patch.object(loop, "train_step", dying):
                self.train("parts", settings)
                raise AssertionError("the run ended before it could die")
            parts, _ = self.train("parts", settings, resume=True)
        off = [abs(a - b) / a for a, b in zip(_losses(whole), _losses(parts), strict=True)]
        return {"losses off by": _limit(max(off), 1e-2)}

    def using(self) -> Figures:
        """Tags, figures, explanations and added labels of the model that was trained on the CPU."""
        corpus = Corpus.open(self.corpus)
        texts = [document.text for document in islice(corpus.documents("test"), self.sizes.tested)]
        rows = list(islice(corpus.documents("train"), 40))
        for row in rows[:10]:
            row.labels.append("a new label")

        def use(where: str) -> Figures:
            trained = load_tagger(self.folder / "train-here")
            began = time.monotonic()
            ids, probs = predict_texts(trained.model, texts, 5)
            seconds = time.monotonic() - began
            scores = evaluate(trained, islice(corpus.documents("test"), self.sizes.tested)).metrics.result()["P@5"]
            words = [part.effect for part in explain(trained, texts[0][:300], trained.labels.names[0]).parts]
            larger = add_labels(trained, rows, ["a new label"])
            save_tagger(larger, self.folder / f"added-{where}")
            added = predict_texts(larger.model, texts, 5)[1]
            return {"ids": ids, "probs": probs, "P@5": scores, "words": words, "seconds": seconds, "added": added}

        here, there = self.both(use)
        figures = {"other top 5": _limit(float((here["ids"] != there["ids"]).mean()), 0.01)}
        for name in ("probs", "words", "added"):
            figures[f"{name} off by"] = _limit(np.abs(np.subtract(here[name], there[name])).max(), 1e-2)
        return figures | {"P@5": [here["P@5"], there["P@5"]], "seconds": [here["seconds"], there["seconds"]]}

    def both_kinds(self) -> Figures:
        """Words on the CPU and a network on the device, blended."""
        with using_device(self.device):
            path, seconds = self.train("both", ["model.kind=both"])
            documents = islice(Corpus.open(self.corpus).documents("test"), self.sizes.tested)
            return {"P@5": evaluate(load_tagger(path), documents).metrics.result()["P@5"], "seconds": seconds}

    def pretraining(self) -> Figures:
        """A few steps of permutation language modelling, with memory, on the tokens of `training`."""
        settings = ["model.layers=2", "model.width=64", "model.heads=2", "model.inner_width=128", "model.dropout=0"]
        settings += [
            f"data.tokenizer={self.folder / 'train-here'}",
            "data.max_length=64",
            "data.memory=16",
            "train.batch_size=4",
        ]
        settings += ["train.steps=20", "train.warmup_steps=5", "train.evaluate_steps=10", "train.lr=1e-3"]
        config = PretrainConfig.from_preset("mini").with_settings(settings)

        def run(where: str) -> float:
            out = self.folder / f"pretrain-{where}"
            pretrain(open_texts(self.corpus, BadRows()), config, out)
            return _losses(out)[-1]

        losses = self.both(run)
        return {"losses": losses, "off by": _limit(abs(losses[0] - losses[1]) / losses[0], 1e-2)}

    def speed(self) -> Figures:
        """Forward and backward of a base-size encoder on 8 texts, and the memory at its peak."""
        config, figures = Config.from_preset("tiny").with_settings(self.sizes.base), {}
        device = torch.device(self.device)
        net = build_encoder(config.model, vocab_size=32000, max_length=self.sizes.tokens).to(device)
        ids = torch.randint(5, 90, (8, self.sizes.tokens), device=device)
        mask, types = torch.ones_like(ids), torch.zeros_like(ids)

        def step(precision: str) -> None:
            net.zero_grad()
            with loop.autocast(device, precision):
                states = net(ids, mask, types)
            states.float().square().sum().backward()

        for precision in ("float32", "auto"):
            figures[f"texts a second, {precision}"] = len(ids) / self.seconds(partial(step, precision))
        if device.type != "cpu":
            figures["memory, GB"] = torch.accelerator.max_memory_allocated(device) / 1e9
        return figures

    def seconds(self, do: Callable[[], Any]) -> float:
        """The median; the first run warms up."""
        times = []
        for _ in range(self.sizes.repeats + 1):
            began = time.monotonic()
            do()
            if torch.device(self.device).type != "cpu":
                torch.accelerator.synchronize(self.device)
            times.append(time.monotonic() - began)
        return statistics.median(times[1:])


CHECKS = ("clusters", "encoder", "training", "bfloat16", "resuming", "using", "both_kinds", "pretraining", "speed")


def _gradients(layer: LabelClusters, hidden: Tensor, labels: Tensor, *, bfloat16: bool = False) -> dict[str, Tensor]:
    device = layer.head.weight.device
    rows = hidden.clone().to(device).requires_grad_()
    layer.zero_grad()
    with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        loss = layer(rows, labels.to(device))
    loss.backward()
    found = {name: p.grad.cpu() for name, p in layer.named_parameters() if p.grad is not None}
    return found | {"loss": loss.detach().cpu(), "hidden": rows.grad.cpu()}


def _distance(exact: dict[str, Tensor], found: dict[str, Tensor]) -> float:
    """The largest difference of a tensor, as a share of its size; one that is nearly 0 is held against the largest."""
    assert exact.keys() == found.keys()
    least = 1e-3 * max(x.norm() for x in exact.values())
    return max(float((found[name] - x).norm() / x.norm().clamp_min(least)) for name, x in exact.items())


def _limit(value: float, limit: float) -> float:
    assert value <= limit, f"{value:.3g} is above the limit of {limit:g}"  # also for NaN
    return float(value)


def _losses(out: Path) -> list[float]:
    rows = map(json.loads, (out / "metrics.jsonl").read_text("utf-8").splitlines())
    return [row["mean_loss"] for row in rows if "mean_loss" in row]


def run(corpus: Path, name: str | None, sizes: Sizes, only: tuple[str, ...] = CHECKS) -> Figures:
    """The report."""
    with using_device(name):
        choice = choose_device()
    about = {"aplc": __version__, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"cuda": torch.version.cuda, "platform": platform.platform(), "device": str(choice)}
    screen, results = Screen(), {}
    screen.say(f"device: {choice}")
    with tempfile.TemporaryDirectory(prefix="aplc-gpu-check-") as folder:
        check = Check(corpus, str(choice.device), sizes, Path(folder))
        for checked in only:
            began = time.monotonic()
            with warnings.catch_warnings(record=True) as warned:
                try:
                    result = {"ok": True, "figures": getattr(check, checked)()}
                except Exception as error:  # the others tell more about what is wrong
                    result = {"ok": False, "error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
            result["warnings"] = sorted({f"{w.category.__name__}: {w.message}" for w in warned})
            results[checked] = result | {"seconds": round(time.monotonic() - began, 1)}
            screen.say(f"{checked}: {'ok' if result['ok'] else result['error']} ({results[checked]['seconds']} s)")
    return {"about": about, "checks": results, "ok": all(result["ok"] for result in results.values())}


def render(report: Figures) -> str:
    lines = [f"{name}: {value}" for name, value in report["about"].items()]
    for name, result in report["checks"].items():
        lines += ["", f"{name}: {'ok' if result['ok'] else 'FAILED'}, {result['seconds']} s"]
        lines += [f"  {key}: {value}" for key, value in result.get("figures", {}).items()]
        lines += [f"  warning: {warning}" for warning in result["warnings"]]
        lines += [f"  {line}" for line in result.get("where", "").splitlines()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="the report's name, without an ending")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script itself")
    given = parser.parse_args()
    report = run(given.corpus, given.device, QUICK if given.quick else FULL)
    write_json(given.out.with_suffix(".json"), report)
    given.out.with_suffix(".txt").write_text(render(report), "utf-8")
    print(f"{'all is well' if report['ok'] else 'something failed'}: please send {given.out}.txt and {given.out}.json")
    sys.exit(not report["ok"])


if __name__ == "__main__":
    main()
