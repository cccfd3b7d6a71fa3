"""Every covered family, role, padding and way against a loop over records with ordinary autograd."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dp.engines import ROLES, assert_matches, make_batch, send_all_to
from tests.dp.float64 import keep_float64
from tests.families import EXPERTS, FAMILY_NAMES, family_classifier

PADDINGS = ("right", "none", "left")
WAYS = ("ghost", "direct", "auto")
TINY_NORM = 1e-3


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_float64(monkeypatch)


def is_shifted(family: str, padding: str) -> bool:
    """Left padding shifts a record's positions, whose rotary angles are float32 in every model.

    So the record without padding has another gradient, by float32; the loop is given its padding, too.
    """
    return padding == "left" and family != "switch_transformers"


def compare(family: str, role: str, padding: str, way: str, dtype: torch.dtype) -> None:
    model = family_classifier(family, dtype)
    batch = make_batch(model, role, padding, records=5, tokens=6)
    assert_matches(
        model,
        role,
        batch,
        norms=(None, TINY_NORM),
        singles=way == "auto",
        keep_padding=is_shifted(family, padding),
        way=way,
    )


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_norms_and_sums_are_those_of_a_loop_over_records(family: str, role: str) -> None:
    """One padding and way for each pair; the slow grid has them all."""
    turn = FAMILY_NAMES.index(family) + ROLES.index(role)
    compare(family, role, PADDINGS[turn % 3], WAYS[(turn + 2) % 3], torch.float64)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_whole_grid_agrees_with_a_loop_over_records(family, role, padding, way, dtype) -> None:
    compare(family, role, padding, way, dtype)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_left_padding_changes_no_more_than_the_rounding_of_positions(family: str) -> None:
    model = family_classifier(family)
    batch = make_batch(model, "monolithic", "left", records=5, tokens=6)
    assert_matches(model, "monolithic", batch, tolerance=1e-5)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_float32_agrees_too(family: str) -> None:
    compare(family, "monolithic", "right", "auto", torch.float32)
    compare(family, "expert", "right", "auto", torch.float32)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    family=st.sampled_from(["olmoe", "deepseek_v2", "switch_transformers"]),
    role=st.sampled_from(ROLES),
    padding=st.sampled_from(PADDINGS),
    way=st.sampled_from(WAYS),
    records=st.integers(1, 6),
    tokens=st.integers(2, 7),
    norm=st.sampled_from([1e-4, None, 1e4]),
    only_expert=st.none() | st.integers(0, EXPERTS - 1),
    stray_owners=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_any_shape_routing_and_clipping_norm(
    family, role, padding, way, records, tokens, norm, only_expert, stray_owners, seed
) -> None:
    """Among them: as many records as tokens, all tokens at one expert, owners that no token goes to."""
    model = family_classifier(family, seed=seed)
    if only_expert is not None:
        send_all_to(model, only_expert)
    batch = make_batch(model, role, padding, records=records, tokens=tokens, seed=seed)
    if stray_owners:
        generator = torch.Generator().manual_seed(seed)
        owners = torch.randint(0, EXPERTS, batch.owners.shape, generator=generator)
        batch = dataclasses.replace(batch, owners=owners)
    assert_matches(model, role, batch, norms=(norm,), keep_padding=is_shifted(family, padding), way=way)
