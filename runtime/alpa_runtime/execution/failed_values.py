"""Programs that failed while others wait for what they make."""

from __future__ import annotations

from typing import Any

import jax

_jax: Any = jax


class FailedValues:
    """Looks for values of this process that hold an error.

    A program of XLA on the CPU that finds no memory for one result says so to who reads that
    result; who reads another one of its results waits forever (jaxlib 0.10). The error is there to
    be found, though, as long as the value is.
    """

    def __init__(self) -> None:
        self._settled = -1

    def look(self, begun: int | None) -> Exception | None:
        """An error that a value holds, if there is one.

        Args:
            begun: what has been begun so far; once all of its values are there, they are looked at
                no more. None while something is being started.
        """
        if begun == self._settled:
            return None
        waiting = False
        for array in _jax.live_arrays():
            try:
                if array.is_ready():
                    array.block_until_ready()
                else:
                    waiting = True
            except RuntimeError as error:
                # Arrays are used up and given away meanwhile.
                if "deleted" not in str(error) and "donated" not in str(error):
                    return error
        if not waiting and begun is not None:
            self._settled = begun
        return None
