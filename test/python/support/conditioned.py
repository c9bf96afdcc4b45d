"""Compare states after steps of training by what rounding can change in them.

Adam divides a gradient by its own size, so a gradient that is zero but for rounding becomes a step
of full length, in a direction that depends on the processor's instructions. Its moments are well
conditioned, and say which elements of a parameter are not.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from optax import ScaleByAdamState

# Rounding in a gradient, relative to the largest one of all: some 16 units in the last place.
NOISE = 1e-6
# No more than these can be noise in a test that says something.
MOST_NOISE = 0.05


def plain(x: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(getattr(x, "dtype", np.int32), jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def _is_adam(x: Any) -> bool:
    return isinstance(x, ScaleByAdamState)


def slack(before: Any, expected: Any) -> list[np.ndarray]:
    """How far rounding can move each element of a state's leaves, given the state before.

    A parameter of Adam's is moved by up to twice the longest update of any, as far as its first
    moment is noise; moments are moved by the noise; nothing else is.
    """
    nodes = jax.tree.leaves_with_path(expected, is_leaf=_is_adam)
    adams = {path: node for path, node in nodes if _is_adam(node)}
    first = [x for node in adams.values() for x in jax.tree.leaves_with_path(node.mu)]
    moments = {path: np.abs(plain(x)) for path, x in first}
    largest = max((x.max() for x in moments.values() if x.size), default=0.0)
    leaves = jax.tree.leaves_with_path(expected)
    old = [plain(x) for x in jax.tree.leaves(before)]
    new = [plain(x) for _, x in leaves]
    found = [np.zeros(x.shape) for x in new]
    own: list[tuple[int, np.ndarray]] = []  # Parameters and their moments.
    for place, (path, _) in enumerate(leaves):
        shape = new[place].shape
        inside = [p for p in adams if path[: len(p)] == p]
        if inside:
            of_squares = path[len(inside[0])].name == "nu"
            found[place] += NOISE * largest ** (2 if of_squares else 1)
            continue
        # The longest that fits: state["params"]["w"] belongs to the moment ["w"].
        ends = [p for p in moments if path[len(path) - len(p) :] == p]
        fits = [p for p in ends if moments[p].shape == shape]
        if fits:
            own.append((place, moments[max(fits, key=len)]))
    step = max((np.abs(new[i] - old[i]).max() for i, m in own if m.size), default=0.0)
    noise = 0
    for place, moment in own:
        share = NOISE * largest / np.where(moment > 0, moment, np.inf)
        found[place] = 2 * step * np.minimum(share, 1)
        noise += np.count_nonzero(share > 0.1)
    assert noise <= MOST_NOISE * sum(moment.size for _, moment in own), "too much is noise"
    return found


def check_state(before: Any, found: Any, expected: Any, rtol: float, atol: float = 0.0) -> None:
    """A state is the expected one.

    Args:
        before: the state from which both were made.
        rtol: largest difference, relative to the leaf's largest magnitude.
        atol: largest difference in a leaf of zeros.
    """
    room = slack(before, expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    wanted = jax.tree.leaves_with_path(expected)
    for (path, want), got, extra in zip(wanted, jax.tree.leaves(found), room, strict=True):
        want, got = plain(want), plain(got)
        assert got.shape == want.shape, path
        if not want.size:
            continue
        if want.dtype.kind not in "fcV":
            np.testing.assert_array_equal(got, want, err_msg=jax.tree_util.keystr(path))
            continue
        want, got = want.astype(np.float64), got.astype(np.float64)
        allowed = atol + rtol * np.abs(want).max() + extra
        tiny = np.finfo(np.float64).tiny  # Nothing may differ in a leaf of zeros.
        over = np.abs(got - want) / np.maximum(allowed, tiny)
        worst = np.unravel_index(np.nanargmax(over), over.shape)
        assert over[worst] <= 1, (
            f"{jax.tree_util.keystr(path)}{list(map(int, worst))}: {got[worst]} instead of "
            f"{want[worst]}, {over[worst]:.3g} times as far as allowed"
        )
