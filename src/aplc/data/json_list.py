"""Reads a JSON file that is one list, item by item, so that it may be larger than memory.

Text is decoded in blocks. An item that ends beyond the block is tried again with twice as much text, which keeps the
work linear in the size of the file.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from aplc.errors import CorpusError

BLOCK = 1 << 20
"""Characters read at a time."""
LOOKED_AT = 1 << 26
"""Characters of an object that are read in search of the list in it."""
LONGEST = 12
"""Characters of the longest thing that fails at its start when it is cut off: two escapes that make one character."""
SPACE = " \t\r\n"


def read_list(path: Path, stream: BinaryIO, *, block: int = BLOCK) -> Iterator[Any]:
    """The items of a list; `CorpusError` with file and line for anything else."""
    window = _Window(path, stream, block)
    if not window.skip_space():
        return  # empty: the caller says so, as of any file without documents
    if window.next != "[":
        raise _no_list(path, window)
    window.at += 1
    if window.skip_space() and window.next == "]":
        window.at += 1
    else:
        while True:
            yield window.item()
            if not window.skip_space():
                raise window.error("the list does not end; is the file complete?")
            window.at += 1
            if window.text[window.at - 1] == "]":
                break
            if window.text[window.at - 1] != ",":
                window.at -= 1
                raise window.error(f"expected ',' or ']' after an item of the list, found {window.next!r}")
            window.skip_space()
    if window.skip_space():
        raise window.error("there is more after the list; a .json file holds one list")


class _Window:
    """The part of the file in memory, and a place in it."""

    def __init__(self, path: Path, stream: BinaryIO, block: int) -> None:
        self.path, self.block = path, block
        self.stream = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape")
        self.text, self.at, self.line, self.ended = "", 0, 1, False
        self.decoder = json.JSONDecoder()

    @property
    def next(self) -> str:
        return self.text[self.at]

    def more(self) -> bool:
        """Forget what was read and take at least as much again as there is; False at the end of the file."""
        if self.ended:
            return False
        found = self.stream.read(max(self.block, len(self.text) - self.at))
        if not found:
            self.ended = True
            return False
        self.line += self.text.count("\n", 0, self.at)
        self.text = self.text[self.at :] + found
        self.at = 0
        return True

    def skip_space(self) -> bool:
        """Go to the next character that is not whitespace; False at the end of the file."""
        while True:
            while self.at < len(self.text):
                if self.text[self.at] not in SPACE:
                    return True
                self.at += 1
            if not self.more():
                return False

    def item(self) -> Any:
        """The value here, and go behind it."""
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except RecursionError:
                raise self.error("nested too deeply") from None
            except json.JSONDecodeError as error:
                # What the end of the text has cut off fails in its last characters, or as a string without an end.
                cut_off = error.msg.startswith("Unterminated") or error.pos >= len(self.text) - LONGEST
                if cut_off and self.more():
                    continue
                self.at = min(error.pos, len(self.text))
                raise self.error(f"not JSON: {error.msg}") from None
            except ValueError as error:  # a number with too many digits
                raise self.error(f"not JSON: {error}") from None
            if end == len(self.text) and self.more():  # a number may go on
                continue
            self.at = end
            return value

    def error(self, message: str) -> CorpusError:
        line = self.line + self.text.count("\n", 0, self.at)
        return CorpusError(f"{self.path}, line {line}: {message}")


def _no_list(path: Path, window: _Window) -> CorpusError:
    """What the file holds instead, and the cure."""
    if window.next != "{":
        return window.error(
            'not JSON: a .json file holds one list of objects, like [{"text": "...", "labels": ["..."]}, ...]'
        )
    while len(window.text) < LOOKED_AT and window.more():
        pass
    try:
        value, end = json.JSONDecoder().raw_decode(window.text, window.at)
    except (ValueError, RecursionError):
        value, end = {}, len(window.text)
    if window.text[end:].lstrip().startswith("{"):
        return CorpusError(f"{path}, line 1: this is JSON Lines, an object a line; name the file .jsonl")
    name = next((name for name, inner in value.items() if isinstance(inner, list)), None)
    cure = (
        f"; its {name!r} is one: write that to a file, e.g. jq '.[\"{name}\"]' {path.name} > list.json" if name else ""
    )
    return CorpusError(f"{path}, line 1: one object, not a list of objects{cure}")
