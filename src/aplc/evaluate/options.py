"""Options of `aplc evaluate` that are more than a number."""

from aplc.errors import AplcError
from aplc.evaluate.metrics import PROPENSITIES
from aplc.models.calibration import DEPTH


def parse_propensity(text: str) -> str | tuple[float, float]:
    """A name of PROPENSITIES, or `A,B`."""
    if text in PROPENSITIES:
        return text
    try:
        a, b = map(float, text.split(","))
    except ValueError:
        raise AplcError(f"--propensity {text}: give {', '.join(PROPENSITIES)} or two numbers A,B") from None
    if not (a > 0 and b > 0):
        raise AplcError(f"--propensity {text}: A and B must be above 0")
    return a, b


def parse_at(text: str) -> list[int]:
    """Lengths of lists with commas between them."""
    try:
        ks = [int(k) for k in text.split(",")]
    except ValueError:
        raise AplcError(f"--at {text}: give whole numbers with commas between them, such as 1,3,5,20") from None
    if not all(1 <= k <= DEPTH for k in ks):
        raise AplcError(f"--at {text}: give numbers between 1 and {DEPTH}")
    return ks
