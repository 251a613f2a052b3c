"""Tag texts with the right few labels out of hundreds or a million (APLC-XLNet, ICML 2020)."""

from aplc.version import __version__

__all__ = ["IndicatorTagger", "LabelClusters", "Partition", "Tagger", "__version__"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    # torch takes seconds to import; `aplc --help` and `import aplc` should not.
    if name == "Tagger":
        from aplc.tagger import Tagger

        return Tagger
    if name == "IndicatorTagger":
        from aplc.indicator import IndicatorTagger

        return IndicatorTagger
    if name == "LabelClusters":
        from aplc.nn.clusters import LabelClusters

        return LabelClusters
    if name == "Partition":
        from aplc.nn.partition import Partition

        return Partition
    raise AttributeError(f"module 'aplc' has no attribute {name!r}")
