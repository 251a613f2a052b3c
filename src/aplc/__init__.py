"""Tag texts with the right few labels out of hundreds or a million (APLC-XLNet, ICML 2020)."""

from importlib import import_module
from typing import TYPE_CHECKING

from aplc.version import __version__

if TYPE_CHECKING:
    from aplc.indicator import IndicatorTagger
    from aplc.nn.clusters import LabelClusters
    from aplc.nn.partition import Partition
    from aplc.tagger import Tagger

__all__ = ["IndicatorTagger", "LabelClusters", "Partition", "Tagger", "__version__"]

_PLACES = {
    "IndicatorTagger": "aplc.indicator",
    "LabelClusters": "aplc.nn.clusters",
    "Partition": "aplc.nn.partition",
    "Tagger": "aplc.tagger",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    # torch takes seconds to import; `aplc --help` and `import aplc` should not.
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'aplc' has no attribute {name!r}")
