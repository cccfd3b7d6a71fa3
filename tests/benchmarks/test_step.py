"""The benchmark of steps gives whole rows, and measures peers that compute the same as we do. No times here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks import table
from benchmarks.cases import BY_NAME, subject
from benchmarks.clock import peak_bytes
from benchmarks.measure import CYCLE, RAPTOR, WITH_NOISE
from benchmarks.methods import EXPERT, MONOLITHIC, RULE, SHARED, Floor, Ours, engine_of
from benchmarks.peers import PEERS, UNCOVERED, OpacusGhost, OpacusHooks
from benchmarks.step import main

from raptor.dp.clipping import NORM_MARGIN, ClippingRule


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_quick_run_on_tiny_cases_gives_valid_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "rows.jsonl"
    cases = ["tiny", "tiny monolithic", "tiny experts"]
    main(["--quick", "--rounds", "1", "--cases", *cases, "--json", str(place)])
    rows = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    assert {row["case"] for row in rows} == set(cases)
    found = {(row["method"], row["role"]) for row in rows}
    ours = {(method, role) for method in (RAPTOR, WITH_NOISE) for role in (SHARED, EXPERT, MONOLITHIC)}
    peers = {(name, role) for name, (_, roles) in PEERS.items() for role in roles}
    assert found >= ours | peers | {(RAPTOR, CYCLE)}
    for row in rows:
        if "missing" in row:
            assert row["missing"]
            continue
        for key in ("time_ratio", "memory_ratio", "floor_seconds", "floor_bytes"):
            assert 0 < row[key] < math.inf, (row, key)
        assert row["rounds"] == 1
    printed = capsys.readouterr().out
    assert all(name in printed for name in cases)
    main(["--table", str(place)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rows) + 2
    assert len({line.count("|") for line in lines}) == 1


def test_a_missing_peer_is_a_row_of_the_table() -> None:
    row = {"case": "tiny", "method": "Opacus ghost", "role": SHARED, "missing": "not installed"}
    for text in (table.plain([row]), table.markdown([row])):
        assert "Opacus ghost" in text
        assert "missing: not installed" in text


def test_targets() -> None:
    def target(case: str, method: str, role: str) -> float | None:
        return table.time_target({"case": case, "method": method, "role": role})

    assert target("olmoe2 32x64", RAPTOR, SHARED) == 1.05
    assert target("width512 16x64", RAPTOR, SHARED) == 1.03
    assert target("olmoe2 32x64", WITH_NOISE, EXPERT) == 1.08
    assert target("experts 32x64", f"{RAPTOR}, E=64 over E=8", SHARED) == 1.10
    assert target("olmoe2 32x64", "Opacus hooks", SHARED) is None


def test_peak_counts_what_a_step_leaves_behind() -> None:
    floor = Floor(subject(BY_NAME["tiny"], 4), SHARED)
    floor.prepare()
    floor.run()
    gradients = sum(
        parameter.grad.nbytes for parameter in floor._subject.model.parameters() if parameter.grad is not None
    )
    assert peak_bytes(floor) > gradients > 0


@pytest.mark.parametrize("build", [OpacusHooks, OpacusGhost])
@pytest.mark.parametrize("case", ["tiny", "tiny monolithic"])
def test_opacus_and_we_give_the_same_clipped_sums_on_the_shared_role(
    build: type[OpacusHooks] | type[OpacusGhost], case: str
) -> None:
    pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'raptor[bench]'")
    target = subject(BY_NAME[case], 4)
    engine = engine_of(target, SHARED)
    # Opacus cannot train the relative bias, so it is left out of our norm as well.
    names = tuple(name for name in engine.parameters if UNCOVERED not in name)
    engine = type(engine)(target.model, names)  # type: ignore[call-arg]
    # We aim a public margin below C; that margin is no disagreement.
    ours = engine.clipped_sum(target.batch, ClippingRule(RULE.norm / (1.0 - NORM_MARGIN))).tensors
    peer = build(target, SHARED)
    peer.prepare()
    peer.run()
    for (name, theirs), mine in zip(peer.sums().items(), ours.values(), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=2e-4, atol=2e-6, msg=name)


def test_floor_of_experts_trains_the_protected_layer_only() -> None:
    target = subject(BY_NAME["tiny"], 4)
    floor, ours = Floor(target, EXPERT), Ours(target, EXPERT)
    ours.prepare()
    ours.run()
    assert ours.result is not None
    floor.prepare()
    trained = {name for name, parameter in target.model.named_parameters() if parameter.requires_grad}
    assert trained == set(ours.result.tensors)
