"""Exceptions a caller may want to catch. Each is also the standard one it specialises."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sklearn.exceptions import NotFittedError

__all__ = ["AplcError", "CorpusError", "ModelError", "NotFittedError", "RunError", "needs"]


def __getattr__(name: str) -> object:
    if name == "NotFittedError":  # scikit-learn takes a second to import; `aplc --help` should not
        from sklearn.exceptions import NotFittedError

        return NotFittedError
    raise AttributeError(f"module 'aplc.errors' has no attribute {name!r}")


def needs(what: str, missing: str, *install: str) -> str:
    """The message for a package that is not installed: what needs it, and the command that installs it."""
    return f"{what} needs {missing}: pip install {' '.join(install or (missing,))}"


class AplcError(ValueError):
    """Something the user can mend; the message says how. The command line prints it in one line and exits with 2."""


class CorpusError(AplcError):
    """A corpus that is missing, empty or unreadable. Names the file and, where there is one, the line."""


class ModelError(AplcError):
    """An encoder, a tokenizer or a model folder that is missing or does not fit."""


class RunError(AplcError):
    """A training run that can't start, go on or be resumed."""
