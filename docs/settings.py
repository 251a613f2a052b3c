"""Writes docs/settings.md: every setting of `--set`, with default and meaning, from src/aplc/config.py.

    python docs/settings.py

Meanings are the texts below the fields, which Python does not keep: they are read from the sources.
"""

import ast
import inspect
import itertools
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from aplc.config import PRESET_ALIASES, Config, Tree, preset_names
from aplc.pretrain.config import PretrainConfig

PAGE = Path(__file__).parent / "settings.md"
OPENING = """# Every setting

Written by `docs/settings.py` from `src/aplc/config.py`; `tests/test_settings_page.py` compares.

`--set section.name=value` changes a setting of `aplc train`, `aplc plan`, `aplc ablate` and `aplc pretrain`;
`Tagger(settings=["section.name=value"])` does so in Python. Values are written as in TOML; bare words are strings, and
`100,200` is a list. A preset is a TOML file with a table for each section, and names what differs from the defaults:

| preset | what it changes |
| --- | --- |
"""
PRETRAINING = """
## Pretraining

`aplc pretrain` has the settings above of `data.max_length` to `data.validation_limit`, `model.encoder` to
`model.checkpoint_activations` and `train.batch_size` to `train.seed`. These have other defaults there, or are its own:

| setting | values | default | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The text of docs/settings.md."""
    parts = [OPENING, *(f"| `{name}` | {_changes(name)} |\n" for name in preset_names())]
    aliases = ", ".join(f"`{old}` is a former name of `{new}`" for old, new in PRESET_ALIASES.items())
    parts.append(f"\n{aliases[0].upper()}{aliases[1:]}. `auto` is no file: it chooses `words` or `both`.\n")
    known = {}
    for section, rows in _sections(Config).items():
        parts.append(f"\n## {section}\n\n| setting | values | default | meaning |\n| --- | --- | --- | --- |\n")
        parts += rows.values()
        known |= rows
    parts.append(PRETRAINING)
    parts += [row for rows in _sections(PretrainConfig).values() for key, row in rows.items() if row != known.get(key)]
    return "".join(parts)


def _changes(preset: str) -> str:
    """What a preset sets to something else than the default."""
    default, tree = Config().to_dict(), Config.from_preset(preset).to_dict()
    changed = [
        f"`{section}.{name}={_written(value)}`"
        for section, values in tree.items()
        for name, value in values.items()
        if value != default[section][name]
    ]
    return ", ".join(changed) or "nothing: the defaults are its settings"


def _sections(config: type[Tree]) -> dict[str, dict[str, str]]:
    """Rows of a table by section and setting."""
    sections: dict[str, dict[str, str]] = {}
    for section in fields(config):
        built = section.default_factory()  # type: ignore[misc]
        hints, meanings = get_type_hints(type(built)), _meanings(type(built))
        sections[section.name] = {
            f"{section.name}.{field.name}": f"| `{section.name}.{field.name}` | {_values(hints[field.name])} | "
            f"`{_written(getattr(built, field.name))}` | {meanings[field.name]} |\n"
            for field in fields(built)
        }
    return sections


def _meanings(section: type) -> dict[str, str]:
    """The text below each field, of the section and of what it inherits from."""
    found: dict[str, str] = {}
    for cls in reversed(section.__mro__[:-1]):
        (body,) = (node.body for node in ast.parse(inspect.getsource(cls)).body if isinstance(node, ast.ClassDef))
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = " ".join(str(text.value.value).split()).replace("|", "\\|")
    return found


def _values(hint: Any) -> str:
    """What may be given, for people."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) is tuple:
        return {"int": "whole numbers", "float": "numbers"}[get_args(hint)[0].__name__]
    if get_args(hint):
        return ", or ".join(_values(one) for one in get_args(hint))
    return {"int": "a whole number", "float": "a number", "str": "text", "bool": "`true`, `false`"}[hint.__name__]


def _written(value: Any) -> str:
    """As `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "[]"
    return str(value) if value != "" else '""'


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
