"""Loops of gradient accumulation inside of a step, as one pass over the whole batch.

A step that was written for one device and a small memory goes through its batch in rounds: a
`jax.lax.scan` (or a `fori_loop` or `while_loop` of a known number of rounds) takes the gradients
of one part of the batch in each round and adds them to those before, or gives them out
(`jax.lax.map`) to be added up behind the loop. Such rounds are independent of each other, so
mapping them (`jax.vmap`) and adding up what they give is the same step. It is the form in which
the compiler splits a step over micro-batches by itself, one round or several in each, and cuts it
into stages; a loop it could not cut.

What goes from round to round is one of

- a sum (or a largest, a smallest, ..) to which a round adds what does not depend on it;
- an array of which each round writes its own part;
- the same value in all rounds;
- a counter, a random key or the like, which follows from few and small ops. These run in a loop of
  their own, or are known here.

Arrays that a round slices at its counter are cut into rounds before. A loop with anything else in
it stays a loop.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy
import numpy as np
from alpa_runtime import jax_internals
from alpa_runtime.calling_convention import regrouped
from jax.extend import core, source_info_util

from alpa_mlir.trace import dependencies
from alpa_mlir.trace.jaxprs import (
    CHECKPOINTS,
    Values,
    bind,
    bodies,
    call_body,
    draws_by_shape,
    is_literal,
    placed,
    user_line,
)

_jax: Any = jax
_jnp: Any = jax.numpy
_core: Any = core
_source: Any = source_info_util

_SUMS = ("add", "add_any", "sub", "scatter-add")
_PLACES = ("sharding_constraint",)  # What a sum may go through on its way.
_REDUCERS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    **dict.fromkeys(_SUMS, ("sum", _jnp.add, _jnp.sum)),
    "max": ("max", _jnp.maximum, _jnp.max),
    "min": ("min", _jnp.minimum, _jnp.min),
    "and": ("and", _jnp.bitwise_and, _jnp.bitwise_and.reduce),
    "or": ("or", _jnp.bitwise_or, _jnp.bitwise_or.reduce),
}
_FEW = 4096  # Elements of what is computed here.
# What only a device should compute, so that it is not done once for each round beside the rounds.
_LARGE = ("dot_general", "conv_general_dilated", "scan", "while", "cond", "custom_vjp_call")


def takes_rounds(jaxpr: Any) -> bool:
    """Whether a step has loops that take gradients."""
    return any(True for _ in _lengths(jaxpr))


def evaluate(
    closed: Any, args: Sequence[Any], grouped: Mapping[int, int] | None = None
) -> tuple[list[Any], int]:
    """Results of a step's jaxpr with the rounds of its loops mapped.

    Args:
        grouped: by number of an argument, the rounds between which its rows alternate for the
            step, and which stand behind each other in what is given (see `interleaved`).

    Returns:
        The results, and a number of micro-batches which each are one or several whole rounds of
        all loops: the greatest common divisor of their numbers of rounds. It is 0 if no loop was
        mapped. A warning says of each other loop that adds up gradients why it was not.
    """
    step = _Step()
    given, rows = list(args), dict[Any, _Rows]()
    for number, count in (grouped or {}).items():
        given[number] = regrouped(args[number], args[number].shape[0] // count)
        variable = closed.jaxpr.invars[number]
        rows[variable] = _Rows(frozenset([number]), count, value=args[number])
    results = step.run(closed.jaxpr, closed.consts, given, {}, rows)
    return results, math.gcd(*step.lengths)


def interleaved(jaxpr: Any) -> dict[int, int]:
    """Arguments of a step that its loops take every so many rows of: by number, of how many.

    `x.reshape(rows, rounds, ..).swapaxes(0, 1)` gives each round rows from all over the batch.
    Micro-batches are rows one behind another, so such arguments have to be grouped by rounds.
    """
    lengths = set(_lengths(jaxpr))
    found: dict[int, set[int]] = {}
    start = {v: _Rows(frozenset([i])) for i, v in enumerate(jaxpr.invars) if len(v.aval.shape)}
    _follow(jaxpr, start, found)
    return {leaf: min(x) for leaf, x in found.items() if len(x) == 1 and x <= lengths}


def scanned(jaxpr: Any) -> frozenset[int]:
    """Arguments of which the loops of a step that take gradients take one element a round, as they
    were given: their first dimension is the rounds."""
    found = _scanned(jaxpr)
    return frozenset(i for i, v in enumerate(jaxpr.invars) if v in found)


def _scanned(jaxpr: Any) -> set[Any]:
    found: set[Any] = set()
    for eqn in jaxpr.eqns:
        body = call_body(eqn)
        if body is not None and len(body[0].invars) == len(eqn.invars):
            inner = _scanned(body[0])
            pairs = zip(eqn.invars, body[0].invars, strict=True)
            found |= {x for x, v in pairs if v in inner and not is_literal(x)}
        elif _takes_gradients(eqn):
            first = sum(jax_internals.scan_operands(eqn))
            found |= {x for x in eqn.invars[first:] if not is_literal(x)}
    return found


def _lengths(jaxpr: Any) -> Iterator[int]:
    for eqn in jaxpr.eqns:
        body = call_body(eqn)
        if body is not None:
            yield from _lengths(body[0])
        elif _is_while_of_gradients(eqn):
            try:
                yield _counted_rounds(eqn)
            except _StaysError:
                yield 1
        elif _takes_gradients(eqn):
            yield int(eqn.params["length"])


@dataclass(frozen=True)
class _Rows:
    """A value of which each row follows from those of arguments that stand there.

    Attributes:
        leaves: numbers of the arguments.
        rounds: between which the rows alternate; 0 where that is not known yet.
        is_cut: whether it has become `[rows, rounds, ..]`.
        value: it with the rows of one round behind those of another, before it was cut; None
            while nothing is evaluated.
    """

    leaves: frozenset[int]
    rounds: int = 0
    is_cut: bool = False
    value: Any = None

    def after(
        self, eqn: Any, rows: Mapping[Any, _Rows], operands: Sequence[Any] = (), debug: Any = None
    ) -> _Rows | None:
        """What an equation makes of it, if that is such a value too.

        Args:
            rows: all values that are.
            operands: of the equation; empty while nothing is evaluated.
            debug: of the jaxpr that holds it, with unknown names.
        """
        if self.is_cut or len(eqn.outvars) != 1:
            return None
        shape, given = eqn.outvars[0].aval.shape, eqn.invars[0].aval.shape
        if eqn.primitive.name == "reshape" and len(eqn.invars) == 1:
            value = self.value
            if shape[:1] == given[:1]:
                return replace(self, value=None if value is None else value.reshape(shape))
            is_cut = len(shape) > 1 and given[0] == shape[0] * shape[1] and shape[1] > 1
            if is_cut and self.rounds in (0, shape[1]):
                return replace(self, rounds=shape[1], is_cut=True)
            return None
        found = [None if is_literal(v) else rows.get(v) for v in eqn.invars]
        if eqn.primitive.name not in _ELEMENTWISE or eqn.effects:
            return None
        if any(v.aval.shape not in ((), shape) for v in eqn.invars):
            return None
        if any(x is not None and (x.is_cut or x.rounds != self.rounds) for x in found):
            return None
        leaves = frozenset(leaf for x in found if x is not None for leaf in x.leaves)
        if self.value is None:
            return replace(self, leaves=leaves)
        inverse = [
            row.value if row is not None else regrouped(x, self.rounds) if v.aval.shape else x
            for x, row, v in zip(operands, found, eqn.invars, strict=True)
        ]
        (value,) = bind(eqn, inverse, debug)
        return replace(self, leaves=leaves, value=value)

    def is_turned(self, eqn: Any) -> bool:
        """Whether an equation gives the rounds, `[rounds, rows, ..]`."""
        if not self.is_cut or eqn.primitive.name != "transpose":
            return False
        order = tuple(eqn.params["permutation"])
        return order == (1, 0, *range(2, len(order)))


# Of arrays of the same shape, and of single numbers.
_ELEMENTWISE = {
    *("abs", "add", "and", "ceil", "clamp", "convert_element_type", "copy", "cos", "div", "eq"),
    *("exp", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic"),
    *("lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "rem", "round", "rsqrt"),
    *("select_n", "sign", "sin", "sqrt", "square", "sub", "tanh", "xor"),
}


def _first_rows(eqn: Any, rows: Mapping[Any, _Rows]) -> _Rows | None:
    return next((rows[v] for v in eqn.invars if not is_literal(v) and v in rows), None)


def _entered(body: Any, eqn: Any, rows: Mapping[Any, _Rows]) -> dict[Any, _Rows]:
    """The values that a call is given, by the names that its body has for them."""
    pairs = zip(body.invars, eqn.invars, strict=True)
    return {v: rows[x] for v, x in pairs if not is_literal(x) and x in rows}


def _follow(jaxpr: Any, rows: dict[Any, _Rows], found: dict[int, set[int]]) -> list[Any]:
    """Find which arguments a jaxpr turns to rounds; gives what is known of its results."""
    for eqn in jaxpr.eqns:
        first = _first_rows(eqn, rows)
        if first is None:
            continue
        body = call_body(eqn)
        if body is not None and len(body[0].invars) == len(eqn.invars):
            made = _follow(body[0], _entered(body[0], eqn, rows), found)
            rows.update((v, x) for v, x in zip(eqn.outvars, made, strict=True) if x is not None)
        elif first.is_turned(eqn):
            for leaf in first.leaves:
                found.setdefault(leaf, set()).add(first.rounds)
        else:
            after = first.after(eqn, rows)
            if after is not None:
                rows[eqn.outvars[0]] = after
    return [None if is_literal(v) else rows.get(v) for v in jaxpr.outvars]


def _takes_gradients(eqn: Any) -> bool:
    return (
        eqn.primitive.name == "scan"
        and int(eqn.params["length"]) > 1
        and dependencies.phase_of(str(eqn.source_info.name_stack)) == "update"
        and dependencies.has_gradients(eqn.params["jaxpr"].jaxpr)
    )


def _is_while_of_gradients(eqn: Any) -> bool:
    return (
        eqn.primitive.name == "while"
        and dependencies.phase_of(str(eqn.source_info.name_stack)) == "update"
        and dependencies.has_gradients(eqn.params["body_jaxpr"].jaxpr)
    )


# By the comparison of a counter with a number: it with sides exchanged, and how many steps of a
# size a counter takes over a distance before the comparison is false.
_COMPARISONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "lt": ("gt", lambda distance, step: -(-distance // step)),
    "le": ("ge", lambda distance, step: distance // step + 1),
    "gt": ("lt", lambda distance, step: -(-distance // step)),
    "ge": ("le", lambda distance, step: distance // step + 1),
    "ne": ("ne", lambda distance, step: -1 if distance % step else distance // step),
}


def _counted_rounds(eqn: Any) -> int:
    """Rounds of a `while_loop` that takes gradients.

    Raises:
        _StaysError: no counter says their number.
    """
    condition, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    skipped = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    name = condition.eqns[0].primitive.name if len(condition.eqns) == 1 else ""
    if name not in _COMPARISONS or condition.outvars != condition.eqns[0].outvars:
        raise _StaysError(
            "its condition is not one comparison of a counter with a number, so that the number "
            "of rounds is not known; fix: use jax.lax.scan or fori_loop"
        )
    counter, bound = condition.eqns[0].invars
    exchanged, count = _COMPARISONS[name]
    if is_literal(counter):
        name, counter, bound = exchanged, bound, counter
    carried = condition.invars[skipped[0] :]
    place = carried.index(counter) if not is_literal(counter) and counter in carried else -1
    start = eqn.invars[sum(skipped) + place] if place >= 0 else counter
    if not (place >= 0 and is_literal(bound) and is_literal(start)):
        raise _StaysError(
            "what its counter begins with or is compared with is computed, so that the number of "
            "rounds is not known; fix: begin with a Python number, and compare with one"
        )
    dtype, found = counter.aval.dtype, -1
    if np.issubdtype(dtype, np.integer):
        step = _step_of(body, body.invars[skipped[1] + place], body.outvars[place])
        begin, distance = int(start.val), int(bound.val) - int(start.val)
        sign = -1 if name in ("gt", "ge") or (name == "ne" and step < 0) else 1
        if name != "ne" and (sign * distance < 0 or (not distance and name in ("lt", "gt"))):
            return 0
        found = count(sign * distance, sign * step) if sign * step > 0 else -1
        # A counter that passes the largest number would go on at the smallest.
        info = np.iinfo(dtype)
        if not info.min <= begin + found * step <= info.max:
            found = -1
    if found < 0:
        raise _StaysError(
            "its counter does not go to a number in whole steps of one size, so that the number of "
            "rounds is not known; fix: use jax.lax.scan or fori_loop"
        )
    return found


def _step_of(body: Any, before: Any, after: Any) -> int:
    """What a round adds to a counter; 0 where that is not one whole number."""
    for eqn in body.eqns:
        if after not in eqn.outvars or eqn.primitive.name not in ("add", "sub"):
            continue
        by = [v for v in eqn.invars if v is not before]
        is_less = eqn.primitive.name == "sub"
        if len(by) == 1 and is_literal(by[0]) and not (is_less and eqn.invars[0] is not before):
            return -int(by[0].val) if is_less else int(by[0].val)
    return 0


def _as_scan(eqn: Any, length: int, operands: Sequence[Any]) -> Any:
    """A `while_loop` of so many rounds as a jaxpr with a scan."""
    first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    body = eqn.params["body_jaxpr"]

    def function(*operands: Any) -> list[Any]:
        consts, start = operands[first : first + second], operands[first + second :]

        def one(carry: list[Any], _: Any) -> tuple[list[Any], None]:
            return _core.jaxpr_as_fun(body)(*consts, *carry), None

        return _jax.lax.scan(one, list(start), None, length=length)[0]

    return _jax.make_jaxpr(function)(*operands)


class _StaysError(Exception):
    """Why a loop cannot be mapped, and what to do."""


class _OtherLoopError(_StaysError):
    """It neither adds up gradients nor gives them out, round by round: several steps of training,
    say."""


class _Step:
    """Evaluates a step equation by equation.

    Attributes:
        lengths: numbers of rounds of the loops that were mapped.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def run(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        args: Sequence[Any],
        facts: dict[Any, np.ndarray],
        rows: dict[Any, _Rows],
        call: Any | None = None,
    ) -> list[Any]:
        """Results of a jaxpr.

        Args:
            facts: the variables whose values are known here.
            rows: the variables that have rows of arguments that are grouped by rounds; those of
                results are added.
            call: the equation whose body it is.
        """
        values = Values.at_start(jaxpr, consts, args)
        debug = jaxpr.debug_info.with_unknown_names()
        for eqn in jaxpr.eqns:
            eqn = placed(eqn, call)
            operands = values.read(eqn.invars)
            known = [_fact(v, facts) for v in eqn.invars]
            _learn(eqn, known, facts, debug)
            body, first = call_body(eqn), _first_rows(eqn, rows)
            if first is not None and first.is_turned(eqn):
                results = [_jnp.reshape(first.value, eqn.outvars[0].aval.shape)]
            elif (
                body is not None
                and len(body[0].invars) == len(operands)
                and (first is not None or takes_rounds(body[0]))
            ):
                inside = {v: x for v, x in zip(body[0].invars, known, strict=True) if x is not None}
                entered = _entered(body[0], eqn, rows)
                results = self.run(*body, operands, inside, entered, eqn)
                made = zip(eqn.outvars, body[0].outvars, strict=True)
                rows.update((v, entered[x]) for v, x in made if not is_literal(x) and x in entered)
            elif _is_while_of_gradients(eqn):
                results = self._while(eqn, operands, known, debug)
            elif _takes_gradients(eqn):
                results = self._loop(eqn, operands, known, debug)
            else:
                results = bind(eqn, operands, debug)
                after = None if first is None else first.after(eqn, rows, operands, debug)
                if after is not None:
                    rows[eqn.outvars[0]] = after
            values.write(eqn.outvars, results)
        return values.read(jaxpr.outvars)

    def _while(
        self, eqn: Any, operands: Sequence[Any], known: Sequence[Any], debug: Any
    ) -> list[Any]:
        try:
            length = _counted_rounds(eqn)
        except _StaysError as error:
            if _adds_up(_as_scan(eqn, 2, operands)):
                _warn(eqn, error)
            return bind(eqn, operands, debug)
        if length <= 1:
            return bind(eqn, operands, debug)
        scan = _as_scan(eqn, length, operands)
        inside = zip(scan.jaxpr.invars, known, strict=True)
        learned = {v: x for v, x in inside if x is not None}
        return self.run(scan.jaxpr, scan.consts, operands, learned, {}, eqn)

    def _loop(
        self, eqn: Any, operands: Sequence[Any], known: Sequence[Any], debug: Any
    ) -> list[Any]:
        try:
            with _source.user_context(
                eqn.source_info.traceback,
                name_stack=_source.current_name_stack() + eqn.source_info.name_stack,
            ):
                results = _Loop(eqn, known).mapped(operands)
        except _OtherLoopError:
            return bind(eqn, operands, debug)
        except _StaysError as error:
            _warn(eqn, error)
            return bind(eqn, operands, debug)
        self.lengths.append(int(eqn.params["length"]))
        return results


