"""Find which results of a step are the next values of its state arguments.

The evidence is the shape of the trees: an output subtree with the key paths and the avals of
a state argument. A single array is weak evidence (a loss looks like any f32 scalar), so it is
matched only in order, only if it depends on the argument, and only if it is made in the update
phase. Gradients look like parameters; they are told apart by their phase. A prediction looks like
the next value of the inputs: an array that may hold examples is state only if a result is the
array itself, changed by a gradient or by weights of its shape, or one in its place is the array
itself, changed, or depends on the batch, as the next state of a recurrent network does and what is
predicted of inputs does not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from alpa_runtime import trees

from alpa_mlir.errors import TraceError
from alpa_mlir.trace.dependencies import ResultFacts

Aval = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class Subtree:
    """A node of a pytree whose leaves are numbered in flattening order.

    Attributes:
        name: path for people, such as `state.params`.
        key: the last key of the path; empty for a root.
        position: the first key's index if the node is a direct child of the root, else -1.
        start: number of its first leaf.
        paths: key paths of its leaves, relative to it.
        avals: shape and dtype of its leaves.
        children: its direct children; empty for a leaf.
    """

    name: str
    key: str
    position: int
    depth: int
    start: int
    paths: tuple[str, ...]
    avals: tuple[Aval, ...]
    children: tuple[Subtree, ...]

    @property
    def stop(self) -> int:
        return self.start + len(self.avals)

    def walk(self) -> list[Subtree]:
        """The node and all nodes under it that hold leaves, parents first."""
        nodes: list[Subtree] = [self] if self.avals else []
        for child in self.children:
            nodes += child.walk()
        return nodes


def subtree(tree: Any, name: str, avals: Sequence[Aval], start: int, position: int = -1) -> Subtree:
    """Describe a pytree; its leaves are those numbered from `start` in `avals`."""
    numbered = trees.unflatten(trees.structure(tree), range(start, start + len(trees.leaves(tree))))
    return _describe(numbered, name, "", position, 0, avals, start)


def _describe(
    node: Any, name: str, key: str, position: int, depth: int, avals: Sequence[Aval], start: int
) -> Subtree:
    leaves = trees.flatten_with_path(node)[0]
    level = trees.flatten_with_path(node, is_leaf=lambda x: x is not node)[0]
    children: list[Subtree] = []
    at = start
    for index, (path, child) in enumerate(level):
        if not path:  # the node is itself a leaf
            break
        text = trees.text(path)
        place = getattr(path[0], "idx", index) if depth == 0 else -1
        children.append(_describe(child, name + text, text, place, depth + 1, avals, at))
        at += len(children[-1].avals)
    return Subtree(
        name,
        key,
        position,
        depth,
        start,
        tuple(trees.text(path) for path, _ in leaves),
        tuple(avals[start : start + len(leaves)]),
        tuple(children),
    )


def match_state(
    states: Sequence[Subtree],
    output: Subtree,
    facts: Sequence[ResultFacts],
    explicit: Mapping[int, int | None] | None = None,
    examples: Collection[int] = (),
) -> dict[int, int]:
    """Pair leaves of state arguments with the output leaves that are their next values.

    Args:
        states: one description per state argument, `position` being its number.
        output: description of the function's result.
        facts: facts on each output leaf.
        explicit: for an argument number the index of the result's child that carries it
            (the result itself where it is no container), or None if nothing does. Overrides
            what would be found.
        examples: numbers of the arguments that may be batches where they are single arrays.

    Returns:
        For input leaf numbers the number of the output leaf that carries it.

    Raises:
        TraceError: two pairings are equally good, or a state changes its shape or dtype.
    """
    explicit = explicit or {}
    pairs: list[tuple[Subtree, Subtree]] = []
    search: list[Subtree] = []
    for state in states:
        if state.position not in explicit:
            search.append(state)
            continue
        index = explicit[state.position]
        if index is not None:
            pairs.append((state, _explicit_target(state, output, index)))

    matcher = _Matcher(output, facts, [target for _, target in pairs], states, examples)
    pairs += matcher.match([s for s in search if s.avals])
    return {
        state.start + i: target.start + i
        for state, target in pairs
        for i in range(len(state.avals))
    }


def _bits(arguments: Iterable[Subtree]) -> int:
    """One bit for each of their leaves."""
    return sum(1 << i for argument in arguments for i in range(argument.start, argument.stop))


def _explicit_target(state: Subtree, output: Subtree, index: int) -> Subtree:
    candidates = output.children or (output,)
    if not 0 <= index < len(candidates):
        raise TraceError(
            f"`carried` names result {index}, but the step returns {len(candidates)}",
            where=state.name,
        )
    target = candidates[index]
    if (target.paths, target.avals) != (state.paths, state.avals):
        raise TraceError(
            f"result {index} has another structure, shape or dtype than the argument it carries",
            where=state.name,
            fix="return the new state with the form of the old one",
        )
    return target


@dataclass(frozen=True)
class _Pairing:
    """A pairing of some arguments; the score is (leaves, exact positions, -depth)."""

    score: tuple[int, int, int]
    count: int
    pairs: tuple[tuple[int, Subtree], ...]


class _Matcher:
    def __init__(
        self,
        output: Subtree,
        facts: Sequence[ResultFacts],
        taken: Sequence[Subtree],
        states: Sequence[Subtree],
        examples: Collection[int],
    ) -> None:
        # The place of an argument among the state arguments, those without arrays included.
        self.places = {state.position: place for place, state in enumerate(states)}
        # A bit for each leaf: of arrays that may be batches, and of all these arguments.
        self.examples = _bits(s for s in states if s.position in examples and not s.children)
        self.held = _bits(states)
        self.nodes = output.walk()
        self.facts = facts
        self.taken = list(taken)

    def match(self, states: Sequence[Subtree]) -> list[tuple[Subtree, Subtree]]:
        pairs = self._in_order(states)
        self.taken += [target for _, target in pairs]
        matched = {id(state) for state, _ in pairs}
        for state in states:
            if id(state) in matched:
                continue
            if len(state.avals) == 1 and not state.children:
                continue
            found = self._candidates(state)
            if len(found) > 1:
                self._ambiguous(state, found)
            if found:
                pairs.append((state, found[0]))
                self.taken.append(found[0])
            else:
                self._check_changed(state)
                pairs += self._match_children(state)
        return pairs

    def _match_children(self, state: Subtree) -> list[tuple[Subtree, Subtree]]:
        """The parts of a state that is returned in pieces; single arrays go by their key."""
        pairs: list[tuple[Subtree, Subtree]] = []
        for child in state.children:
            found = self._candidates(child)
            if not child.children:
                found = [node for node in found if node.key == child.key]
            if len(found) > 1:
                found = [node for node in found if node.key == child.key] or found
            if len(found) > 1:
                self._ambiguous(child, found)
            if found:
                pairs.append((child, found[0]))
                self.taken.append(found[0])
            elif child.children:
                pairs += self._match_children(child)
        return pairs

    def _candidates(self, state: Subtree) -> list[Subtree]:
        if not state.avals:
            return []
        return [
            node
            for node in self.nodes
            if node.avals == state.avals
            and node.paths == state.paths
            and bool(node.children) == bool(state.children)
            and not any(node.start < t.stop and t.start < node.stop for t in self.taken)
            and self._plausible(state, node)
        ]

    def _plausible(self, state: Subtree, node: Subtree) -> bool:
        facts = self.facts[node.start : node.stop]
        if not node.children:
            if facts[0].phase not in ("update", "input") or not facts[0].depends_on(state.start):
                return False
            may_be_examples = state.depth == 0 and self.examples >> state.start & 1
            return not may_be_examples or self._is_update(state, node, facts[0])
        made = [f for f in facts if f.phase != "input"]
        gradients = sum(f.phase == "backward" for f in made)
        return 2 * gradients <= len(made)

    def _is_update(self, state: Subtree, node: Subtree, fact: ResultFacts) -> bool:
        """Whether a result is the next value of an array rather than made of examples."""
        changes = fact.is_update_of(state.start)
        if self._in_place(state, node):
            return changes or bool(fact.depends & ~self.held)
        of_weights = fact.updates & self.held & ~self.examples
        return changes and (fact.of_gradients or bool(of_weights))

    def _in_place(self, state: Subtree, node: Subtree) -> bool:
        return node.depth == 0 or node.position == self.places[state.position]

    def _in_order(self, states: Sequence[Subtree]) -> list[tuple[Subtree, Subtree]]:
        """The best pairing that keeps the order of the arguments: most leaves first."""
        found = [self._candidates(state) for state in states]
        exact = [
            next((n for n in nodes if self._in_place(s, n)), None)
            for s, nodes in zip(states, found, strict=True)
        ]
        pairs = [(s, n) for s, n in zip(states, exact, strict=True) if n is not None]
        if len(pairs) == len(states) and all(
            before.stop <= after.start for (_, before), (_, after) in pairwise(pairs)
        ):
            return pairs  # Cannot be bettered.

        # best[start]: the best pairing of the arguments from i on with outputs from start on.
        starts = sorted({0, *(node.stop for nodes in found for node in nodes)})
        best = {start: _Pairing((0, 0, 0), 1, ()) for start in starts}
        for i in reversed(range(len(states))):
            better: dict[int, _Pairing] = {}
            for start in starts:
                result = best[start]
                for node in found[i]:
                    if node.start < start:
                        continue
                    rest = best[node.stop]
                    weight, fits, shallow = rest.score
                    score = (
                        weight + len(node.avals),
                        fits + self._in_place(states[i], node),
                        shallow - node.depth,
                    )
                    if score > result.score:
                        result = _Pairing(score, rest.count, ((i, node), *rest.pairs))
                    elif score == result.score:
                        result = _Pairing(score, result.count + rest.count, result.pairs)
                better[start] = result
            best = better
        chosen = best[0]
        if chosen.count > 1:
            for state, nodes in zip(states, found, strict=True):
                if len(nodes) > 1:
                    self._ambiguous(state, nodes)
            self._rivals([(s, nodes[0]) for s, nodes in zip(states, found, strict=True) if nodes])
            self._ambiguous(states[-1], found[-1])
        return [(states[i], node) for i, node in chosen.pairs]

    def _ambiguous(self, state: Subtree, nodes: Sequence[Subtree]) -> None:
        names = ", ".join(node.name for node in nodes[:4])
        raise TraceError(
            f"several results may be the next value of this state: {names}",
            where=state.name,
            fix="return the next value in the place of its argument; if this is no state, name the "
            "batches by batch_argnums",
        )

    def _rivals(self, pairs: Sequence[tuple[Subtree, Subtree]]) -> None:
        for (first, node), (second, other) in pairwise(pairs):
            if node.start < other.stop and other.start < node.stop:
                raise TraceError(
                    f"one result may be the next value of {first.name} or of {second.name}",
                    where=node.name,
                    fix="name the batches by batch_argnums, or return both states, each in the "
                    "place of its argument",
                )

    def _check_changed(self, state: Subtree) -> None:
        """A result with the same keys, of which only some leaves differ, is a changed state."""
        for node in self.nodes:
            if node.paths != state.paths or not node.children or not state.children:
                continue
            differ = [
                i for i, (a, b) in enumerate(zip(state.avals, node.avals, strict=True)) if a != b
            ]
            if not differ or 2 * len(differ) > len(state.avals):
                continue
            i = differ[0]
            (old_shape, old_dtype), (new_shape, new_dtype) = state.avals[i], node.avals[i]
            raise TraceError(
                f"this state goes in as {old_dtype}{list(old_shape)} and comes out as "
                f"{new_dtype}{list(new_shape)} in {node.name}",
                where=state.name + state.paths[i],
                fix="keep the shape and dtype of the state from step to step",
            )
