"""Every value of the shared reference file has a check; a kind of value that is not known fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raptor.accounting.accountant import epsilon
from raptor.accounting.calibration import calibrate, split_sum
from raptor.accounting.compose import renyi_epsilon
from raptor.accounting.joint import shared_sample
from raptor.accounting.types import Adjacency, Event, EventShape

from .test_accountant import ABSENT, CASES, cases

ADD = Adjacency.ADD_REMOVE
pytestmark = pytest.mark.skipif(not CASES.is_file(), reason=ABSENT)

# Relative room above and below a reference. Exact ones are met to what the accountant promises. Others come from
# an accountant on a grid of 1e-4, whose error, up to 3e-5 (5e-4 for a hundred thousand steps), is theirs.
EXACT = (1e-4, 1e-6)
GRID = (1e-4, 5e-5)
NOISE = 2e-4
RENYI = 2e-4
# Rows of two streams at epsilon 1 contradict the table of shared samples of the same settings by 1e-3.
NOISE_OF_ONE = 1.5e-3
MANY_STEPS = {"x-T1e5"}


def within(found: float, truth: float, room: tuple[float, float], unsure: float = 0.0) -> None:
    assert truth * (1 - room[1]) - unsure <= found <= truth * (1 + room[0]) + unsure


def cost(events: list[Event], delta: float) -> float:
    return epsilon(events, delta, ADD, confirm=False).epsilon


def noise(rate: float, steps: int, target: float, delta: float) -> float:
    return calibrate([EventShape(rate, steps)], target, delta, ADD, confirm=False).factor


def reference_epsilon(row: dict[str, Any]) -> None:
    found = cost([Event(row["q"], row["sigma"], row["T"])], row["delta"])
    within(found, row["reference_eps"], EXACT, row["reference_unc"])


def reference_upper_bounds(row: dict[str, Any]) -> None:
    # Bounds on three grids, the last one being the finest.
    found = cost([Event(row["q"], row["sigma"], row["T"])], row["delta"])
    within(found, row["tilted_upper_bounds_by_h"][-1], EXACT, row["reference_unc"])


def reference_renyi(row: dict[str, Any]) -> None:
    # Ours is near the best real order, so it is hardly above theirs at the best of their orders.
    events = [Event(row["q"], row["sigma"], row["T"])]
    found = renyi_epsilon(events, row["delta"], ADD)
    assert cost(events, row["delta"]) <= found
    for key in ("rdp_dp_accounting", "rdp_opacus"):
        assert found <= row[key]["eps"] * (1 + RENYI)


def reference_upper_estimates(row: dict[str, Any]) -> None:
    # Others are at most a little below the truth, where a tiny delta or a tiny noise is too much for them.
    found = cost([Event(row["q"], row["sigma"], row["T"])], row["delta"])
    for key in ("pld_dp_accounting_1e-4", "prv_opacus_epserr0.01", "prv_accountant_epserr0.01"):
        other = row.get(key, {}).get("eps")
        if other is not None:
            assert found <= other * (1 + 4e-4)


def finer(row: dict[str, Any], sigma: float) -> float:
    """What dp-accounting says of a noise multiplier on a grid of 2e-5."""
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=row["q"], value_discretization_interval=2e-5, use_connect_dots=True
    )
    return float(one.self_compose(row["T"]).get_epsilon_for_delta(row["delta"]))


def reference_noise(row: dict[str, Any]) -> None:
    for target, entry in row.get("calibration_sigma", {}).items():
        found = noise(row["q"], row["T"], float(target), row["delta"])
        assert found <= entry["pld"] * (1 + 3e-4)
        if row["id"] in MANY_STEPS:
            # On a grid of 1e-4 so many steps look dearer than they are; on a finer one theirs agrees with ours.
            assert finer(row, found) == pytest.approx(float(target), rel=3e-4)
        else:
            assert found >= entry["pld"] * (1 - 3e-4)
        assert found <= entry["rdp"] * (1 + 1e-4)


def composition_epsilon(block: dict[str, Any], row: dict[str, Any]) -> None:
    for kind in ("pld", "rdp"):
        events = [Event(block["q"], row[kind][key], block["T_each"]) for key in ("sigma_s", "sigma_e")]
        found = cost(events, block["delta"])
        if kind == "pld":
            within(found, row[kind]["joint_eps_same_sigma"], GRID)
        else:
            assert (
                found
                <= renyi_epsilon(events, block["delta"], ADD)
                <= row[kind]["joint_eps_same_sigma"] * (1 + RENYI)
            )


def composition_split(block: dict[str, Any], row: dict[str, Any]) -> None:
    streams = [[Event(block["q"], row["pld"][key], block["T_each"])] for key in ("sigma_s", "sigma_e")]
    assert row["delta_split"] == "d/2+d/2"
    within(split_sum(streams, block["delta"], ADD).epsilon, row["eps"], GRID)


def composition_noise(block: dict[str, Any], row: dict[str, Any]) -> None:
    split = row["pld"]
    shapes = [EventShape(block["q"], block["T_each"], split[key]) for key in ("sigma_s", "sigma_e")]
    found = calibrate(shapes, row["eps"], block["delta"], ADD, confirm=False)
    room = NOISE_OF_ONE if row["eps"] == 1 else NOISE
    assert found.factor == pytest.approx(split["kappa"], rel=room)
    assert found.noise_multipliers == pytest.approx((row["joint_sigma_s"], row["joint_sigma_e"]), rel=room)
    # Geometric mean over the streams of the joint noise over that of a split by Renyi divergences.
    ratios = [
        sigma / row["rdp"][key]
        for sigma, key in zip(found.noise_multipliers, ("sigma_s", "sigma_e"), strict=True)
    ]
    assert math.sqrt(math.prod(ratios)) == pytest.approx(row["kappa_rdpsplit_to_pldjoint"], rel=room)


def split_of_delta(block: dict[str, Any], row: dict[str, Any]) -> None:
    share = row["frac_sh"]
    # These rows are all of the total epsilon 4.
    for key, target, part in (
        ("sigma_s", 4 * row["rho"], share),
        ("sigma_e", 4 * (1 - row["rho"]), 1 - share),
    ):
        found = noise(block["q"], block["T_each"], target, block["delta"] * part)
        assert found == pytest.approx(row[key], rel=NOISE)


def shared_sample_noise(row: dict[str, Any]) -> None:
    rate, steps, target, delta = row["q"], row["T"], row["eps"], row["delta"]
    apart = noise(rate, 2 * steps, target, delta)
    shared = noise(rate, steps, target, delta) * 2**0.5
    assert apart == pytest.approx(row["sigma_independent"], rel=NOISE)
    assert shared == pytest.approx(row["sigma_same_batch"], rel=NOISE)
    assert shared / apart == pytest.approx(row["ratio_same_over_ind"], rel=NOISE)


def shared_sample_epsilon(row: dict[str, Any]) -> None:
    event = shared_sample(row["q"], [row["sigma_independent"]] * 2, row["T"])
    within(cost([event], row["delta"]), row["eps_same_at_sigma_ind"], GRID)
    event = shared_sample(row["q"], [row["sigma_same_batch"]] * 2, row["T"])
    within(cost([event], row["delta"]), row["eps"], GRID)


def half_batch_noise(row: dict[str, Any]) -> None:
    if row["sigma_indep_halfB"] is None:
        return
    found = noise(row["q"] / 2, 2 * row["T"], row["eps"], row["delta"])
    assert found == pytest.approx(row["sigma_indep_halfB"], rel=NOISE)
    ratio = 2 * found / row["sigma_same_batch"]
    assert ratio == pytest.approx(row["noise_per_signal_half_vs_same"], rel=NOISE)


# Which check looks at which value. None: a note, a setting, or a figure of another accountant that nothing can be
# asked of (an estimate that is no bound, a time, an approximation by the central limit theorem).
Check = Callable[..., None] | None
REFERENCE: dict[str, Check] = {
    **dict.fromkeys(["id", "q", "sigma", "T", "delta", "note", "reference_how", "reference_unc"]),
    "adjacency": None,
    "diff_vs_reference": None,
    "reference_eps": reference_epsilon,
    "tilted_upper_bounds_by_h": reference_upper_bounds,
    "rdp_dp_accounting": reference_renyi,
    "rdp_opacus": reference_renyi,
    "pld_dp_accounting_1e-4": reference_upper_estimates,
    "prv_opacus_epserr0.01": reference_upper_estimates,
    "prv_accountant_epserr0.01": reference_upper_estimates,
    "calibration_sigma": reference_noise,
}
COMPOSITION: dict[str, Check] = {
    **dict.fromkeys(["eps", "rho"]),
    "delta_split": composition_split,
    "rdp": composition_epsilon,
    "pld": composition_epsilon,
    "joint_sigma_s": composition_noise,
    "joint_sigma_e": composition_noise,
    "kappa_rdpsplit_to_pldjoint": composition_noise,
}
SPLIT_OF_DELTA: dict[str, Check] = {
    "rho": None,
    "frac_sh": None,
    "sigma_s": split_of_delta,
    "sigma_e": split_of_delta,
}
SAME_BATCH: dict[str, Check] = {
    **dict.fromkeys(["setting", "q", "T", "delta", "eps", "gdp_ratio"]),
    "sigma_independent": shared_sample_noise,
    "sigma_same_batch": shared_sample_noise,
    "ratio_same_over_ind": shared_sample_noise,
    "eps_same_at_sigma_ind": shared_sample_epsilon,
    "sigma_indep_halfB": half_batch_noise,
    "noise_per_signal_half_vs_same": half_batch_noise,
}
BLOCK = {"q": None, "T_each": None, "delta": None, "rows": COMPOSITION, "dsplit": SPLIT_OF_DELTA}


def known(kinds: dict[str, Any], entry: dict[str, Any], where: str) -> list[Any]:
    """The checks of an entry's values, each once.

    Fails on a value of an unknown kind.
    """
    unknown = set(entry) - set(kinds)
    assert not unknown, f"{where} has values of unknown kinds: {sorted(unknown)}"
    return list(dict.fromkeys(kinds[key] for key in entry if callable(kinds[key])))


def checks() -> Iterator[tuple[str, Callable[[], None]]]:
    data = cases()
    for kind, entries in data.items():
        if kind == "meta":
            continue
        if kind == "reference":
            rows = [((row,), REFERENCE, row["id"]) for row in entries]
        elif kind == "same_batch":
            rows = [((row,), SAME_BATCH, f"{row['setting']}-{row['eps']}") for row in entries]
        elif kind == "composition":
            for name, block in entries.items():
                known(BLOCK, block, name)
            rows = [
                ((block, row), kinds, f"{name}-{part}-{at}")
                for name, block in entries.items()
                for part, kinds in BLOCK.items()
                if kinds is not None
                for at, row in enumerate(block[part])
            ]
        else:
            raise AssertionError(f"the reference file has values of an unknown kind: {kind}")
        for arguments, kinds, where in rows:
            for check in known(kinds, arguments[-1], where):
                yield f"{kind}-{where}-{check.__name__}", lambda check=check, given=arguments: check(*given)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    """Noise is searched for, which takes seconds, and half a minute for a hundred thousand steps."""
    if "noise" not in name:
        return []
    return [pytest.mark.exhaustive if any(row in name for row in MANY_STEPS) else pytest.mark.slow]


def found_checks() -> list[Any]:
    """All checks as parameters of one test; what is wrong with the file fails it as well."""
    try:
        return [pytest.param(check, id=name, marks=_marks(name)) for name, check in checks()]
    except (AssertionError, KeyError, TypeError) as problem:
        return [pytest.param(problem, id="unknown")]


@pytest.mark.parametrize("check", found_checks())
def test_value(check) -> None:
    if isinstance(check, Exception):
        raise check
    check()


def test_no_entry_is_left_out() -> None:
    data = cases()
    blocks = data["composition"].values()
    entries = len(data["reference"]) + len(data["same_batch"])
    entries += sum(len(block["rows"]) + len(block["dsplit"]) for block in blocks)
    seen = {name.rpartition("-")[0] for name, _ in checks()}
    assert len(seen) == entries


def test_an_unknown_kind_fails(monkeypatch) -> None:
    changed = cases()
    changed["reference"][0]["eps_of_another_kind"] = 1.0
    monkeypatch.setattr(f"{__name__}.cases", lambda: changed)
    with pytest.raises(AssertionError, match="eps_of_another_kind"):
        list(checks())
    monkeypatch.setattr(f"{__name__}.cases", lambda: {"replace_one": []})
    with pytest.raises(AssertionError, match="unknown kind: replace_one"):
        list(checks())