def _adds_up(scan: Any) -> bool:
    """Whether a scan, the last one of a jaxpr, adds up gradients, or could not be mapped for
    another reason than that it does something else."""
    eqn = next(e for e in reversed(scan.jaxpr.eqns) if e.primitive.name == "scan")
    try:
        _Loop(eqn, [None] * len(eqn.invars))
    except _OtherLoopError:
        return False
    except _StaysError:
        return True
    return True


def _warn(eqn: Any, reason: _StaysError) -> None:
    place = user_line(eqn)
    at = f" at {place}" if place else ""
    warnings.warn(
        f"the loop of the step that takes gradients{at} stays a loop: its rounds are not "
        f"micro-batches, and no stage ends within it, because {reason}",
        stacklevel=4,
    )


def _fact(atom: Any, facts: dict[Any, np.ndarray]) -> np.ndarray | None:
    if not is_literal(atom):
        return facts.get(atom)
    return np.asarray(atom.val, atom.aval.dtype) if _is_plain(atom.aval) else None


def _is_plain(aval: Any) -> bool:
    """Whether NumPy has such arrays."""
    return isinstance(getattr(aval, "dtype", None), np.dtype)


def _size(aval: Any) -> int:
    return math.prod(aval.shape)


def _learn(eqn: Any, known: Sequence[Any], facts: dict[Any, np.ndarray], debug: Any) -> None:
    """Add what an equation gives to the facts, if it is known and small, or one number."""
    avals = [v.aval for v in eqn.outvars]
    if eqn.effects or any(x is None for x in known) or not all(map(_is_plain, avals)):
        return
    if eqn.primitive.name == "broadcast_in_dim" and len(known) == 1 and known[0].size == 1:
        facts[eqn.outvars[0]] = np.broadcast_to(known[0].reshape(()), avals[0].shape)
    elif all(_size(a) <= _FEW for a in (*avals, *(v.aval for v in eqn.invars))):
        with _jax.ensure_compile_time_eval():
            found = bind(eqn, [_jnp.asarray(x) for x in known], debug)
        facts.update((v, np.asarray(x)) for v, x in zip(eqn.outvars, found, strict=True))


