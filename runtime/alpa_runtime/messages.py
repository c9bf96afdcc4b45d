"""What the driver of several workers and a worker say to each other: plain data, to be pickled.

Arrays live in workers under numbers (uids) that the driver gives out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alpa_runtime.plan.reshard import Box

# Parts of an array on the host: where each lies in the whole array (batches whole, with all of
# their micro-batches), and a NumPy array of that shape.
Parts = tuple[tuple[Box, Any], ...]


@dataclass(frozen=True)
class Held:
    """An input that the worker has already.

    Attributes:
        copy: the step uses it up, but it must stay: it is given as another input as well.
    """

    uid: int
    copy: bool = False


@dataclass(frozen=True)
class StepRequest:
    """One step of one worker.

    Attributes:
        number: of the step, from 0; workers take the steps in order.
        inputs: for each of the plan's inputs of which the worker needs something, where it has it,
            or the parts that it needs.
        outputs: for each of the plan's results that the worker makes a part of, its uid.
        free: arrays that nobody needs any more; they are dropped before the step.
    """

    number: int
    inputs: Mapping[int, Held | Parts]
    outputs: Mapping[int, int]
    free: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepReply:
    """What a worker says when it has started all of a step; the work itself may go on.

    Attributes:
        number: of the step.
        ready: small results of earlier steps that have arrived since the last reply, by uid.
    """

    number: int
    ready: Mapping[int, Parts] = field(default_factory=dict[int, Parts])
