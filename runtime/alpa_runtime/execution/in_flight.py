"""Programs that are started and may not have ended yet."""

from __future__ import annotations

from collections import deque

import jax

MAX_IN_FLIGHT = 32


class Flight:
    """Keeps the number of started programs bounded: XLA's thread pool is finite.

    Attributes:
        added: programs so far.
        started: a result of each of the last ones, in order.
    """

    def __init__(self, limit: int) -> None:
        self.limit: int = max(1, limit)
        self.added: int = 0
        self.started: deque[jax.Array] = deque()

    def add(self, array: jax.Array) -> None:
        self.added += 1
        self.started.append(array)
        while len(self.started) > self.limit:
            oldest = self.started[0]
            if not oldest.is_deleted():  # given to a later program, which is in here as well
                try:
                    oldest.block_until_ready()
                except RuntimeError as error:
                    # A shard that somebody reads is copied instead, and the array counts as there.
                    if "donated" not in str(error):
                        raise
            self.started.popleft()
