"""Exceptions a caller may want to catch. Each is also the standard one it specialises."""

from sklearn.exceptions import NotFittedError

__all__ = ["AplcError", "CorpusError", "ModelError", "NotFittedError", "RunError"]


class AplcError(ValueError):
    """Something the user can mend; the message says how. The command line prints it in one line and exits with 2."""


class CorpusError(AplcError):
    """A corpus that is missing, empty or unreadable. Names the file and, where there is one, the line."""


class ModelError(AplcError):
    """An encoder, a tokenizer or a model folder that is missing or does not fit."""


class RunError(AplcError):
    """A training run that can't start, go on or be resumed."""
