"""A uniform random sample of a stream, in one pass: reservoir sampling (Vitter 1985, algorithm R).

    others = Reservoir[Document](20_000, seed=0)
    for document in documents:
        others.add(document)
    others.items            # at most 20,000 documents

Each of the `n_seen` documents is as likely to be kept as any other.
"""

import random
from typing import Generic, TypeVar

T = TypeVar("T")


class Reservoir(Generic[T]):
    """Keeps at most `size` of the items added. The same items and seed give the same sample.

    `items` is not in the order of the stream: a new item takes the place of the one it replaces.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = size
        self.items: list[T] = []
        self.n_seen = 0
        self._random = random.Random(seed)

    def add(self, item: T) -> None:
        self.n_seen += 1
        if len(self.items) < self.size:
            self.items.append(item)
        elif (place := self._random.randrange(self.n_seen)) < self.size:
            self.items[place] = item