@dataclass
class _Carry:
    """What goes from round to round.

    Attributes:
        before: the variable at the beginning of a round.
        after: that at its end.
        first: the equation that takes `before`, of sums and arrays.
        reducer: how sums are added up.
        start: the operand of `first` that is `before`, or is it in another place.
        skipped: the equations that say so.
        may_skip: whether a round may leave a sum as it is (`jnp.where(is_finite, sum + x, sum)`).
        starts: where rounds write their parts of an array, `[rounds, dimensions]`.
        sizes: of a part.
    """

    before: Any
    after: Any
    first: Any = None
    reducer: str = ""
    start: Any = None
    skipped: frozenset[int] = frozenset()
    may_skip: bool = False
    starts: np.ndarray | None = field(default=None)
    sizes: tuple[int, ...] = ()

    @property
    def is_same(self) -> bool:
        return self.before is self.after

    @property
    def is_apart(self) -> bool:
        """Whether no round needs what the rounds before it made."""
        return self.first is not None


class _Loop:
    """One loop, its body without calls.

    Args:
        eqn: of the scan.
        known: its operands, as far as they are known.
    """

    def __init__(self, eqn: Any, known: Sequence[Any]) -> None:
        params = eqn.params
        self.length = int(params["length"])
        self.reverse = bool(params["reverse"])
        closed = _without_calls(params["jaxpr"])
        self.jaxpr, self.consts = closed.jaxpr, closed.consts
        self.debug = self.jaxpr.debug_info.with_unknown_names()
        count, carried = jax_internals.scan_operands(eqn)
        split = count + carried
        variables = self.jaxpr.invars[len(self.jaxpr.invars) - len(eqn.invars) :]
        self.hidden = self.jaxpr.invars[: len(self.jaxpr.invars) - len(eqn.invars)]
        self.fixed, self.xs = variables[:count], variables[split:]
        self.num_consts, self.num_carry = count, carried
        self.known = known
        self.producer = {v: e for e in self.jaxpr.eqns for v in e.outvars}
        atoms = [v for e in self.jaxpr.eqns for v in e.invars] + list(self.jaxpr.outvars)
        self.uses = Counter(v for v in atoms if not is_literal(v))
        self.carries = [
            _Carry(before, after)
            for before, after in zip(variables[count:split], self.jaxpr.outvars, strict=False)
        ]
        self.same = self._same()
        self.ends: dict[Any, np.ndarray] = {}  # Of counters, behind the last round.
        self.facts = self._facts()
        for carry in self.carries:
            if not carry.is_same:
                self._recognize(carry)
        self.sequence = [c for c in self.carries if not (c.is_same or c.is_apart)]
        adds_up = any(c.reducer for c in self.carries)
        taken = [
            c for c in self.carries if not is_literal(c.after) and c.after in self._of_gradients()
        ]
        try:
            self.steps = self._steps()
        except _StaysError:
            if self._are_trained(taken) or not (adds_up or taken or self._gives_gradients()):
                raise _OtherLoopError from None
            raise
        if not adds_up and not self._gives_gradients():
            raise _OtherLoopError
        self.cuts = self._cuts()
        self._check()

    # What is known of the body.

    def _of_gradients(self) -> set[Any]:
        """Variables that depend on gradients that a round takes."""
        found = set[Any]()
        for eqn in self.jaxpr.eqns:
            if "backward" in _phases(eqn) or any(
                not is_literal(v) and v in found for v in eqn.invars
            ):
                found.update(eqn.outvars)
        return found

    def _gives_gradients(self) -> bool:
        """Whether rounds give out gradients of their own, as `jax.lax.map` of them does."""
        found = self._of_gradients()
        return any(not is_literal(v) and v in found for v in self.jaxpr.outvars[self.num_carry :])

    def _are_trained(self, carries: Sequence[_Carry]) -> bool:
        """Whether a round takes gradients at what the rounds before it made of gradients."""
        for carry in carries:
            depending = self._depending(carry.before)
            for eqn in self.jaxpr.eqns:
                on = any(not is_literal(v) and v in depending for v in eqn.invars)
                if on and _phases(eqn) & {"forward", "backward"}:
                    return True
        return False

    def _same(self) -> set[Any]:
        """Variables that are the same in all rounds."""
        found = {*self.jaxpr.constvars, *self.hidden, *self.fixed}
        found |= {c.before for c in self.carries if c.is_same}
        for eqn in self.jaxpr.eqns:
            if not eqn.effects and all(is_literal(v) or v in found for v in eqn.invars):
                found.update(eqn.outvars)
        return found

    def _facts(self) -> dict[Any, np.ndarray]:
        """Variables whose values in all rounds are known, `[rounds, ..]`."""
        count, split = self.num_consts, self.num_consts + self.num_carry
        if self.length > _FEW:
            return {}
        found: dict[Any, np.ndarray] = {
            v: np.broadcast_to(x, (self.length, *x.shape))
            for v, x in zip(self.fixed, self.known[:count], strict=True)
            if x is not None and x.size <= _FEW
        }
        xs = zip(self.xs, self.known[split:], strict=True)
        found.update((v, x) for v, x in xs if x is not None and x.size <= _FEW)
        # Counters: what follows from its own known beginning, round after round.
        start = zip(self.carries, self.known[count:split], strict=True)
        now = {c.before: x for c, x in start if x is not None and not c.is_same}
        after = {c.before: c.after for c in self.carries if c.before in now}
        while True:
            needed = {v: self._needs(after[v], {*now, *found}) for v in now}
            kept = {v: x for v, x in now.items() if needed[v] is not None}
            if len(kept) == len(now):
                break
            now = kept
        wanted = {i for each in needed.values() if each for i in each}
        eqns = [e for e in self.jaxpr.eqns if id(e) in wanted]
        order = range(self.length)
        made: dict[Any, list[np.ndarray]] = {v: [] for v in now}
        for i in reversed(order) if self.reverse else order:
            facts = {**now, **{v: x[i] for v, x in found.items()}}
            for variable, value in now.items():
                made[variable].append(value)
            for eqn in eqns:
                _learn(eqn, [_fact(v, facts) for v in eqn.invars], facts, self.debug)
            after_round = {v: _fact(after[v], facts) for v in now}
            now = {v: x for v, x in after_round.items() if x is not None}
            if len(now) < len(after_round):
                return found  # Of too many elements.
        found.update((v, np.stack(x[::-1] if self.reverse else x)) for v, x in made.items())
        self.ends = now
        for eqn in self.jaxpr.eqns:
            self._learn_all(eqn, found)
        return found

    def _learn_all(self, eqn: Any, found: dict[Any, np.ndarray]) -> None:
        """Add what an equation gives in all rounds to what is found."""
        given = [v for v in eqn.invars if not is_literal(v)]
        if not given or any(v not in found for v in given):
            return
        each: list[dict[Any, np.ndarray]] = []
        for i in range(self.length):
            facts = {v: found[v][i] for v in given}
            _learn(eqn, [_fact(v, facts) for v in eqn.invars], facts, self.debug)
            if any(v not in facts for v in eqn.outvars):
                return
            each.append(facts)
        found.update((v, np.stack([facts[v] for facts in each])) for v in eqn.outvars)

    def _needs(self, atom: Any, allowed: set[Any]) -> set[int] | None:
        """Equations by which a value follows from the allowed variables, all of them small; None
        if it does not."""
        known = set(allowed)
        small: list[Any] = []
        for eqn in self.jaxpr.eqns:
            if eqn.effects or eqn.primitive.name in _LARGE:
                continue
            if all(is_literal(v) or v in known for v in eqn.invars):
                known.update(eqn.outvars)
                small.append(eqn)
        if not is_literal(atom) and atom not in known:
            return None
        wanted, found = {atom} if not is_literal(atom) else set[Any](), set[int]()
        for eqn in reversed(small):
            if any(v in wanted and v not in allowed for v in eqn.outvars):
                found.add(id(eqn))
                wanted.update(v for v in eqn.invars if not is_literal(v))
        return found

    def _recognize(self, carry: _Carry) -> None:
        """Fill in what a carry is: a sum, or an array of parts."""
        eqn = None if is_literal(carry.after) else self.producer.get(carry.after)
        if eqn is None or self.uses[carry.after] != 1:
            return
        name, uses = eqn.primitive.name, self.uses[carry.before]
        if name in ("dynamic_update_slice", "scatter"):
            if uses == 1 and eqn.invars[0] is carry.before:
                self._recognize_parts(carry, eqn)
            return
        depending = self._depending(carry.before)

        def through(eqn: Any) -> Any | None:
            """The operand of a sum through which it depends on the carry."""
            on = [v for v in eqn.invars if not is_literal(v) and v in depending]
            is_left = eqn.primitive.name not in ("sub", "scatter-add") or (
                bool(on) and eqn.invars[0] is on[0]
            )
            return on[0] if len(on) == 1 and is_left else None

        may_skip = name == "select_n" and uses == 2
        if may_skip:
            others = [v for v in eqn.invars[1:] if v is not carry.before]
            if eqn.invars[0] in depending or len(others) != 1 or len(eqn.invars) != 3:
                return
            eqn = None if is_literal(others[0]) else self.producer.get(others[0])
            if eqn is None or self.uses[others[0]] != 1 or eqn.primitive.name not in _SUMS:
                return
        elif uses != 1:
            return
        reducer, first, start, skipped = "", None, None, set[int]()
        while True:
            if eqn.primitive.name in _PLACES:
                skipped.add(id(eqn))
            elif eqn.primitive.name not in _REDUCERS:
                return
            else:
                found = _REDUCERS[eqn.primitive.name][0]
                if reducer not in ("", found):
                    return
                reducer, first, start, skipped = found, eqn, through(eqn), set[int]()
            on = through(eqn)
            if on is carry.before:
                break
            if on is None or self.uses[on] != 1:
                return
            eqn = self.producer[on]
        if first is not None:
            carry.first, carry.reducer, carry.may_skip = first, first.primitive.name, may_skip
            carry.start, carry.skipped = start, frozenset(skipped)

    def _converted(self, carry: _Carry) -> Any | None:
        """The type of a sum that is converted between rounds; None for all else."""
        converted, on = False, carry.after
        while on is not carry.before:
            eqn = None if is_literal(on) else self.producer.get(on)
            if eqn is None or eqn.primitive.name not in ("convert_element_type", *_REDUCERS):
                return None
            depending = self._depending(carry.before)
            converted |= eqn.primitive.name == "convert_element_type"
            given = [v for v in eqn.invars if not is_literal(v) and v in depending]
            if len(given) != 1:
                return None
            on = given[0]
        return carry.before.aval.dtype if converted else None

    def _recognize_parts(self, carry: _Carry, eqn: Any) -> None:
        """A carry of which each round writes its own part."""
        if eqn.primitive.name == "scatter":
            found = self._scattered(eqn)
        else:
            starts = self._starts(eqn.invars[2:])
            found = None if starts is None else (starts, tuple(eqn.invars[1].aval.shape))
        if found is not None and _progression(*found) is not None:
            starts, sizes = found
            if (starts >= 0).all() and (starts + sizes <= carry.before.aval.shape).all():
                carry.first, (carry.starts, carry.sizes) = eqn, found

    def _scattered(self, eqn: Any) -> tuple[np.ndarray, tuple[int, ...]] | None:
        """Starts and sizes of a scatter that writes one part, as `x.at[i].set(y)` does."""
        numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
        index = self.facts.get(eqn.invars[1])
        dims, parts = numbers.scatter_dims_to_operand_dims, eqn.invars[2].aval
        if index is None or index.shape[1:] != (len(dims),) or numbers.operand_batching_dims:
            return None
        if len(numbers.update_window_dims) != len(parts.shape):
            return None
        starts = np.zeros((self.length, len(shape)), np.int64)
        starts[:, list(dims)] = index
        left = list(parts.shape)
        sizes = [1 if i in numbers.inserted_window_dims else left.pop(0) for i in range(len(shape))]
        return starts, tuple(sizes)

    def _depending(self, variable: Any) -> set[Any]:
        found = {variable}
        for eqn in self.jaxpr.eqns:
            if any(not is_literal(v) and v in found for v in eqn.invars):
                found.update(eqn.outvars)
        return found

    def _steps(self) -> list[Any]:
        """Equations by which the carries that rounds hand on follow from each other."""
        allowed = {*self.same, *self.xs, *(c.before for c in self.sequence)}
        found: set[int] = set()
        for carry in self.sequence:
            needed = self._needs(carry.after, allowed)
            by_phase = [
                dependencies.phase_of(str(e.source_info.name_stack))
                for e in self.jaxpr.eqns
                if needed and id(e) in needed
            ]
            if needed is None or "backward" in by_phase:
                if dtype := self._converted(carry):
                    raise _StaysError(
                        f"a round converts the sum of those before it, of type {dtype}; fix: add "
                        "up in one type"
                    )
                readers: Iterator[Any] = (e for e in self.jaxpr.eqns if carry.before in e.invars)
                place = next((line for e in readers if (line := user_line(e))), "")
                raise _StaysError(
                    f"a round needs {_text(carry.before.aval)} of the round before it"
                    f"{f' at {place}' if place else ''} for more "
                    "than a sum, a largest or smallest value, or rows that it does not touch"
                )
            found |= needed
        return [e for e in self.jaxpr.eqns if id(e) in found]

    def _starts(self, atoms: Sequence[Any]) -> np.ndarray | None:
        """Indices in all rounds, `[rounds, dimensions]`."""
        columns: list[np.ndarray] = []
        for atom in atoms:
            fact = _fact(atom, {}) if is_literal(atom) else self.facts.get(atom)
            if fact is None:
                return None
            columns.append(np.broadcast_to(fact.reshape(-1), (self.length,)).astype(np.int64))
        return np.stack(columns, 1) if columns else None

    def _cuts(self) -> dict[int, np.ndarray]:
        """Equations that slice what is the same in all rounds, one part behind the other."""
        found: dict[int, np.ndarray] = {}
        for eqn in self.jaxpr.eqns:
            if eqn.primitive.name != "dynamic_slice" or eqn.invars[0] not in self.same:
                continue
            starts = self._starts(eqn.invars[1:])
            if starts is not None and not all(v in self.same for v in eqn.outvars):
                starts = np.clip(
                    starts, 0, np.subtract(eqn.invars[0].aval.shape, eqn.params["slice_sizes"])
                )
                if _progression(starts, eqn.params["slice_sizes"]) is not None:
                    found[id(eqn)] = starts
        return found

    def _check(self) -> None:
        """Refuse what has another meaning, or another price, when rounds are mapped."""
        mapped = {*self.xs, *(c.before for c in self.sequence)}
        for eqn in self.jaxpr.eqns:
            if id(eqn) in self.cuts:
                mapped.update(eqn.outvars)
            if not any(not is_literal(v) and v in mapped for v in eqn.invars):
                continue
            mapped.update(eqn.outvars)
            _check_mapped(eqn, mapped)

    # The loop's results.

    def mapped(self, operands: Sequence[Any]) -> list[Any]:
        """Results of the loop, of rounds that are mapped."""
        count, split = self.num_consts, self.num_consts + self.num_carry
        start = dict(zip((c.before for c in self.carries), operands[count:split], strict=True))
        values = Values((*self.jaxpr.constvars, *self.hidden), self.consts)
        values.write(self.fixed, operands[:count])
        values.write(
            (c.before for c in self.carries if c.is_same),
            [start[c.before] for c in self.carries if c.is_same],
        )
        for eqn in self.jaxpr.eqns:
            if all(v in self.same for v in eqn.outvars):
                values.write(eqn.outvars, bind(eqn, values.read(eqn.invars), self.debug))
        xs = operands[split:]
        ends, handed_on = self._in_sequence(values, start, xs)
        cut = [eqn for eqn in self.jaxpr.eqns if id(eqn) in self.cuts]
        parts = [
            _parts(values.read(eqn.invars[:1])[0], self.cuts[id(eqn)], eqn.params["slice_sizes"])
            for eqn in cut
        ]
        apart = [c for c in self.carries if c.is_apart]
        begun = {id(c.first): c for c in apart}
        left_out = {i for c in apart for i in c.skipped}

        def one(parts: list[Any], handed_on: list[Any], xs: list[Any], _: Any) -> Any:
            inner = values.copy()
            inner.write(self.xs, xs)
            inner.write([c.before for c in self.sequence], handed_on)
            skipped = [c.before for c in apart if c.may_skip]
            inner.write(skipped, [_jnp.zeros(v.aval.shape, v.aval.dtype) for v in skipped])
            of = {id(eqn): part for eqn, part in zip(cut, parts, strict=True)}
            for eqn in self.jaxpr.eqns:
                if id(eqn) in left_out or all(v in self.same for v in eqn.outvars):
                    continue
                if id(eqn) in of:
                    inner.write(eqn.outvars, [of[id(eqn)]])
                elif id(eqn) in begun:
                    inner.write(eqn.outvars, [_begun(eqn, begun[id(eqn)], inner, self.debug)])
                else:
                    inner.write(eqn.outvars, bind(eqn, inner.read(eqn.invars), self.debug))
            return (
                inner.read([c.after for c in apart]),
                inner.read(self.jaxpr.outvars[self.num_carry :]),
            )

        try:
            with jax_internals.mapped_products():
                found, ys = _jax.vmap(one)(
                    parts, handed_on, list(xs), np.zeros(self.length, np.int8)
                )
        except (NotImplementedError, ValueError) as error:
            raise _StaysError(f"it holds an op that cannot be mapped: {error}") from error
        made = {id(c): x for c, x in zip(apart, found, strict=True)}
        made.update((id(c), x) for c, x in zip(self.sequence, ends, strict=True))
        of_start = self.known[count:split]
        results = [
            start[c.before] if c.is_same else self._joined(c, start[c.before], made[id(c)], fact)
            for c, fact in zip(self.carries, of_start, strict=True)
        ]
        return [*results, *ys]

    def _in_sequence(
        self, values: Values, start: dict[Any, Any], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Carries that rounds hand on: behind the last round, and before each, `[rounds, ..]`."""
        before = [c.before for c in self.sequence]
        counted = {v: x for v in before if (x := self._counted(v)) is not None}
        if len(counted) == len(before):
            return [self.ends[v] for v in before], [counted[v] for v in before]

        def one(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            inner = values.copy()
            inner.write(before, carry)
            inner.write(self.xs, xs)
            for eqn in self.steps:
                if not all(v in self.same for v in eqn.outvars):
                    inner.write(eqn.outvars, bind(eqn, inner.read(eqn.invars), self.debug))
            return inner.read([c.after for c in self.sequence]), carry

        first = [
            _jax.lax.convert_element_type(start[v], v.aval.dtype) if _is_plain(v.aval) else start[v]
            for v in before
        ]
        ends, each = _jax.lax.scan(one, first, list(xs), length=self.length, reverse=self.reverse)
        return ends, [counted.get(v, x) for v, x in zip(before, each, strict=True)]

    def _counted(self, variable: Any) -> Any | None:
        """A counter in all rounds, `[rounds]`; None for what counts otherwise."""
        fact = self.facts.get(variable)
        if fact is None or variable not in self.ends or not np.issubdtype(fact.dtype, np.integer):
            return None
        steps = np.diff(fact)
        if fact.ndim != 1 or (steps != steps[:1]).any():
            return None
        dtype, step = fact.dtype, steps[0] if len(steps) else 0
        return _jax.lax.iota(dtype, len(fact)) * dtype.type(step) + fact[0]

    def _joined(self, carry: _Carry, start: Any, made: Any, fact: np.ndarray | None) -> Any:
        """A carry behind the last round."""
        if carry.starts is not None:
            return _written(start, made, carry.starts, carry.sizes)
        if not carry.is_apart:
            return made
        _, pair, over = _REDUCERS[carry.reducer]
        total = over(made, axis=0).astype(carry.before.aval.dtype)
        if carry.reducer in _SUMS and fact is not None and not np.any(fact):
            return total
        return pair(start, total)


def _phases(eqn: Any) -> set[str]:
    """Phases of an equation, and of those within it."""
    if any(map(dependencies.has_gradients, bodies(eqn))):
        return {"forward", "backward"}
    return {dependencies.phase_of(str(eqn.source_info.name_stack))}


def _begun(eqn: Any, carry: _Carry, values: Values, debug: Any) -> Any:
    """What a round adds: the sum behind it if there was nothing before."""
    if carry.starts is not None:
        part = eqn.invars[2 if eqn.primitive.name == "scatter" else 1]
        return _jnp.reshape(values.read([part])[0], carry.sizes)
    if eqn.primitive.name == "scatter-add":
        nothing = _jnp.zeros(carry.before.aval.shape, carry.before.aval.dtype)
        return bind(eqn, [nothing, *values.read(eqn.invars[1:])], debug)[0]
    other = next(v for v in eqn.invars if is_literal(v) or v is not carry.start)
    value = values.read([other])[0]
    return -value if eqn.primitive.name == "sub" else value


def _without_calls(closed: Any) -> Any:
    """A body with its plain calls written out, and without conversions to the same type."""

    def run(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], call: Any = None) -> list[Any]:
        values = Values.at_start(jaxpr, consts, args)
        debug = jaxpr.debug_info.with_unknown_names()
        for eqn in jaxpr.eqns:
            eqn = placed(eqn, call)
            operands = values.read(eqn.invars)
            body = call_body(eqn)
            if body is not None and len(body[0].invars) == len(operands):
                results = run(*body, operands, eqn)
            elif _is_same_number(eqn):
                results = operands
            elif eqn.primitive.name in CHECKPOINTS and _holds_gradients(eqn):
                results = run(eqn.params["jaxpr"], (), operands)  # Nothing differentiates it.
            else:
                results = bind(eqn, operands, debug)
            values.write(eqn.outvars, results)
        return values.read(jaxpr.outvars)

    def function(*args: Any) -> list[Any]:
        return run(closed.jaxpr, closed.consts, args)

    return _jax.make_jaxpr(function)(*closed.in_avals)


def _holds_gradients(eqn: Any) -> bool:
    return (
        dependencies.phase_of(str(eqn.source_info.name_stack)) == "update"
        and any(map(dependencies.has_gradients, bodies(eqn)))
        and len(bodies(eqn)[0].invars) == len(eqn.invars)
    )


def _is_same_number(eqn: Any) -> bool:
    """Whether an equation changes nothing but whether a number's type is weak."""
    if eqn.primitive.name != "convert_element_type":
        return False
    return _is_plain(eqn.invars[0].aval) and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype


def _check_mapped(eqn: Any, mapped: set[Any]) -> None:
    name = eqn.primitive.name
    place = user_line(eqn)
    at = f" at {place}" if place else ""
    first = eqn.invars[0] if eqn.invars else None
    decides = name == "cond" and not is_literal(first) and first in mapped
    if decides or (name == "while" and _ends_by(eqn, mapped)):
        raise _StaysError(f"a round decides by its own values what to compute ({name}){at}")
    if draws_by_shape(eqn):
        raise _StaysError(
            f"it draws random bits that depend on the shapes of arrays ({name}){at}; fix: use "
            "keys of jax.random.key(.., impl='threefry2x32')"
        )
    for body in bodies(eqn):
        _check_body(body)


def _ends_by(eqn: Any, mapped: set[Any]) -> bool:
    """Whether values that differ between rounds decide how often a `while_loop` runs."""
    first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    condition, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr

    def depending(jaxpr: Any, flags: Sequence[bool]) -> list[bool]:
        found = {v for v, flag in zip(jaxpr.invars, flags, strict=True) if flag}
        for inner in jaxpr.eqns:
            if any(not is_literal(v) and v in found for v in inner.invars):
                found.update(inner.outvars)
        return [not is_literal(v) and v in found for v in jaxpr.outvars]

    given = [not is_literal(v) and v in mapped for v in eqn.invars]
    consts, carried = given[first : first + second], given[first + second :]
    while True:
        after = depending(body, [*consts, *carried])
        together = [a or b for a, b in zip(after, carried, strict=True)]
        if together == carried:
            return depending(condition, [*given[:first], *carried])[0]
        carried = together


def _check_body(jaxpr: Any) -> None:
    for eqn in jaxpr.eqns:
        _check_mapped(eqn, {v for v in eqn.invars if not is_literal(v)})


def _text(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _progression(starts: np.ndarray, sizes: Sequence[int]) -> int | None:
    """The dimension in which parts follow each other without gaps, if there is one."""
    steps: Any = starts[1:] - starts[:-1]
    moving = np.flatnonzero(steps.any(axis=0))
    if len(moving) != 1 or set(map(int, steps[:, moving[0]])) != {sizes[moving[0]]}:
        return None
    return int(moving[0])


def _parts(x: Any, starts: np.ndarray, sizes: Sequence[int]) -> Any:
    """Parts of an array that follow each other, `[parts, ..]`."""
    dim = _progression(starts, sizes)
    assert dim is not None
    count = len(starts)
    begin = list(map(int, starts[0]))
    end = [
        b + s * (count if i == dim else 1)
        for i, (b, s) in enumerate(zip(begin, sizes, strict=True))
    ]
    if (begin, end) != ([0] * len(begin), list(x.shape)):
        x = _jax.lax.slice(x, begin, end)
    shape = [n for i, s in enumerate(sizes) for n in ((count, s) if i == dim else (s,))]
    return _jnp.moveaxis(_jax.lax.reshape(x, shape), dim, 0)


def _written(x: Any, parts: Any, starts: np.ndarray, sizes: Sequence[int]) -> Any:
    """An array of which parts that follow each other are replaced."""
    dim = _progression(starts, sizes)
    assert dim is not None
    shape = [len(starts) * s if i == dim else s for i, s in enumerate(sizes)]
    whole = _jax.lax.reshape(_jnp.moveaxis(parts, 0, dim), shape)
    if tuple(shape) == tuple(x.shape):
        return whole
    return _jax.lax.dynamic_update_slice(x, whole, list(map(int, starts[0])))
