"""Replacing the model of a running server: on SIGHUP, on POST /admin/reload, or when its folder was swapped.

The new model is loaded beside the old one, checked, and tags a probe; then requests that come get the new one, and
those that are under way keep the old. A model that fails any of this is refused, and the old one stays. The price:
while it loads, both are in memory.

A folder counts as swapped when its config.json is another file than before, and stays so between two looks. It must be
swapped in one step, by renaming: files copied over those of a folder in use would change the model under the server.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aplc.errors import AplcError

CONFIG = "config.json"
"""`store/safety.py` calls it the same; importing that imports torch, which the first process does without."""
EVERY = 2.0
"""Seconds between two looks at the folder."""

About = dict[str, Any]
"""What the server says of its model (`Service.about`)."""


class Reloader:
    """One replacement at a time. `replace` loads the folder, here or in all workers; it raises `AplcError`."""

    def __init__(self, folder: Path, replace: Callable[[], Awaitable[About]], say: Callable[[str], None]) -> None:
        self.folder, self.replace, self.say = folder, replace, say
        self._one = asyncio.Lock()
        self._tried = self._identity()
        """The folder that was loaded or refused last."""

    async def reload(self) -> About:
        async with self._one:
            self._tried = self._identity()
            try:
                about = await self.replace()
            except (AplcError, OSError) as error:
                self.say(f"the new model was refused, the old one stays: {error}")
                raise error if isinstance(error, AplcError) else AplcError(str(error)) from None
            self.say(f"serving model {about['model_version']} ({about['labels']:,} labels)")
            return about

    async def watch(self) -> None:
        """Reload on SIGHUP and when the folder was swapped, until cancelled."""
        loop = asyncio.get_running_loop()
        hung_up = asyncio.Event()
        with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGHUP, hung_up.set)  # not on Windows, and only on the main thread
        last = self._tried
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hung_up.wait(), EVERY)
            now = self._identity()
            swapped = now is not None and now == last and now != self._tried
            if hung_up.is_set() or swapped:
                hung_up.clear()
                with contextlib.suppress(AplcError):  # `reload` has said it
                    await self.reload()
            last = now

    def _identity(self) -> tuple[int, ...] | None:
        try:
            stat = (self.folder / CONFIG).stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
