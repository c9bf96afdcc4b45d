"""Steps that workers were asked for and have not all answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from alpa_runtime.errors import TransportError
from alpa_runtime.execution.messages import Parts, StepReply
from alpa_runtime.hosts.interface import Reply

_SECONDS_FOR_OTHERS = 10.0  # To hear what else went wrong when a worker has failed.


@dataclass(frozen=True)
class Failure:
    """The worker that failed by itself, in which step, and what happened."""

    rank: int
    number: int
    cause: Exception


class PendingSteps:
    """Replies to steps, in their order."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, Sequence[Reply]]] = deque()

    def add(self, number: int, replies: Sequence[Reply]) -> None:
        """Wait for these, too: one of each worker."""
        self._steps.append((number, replies))

    def hear(self, left: int, arrive: Callable[[int, Parts], None]) -> Failure | None:
        """Take the replies of all steps but the last `left`, and of those that are there.

        Args:
            arrive: called with the number and the parts of each small result that comes along.

        Returns:
            What failed, if something did: then no other reply matters.
        """
        while self._steps:
            number, replies = self._steps[0]
            if len(self._steps) <= left and not all(reply.done() for reply in replies):
                break
            self._steps.popleft()
            failures: list[Failure] = []
            for rank, reply in enumerate(replies):
                try:
                    answer: StepReply = reply.result(_SECONDS_FOR_OTHERS if failures else None)
                except TimeoutError:
                    continue  # It waits for the one that failed, or is slow: no cause.
                except Exception as error:
                    failures.append(Failure(rank, number, error))
                else:
                    for uid, parts in answer.ready.items():
                        arrive(uid, parts)
            if failures:
                return self._first(failures)
        return None

    def _first(self, failures: list[Failure]) -> Failure:
        """The one that failed by itself: others hear nothing more of it, even in a step before."""
        for number, replies in self._steps:
            for rank, reply in enumerate(replies):
                try:
                    reply.result(_SECONDS_FOR_OTHERS)
                except TimeoutError:
                    continue
                except Exception as error:
                    failures.append(Failure(rank, number, error))
        causes = [found for found in failures if not isinstance(found.cause, TransportError)]
        return (causes or failures)[0]
