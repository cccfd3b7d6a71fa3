"""Numbers in words and figures that a reader without statistics understands. Epsilon is never rounded down."""

from __future__ import annotations

from math import ceil, exp, log10

ADJACENCY = {
    "add-remove": "Two data sets are neighbours when one has {unit} that the other lacks (add/remove).",
    "replace-one": "Two data sets are neighbours when {unit} of one is exchanged for another (replace-one).",
}
PERCENT = "\N{NO-BREAK SPACE}%"
UNITS = {"record": "one record", "user": "one user with all of that user's records"}


def percent(share: float, digits: int = 1) -> str:
    """`0.523` as `52.3 %`."""
    return f"{100 * share:.{digits}f}{PERCENT}"


def points(difference: float) -> str:
    """A difference of shares as signed percentage points."""
    return f"{100 * difference:+.1f}".replace("-", "\N{MINUS SIGN}")


def round_up(value: float, digits: int = 2) -> str:
    """A bound that is shown must still be a bound, so it is rounded up; float dust does not count."""
    scale = 10**digits
    return f"{ceil(value * scale - 1e-9) / scale:.{digits}f}"


def certainty(epsilon: float) -> float:
    """Largest belief, from an even chance, that an epsilon-private release can lead to: e^eps / (1 + e^eps)."""
    return 1 / (1 + exp(-epsilon))


def raised_belief(prior: float, epsilon: float) -> float:
    """Largest belief from any prior: the odds grow by at most e^eps."""
    odds = prior / (1 - prior) * exp(epsilon)
    return odds / (1 + odds)


def certainty_percent(share: float) -> str:
    """A bound on a belief in per cent, rounded up; near certainty with digits enough not to read 100 %."""
    digits = 1
    while digits < 9 and float(round_up(100 * share, digits)) >= 100:
        digits += 1
    return f"{round_up(100 * share, digits)}{PERCENT}"


def small(value: float) -> str:
    """A small number without a padded exponent: `1e-6`, `0.05`."""
    text = f"{value:.3g}"
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else text


def one_in(delta: float) -> str:
    """`1e-06` as `1 in 1,000,000`."""
    return f"1 in {round(1 / delta):,}"


def times(factor: float) -> str:
    """A factor in two leading digits at least: `2.7`, `20`, `3,000`."""
    if factor < 10:
        return f"{ceil(factor * 10 - 1e-9) / 10:.1f}"
    scale = 10 ** max(int(log10(factor)) - 1, 0)
    return f"{ceil(factor / scale - 1e-9) * scale:,}"


def compact(value: object) -> str:
    """A parameter as a person would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return small(value) if abs(value) < 1e-3 else f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(compact(item) for item in value)
    return "none" if value is None else str(value)
