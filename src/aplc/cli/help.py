"""How `--help` looks: options in groups, an example at the end; and what a command suggests to type next.

Typer's own groups (`rich_help_panel`) are drawn with rich only, in boxes; here they are plain text.
"""

import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from aplc.machine import is_main_process

EXAMPLES = {
    "data": "aplc data pubmed-mesh --out demo/corpus",
    "encoder": "aplc encoder minilm --out minilm",
    "convert": "aplc convert files --from pecos --out corpus",
    "split": "aplc split records.csv --out corpus --text-column title --labels-column tags --label-separator ','",
    "inspect": "aplc inspect corpus --picture labels.svg",
    "plan": "aplc plan corpus --preset both --memory 16",
    "pretrain": "aplc pretrain texts.txt --out encoder --preset mini",
    "train": "aplc train corpus --out model --vocabulary thesaurus.ttl",
    "evaluate": "aplc evaluate model corpus --report report.html",
    "compare": "aplc compare model-a model-b --picture compared.svg",
    "ablate": "aplc ablate clusters corpus --out ablation --seeds 1",
    "predict": "aplc predict model new.csv --out tags.csv --precision 0.8 --keep title",
    "review": "aplc review model new.jsonl --out queue.jsonl --limit 500",
    "export": "aplc export model --out exported --int8 --corpus corpus",
    "serve": "aplc serve model --feedback feedback.jsonl",
    "info": "aplc info --json",
    "list": "aplc labels list model --search heart",
    "add": "aplc labels add model examples.jsonl --out newer",
    "rename": "aplc labels rename model 'Sea cow' Manatee",
    "merge": "aplc labels merge model Hounds Dogs --into Dog",
    "retire": "aplc labels retire model Unicorns",
}
EXAMPLES = {name: f"Example: {example}" for name, example in EXAMPLES.items()}
"""Of each command, by the name it is typed with."""
COLUMNS: dict[str, tuple[str, ...]] = {
    "Columns of the file": ("text_column", "labels_column", "label_separator", "id_column")
}
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "plan": {"What would be trained": ("preset", "set_", "vocabulary", "language")},
    "pretrain": {"What is trained": ("preset", "set_", "encoder")},
    "train": {"What is trained": ("preset", "set_", "vocabulary", "language", "more")},
    "split": {"How it is split": ("dev", "test", "seed", "group", "by_date", "labelled_only")},
    "evaluate": {
        "What is measured": ("part", "propensity", "threshold", "at"),
        "What is shown and written": ("report", "json_file", "examples"),
    },
    "predict": {
        "How many labels": ("top_k", "threshold", "precision", "expected_f1"),
        "Which labels": ("allow", "deny", "scheme", "not_scheme", "below"),
    },
    "serve": {
        "Corrections": ("feedback", "review"),
        "Limits": ("max_body", "max_texts", "max_queue", "max_feedback", "worker_timeout"),
    },
}
"""Options that are listed under a name of their own, by command; all others are "Options"."""


NEED_TORCH = frozenset(
    {
        "plan",
        "pretrain",
        "train",
        "evaluate",
        "ablate",
        "predict",
        "review",
        "export",
        "serve",
        "add",
        "inspect",
        "info",
    }
)
"""Commands that import PyTorch."""
SLOW_TO_IMPORT = ("torch", "aplc.words.model", "aplc.store.folder")
"""What most of them import before they have anything to show; seconds, with PyTorch and scikit-learn."""


class Command(TyperCommand):
    """A command whose options are listed under the names of their groups, and that shows at once that it has begun."""

    def invoke(self, ctx: Any) -> Any:
        if self.name in NEED_TORCH and sys.stderr.isatty():
            from aplc.console import Screen

            with Screen().bar("starting"):
                for name in SLOW_TO_IMPORT:
                    import_module(name)
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        own = GROUPS.get(self.name or "", {}) | COLUMNS
        group_of = {name: group for group, names in own.items() for name in names}
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(group_of.get(parameter.name or "", kind), []).append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The example in one line, so that it can be copied."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


def options(**given: str | Path | list[str] | None) -> list[str]:
    """Options of a command to type next, as they were given to this one: `set_=["a=1"]` is `--set a=1`."""
    words = []
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [f"--{name.rstrip('_').replace('_', '-')}", str(one)]
    return words


def say_next(*command: str | Path) -> None:
    """A command's last line, on standard error: what a person would type next."""
    if is_main_process():
        print(f"next: aplc {' '.join(shlex.quote(str(word)) for word in command)}", file=sys.stderr)
