"""What a server is started with. Nothing here imports torch: the first process of several workers does without."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from aplc.errors import AplcError
from aplc.serve.guard import Limits

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's name for the folder that workers share; it must be set before prometheus_client is imported."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server is started with; workers get it from the first process."""

    model: Path
    token: str | None = None
    loopback_only: bool = False
    """Whether requests must name this machine: it listens on loopback, without a token. `serve` knows."""
    limits: Limits = field(default_factory=Limits)
    feedback: Path | None = None
    review: Path | None = None
    worker_timeout: float = 30.0
    """Seconds without a sign of life after which a worker is replaced."""
    device: str | None = None
    """Where workers' networks compute; without workers, `nn/device.py` knows it already."""

    def to_json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        paths = {name: value[name] and Path(value[name]) for name in ("model", "feedback", "review")}
        return cls(**{**value, **paths, "limits": Limits(**value["limits"])})

    def check(self) -> None:
        """Refuse what no server can be started with."""
        if self.token is not None and (not self.token.isascii() or not self.token.strip()):
            raise AplcError("--token: a token must be ASCII and not empty")
        if self.review and not self.feedback:
            raise AplcError("--review needs --feedback FILE, which says what has been reviewed")
        if self.review and self.feedback and self.review.resolve() == self.feedback.resolve():
            raise AplcError("--review and --feedback must be two files")
