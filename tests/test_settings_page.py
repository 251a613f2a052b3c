"""Guards docs/settings.md: it is what docs/settings.py writes, and names every setting and every preset."""

import runpy
from pathlib import Path

from aplc.config import Config, preset_names
from aplc.pretrain.config import PretrainConfig

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "settings.md").read_text("utf-8")


def test_the_page_is_up_to_date():
    assert runpy.run_path(str(DOCS / "settings.py"))["page"]() == PAGE, "run python docs/settings.py"


def test_every_setting_and_preset_is_named():
    for config in (Config(), PretrainConfig()):
        for section, values in config.to_dict().items():
            for name in values:
                assert f"| `{section}.{name}` |" in PAGE
    for name in preset_names():
        assert f"| `{name}` |" in PAGE
