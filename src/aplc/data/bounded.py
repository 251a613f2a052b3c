"""Reads vocabulary files that may come from anywhere: what is held in memory at a time is bounded."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from aplc.errors import CorpusError

LINE = 1 << 24
"""Bytes of a line, and of a CSV row."""
WHOLE = 1 << 30
"""Bytes of a file that is read at once."""
LANGUAGE = "en"
"""Preferred where names have languages and none was asked for."""


def read_whole(path: Path, stream: BinaryIO, cure: str) -> bytes:
    """All bytes of a stream, which is closed; too many are refused with the cure."""
    with stream:
        raw = stream.read(WHOLE + 1)
    if len(raw) > WHOLE:
        raise CorpusError(f"{path}: more than {WHOLE:,} bytes; {cure}")
    return raw


class BoundedLines:
    """Decoded lines of a file. `settle` after each entry: what is between two of them must not be too long."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path, self.stream = path, stream
        self.number, self.since = 0, 0

    def __iter__(self) -> Iterator[str]:
        while raw := self.stream.readline(LINE + 1):
            self.number += 1
            self.since += len(raw)
            if self.since > LINE:
                raise self.error(f"longer than {LINE:,} bytes; is a line break or a quote missing?")
            if self.number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            try:
                yield raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.error(f"not UTF-8 at byte {error.start}; save the file as UTF-8") from None

    def settle(self) -> None:
        self.since = 0

    @property
    def where(self) -> str:
        return f"line {self.number}"

    def error(self, message: str) -> CorpusError:
        return CorpusError(f"{self.path}, {self.where}: {message}")
