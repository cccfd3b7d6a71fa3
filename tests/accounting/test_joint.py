"""Shared samples, layers, experts of unequal noise and single releases: all come down to events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.accounting.accountant import epsilon
from raptor.accounting.compose import renyi_epsilon
from raptor.accounting.joint import (
    Step,
    epsilon_of_owners,
    joint_multiplier,
    owner_sequences,
    shared_sample,
)
from raptor.accounting.types import Adjacency, Event
from raptor.errors import ParameterError

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
Q, DELTA = 1024 / 67349, 1 / 673490
SLACK = 1.5e-4
noises = st.floats(0.3, 30.0)
many = st.lists(noises, min_size=1, max_size=5)
quick = settings(max_examples=15, deadline=None)


def cost(events, delta=DELTA, adjacency=ADD) -> float:
    return epsilon(events, delta, adjacency, confirm=False).epsilon


@given(many, st.randoms())
def test_joint_noise_adds_in_precision_in_any_order(values, random) -> None:
    joint = joint_multiplier(values)
    assert joint == pytest.approx(sum(value**-2 for value in values) ** -0.5)
    assert joint <= min(values) * (1 + 1e-15)
    shuffled = random.sample(values, len(values))
    assert joint_multiplier(shuffled) == pytest.approx(joint, rel=1e-15)
    assert joint_multiplier([joint_multiplier(values[:1]), *values[1:]]) == pytest.approx(joint)


@pytest.mark.parametrize("size", [1e-200, 1e-160, 1.0, 1e200])
def test_joint_noise_of_any_size(size) -> None:
    assert joint_multiplier([size, size]) == pytest.approx(size / math.sqrt(2), rel=1e-14)


@quick
@given(st.floats(1e-3, 0.5), many, st.integers(1, 300), st.sampled_from(list(Adjacency)))
def test_a_shared_sample_is_one_release_and_no_cheaper_than_its_parts(rate, values, steps, adjacency) -> None:
    together = cost([shared_sample(rate, values, steps)], 1e-6, adjacency)
    for value in values:
        assert cost([Event(rate, value, steps)], 1e-6, adjacency) <= together * (1 + SLACK) + SLACK * 1e-6


def test_without_sampling_a_shared_sample_is_plain_composition() -> None:
    apart = [Event(1.0, 9.0, 10), Event(1.0, 12.0, 10)]
    assert cost([shared_sample(1.0, [9.0, 12.0], 10)]) == pytest.approx(cost(apart), rel=1e-9)


def test_a_shared_sample_costs_more_than_independent_ones() -> None:
    shared = cost([shared_sample(Q, [0.9, 0.9], 500)])
    apart = cost([Event(Q, 0.9, 1000)])
    assert apart < shared
    assert shared == pytest.approx(7.8, rel=0.05)


def test_two_draws_are_two_chances_where_delta_is_near_the_chance_of_being_sampled() -> None:
    assert cost([shared_sample(0.01, [0.2, 0.2], 1)], 0.012) == 0
    assert cost([Event(0.01, 0.2, 2)], 0.012) > 1


def test_layers_and_experts_of_a_step() -> None:
    step = Step(0.1, ((2.0,), (0.8, 1.6), (1.0, 3.0)))
    assert step.event(7) == Event(0.1, joint_multiplier([2.0, 0.8, 1.0]), 7)
    assert step.event_of((0, 1, 1), 7) == Event(0.1, joint_multiplier([2.0, 1.6, 3.0]), 7)
    sequences = owner_sequences([(step, 7), (Step(0.2, step.releases), 3)])
    assert len(sequences) == 4
    assert all([event.steps for event in events] == [7, 3] for events in sequences)


def test_owners_of_opposite_schedules() -> None:
    # Two experts whose noise alternates 0.8 and 1.6 in opposite phase; the reference values of both rules.
    schedule = [(Step(Q, ((0.8, 1.6),)), 250), (Step(Q, ((1.6, 0.8),)), 250)]
    fixed = epsilon_of_owners(owner_sequences(schedule), DELTA, ADD, confirm=False)
    assert fixed.epsilon == pytest.approx(3.32448, rel=5e-5)
    assert cost([step.event(steps) for step, steps in schedule]) == pytest.approx(4.10674, rel=5e-5)
    replaced = epsilon_of_owners(owner_sequences(schedule), DELTA, REPLACE, confirm=False)
    assert replaced.epsilon == cost([Event(Q, 0.8, 500)], adjacency=REPLACE)


@pytest.mark.parametrize(("noise", "truth"), [(0.8, 4.10674), (1.0, 2.36200), (1.5, 1.14730)])
def test_the_quietest_expert_sets_the_guarantee(noise, truth) -> None:
    step = Step(Q, ((2.0, noise, 2.0),))
    found = epsilon_of_owners(owner_sequences([(step, 500)]), DELTA, ADD, confirm=False)
    assert found.epsilon == pytest.approx(truth, rel=5e-5)
    assert found.owner == 1


@quick
@given(st.lists(st.lists(noises, min_size=2, max_size=2), min_size=1, max_size=3), st.floats(1e-3, 0.5))
def test_fixed_owners_never_cost_more_than_moving_ones(multipliers, rate) -> None:
    schedule = [(Step(rate, (tuple(blocks),)), 50) for blocks in multipliers]
    sequences = owner_sequences(schedule)
    fixed = epsilon_of_owners(sequences, 1e-6, ADD, confirm=False)
    moving = cost([step.event(steps) for step, steps in schedule], 1e-6)
    assert fixed.epsilon <= moving * (1 + SLACK) + SLACK * 1e-6
    assert fixed.epsilon == max(cost(events, 1e-6) for events in sequences)
    assert fixed.epsilon == cost(sequences[fixed.owner], 1e-6)


def test_an_owner_of_the_second_largest_renyi_bound_may_be_the_worst() -> None:
    rare, gaussian = [Event(0.001, 0.5, 20)], [Event(1.0, 2.0, 1)]
    assert renyi_epsilon(rare, 1e-5, ADD) > renyi_epsilon(gaussian, 1e-5, ADD)
    found = epsilon_of_owners([rare, gaussian], 1e-5, ADD, confirm=False)
    assert (found.epsilon, found.owner) == (cost(gaussian, 1e-5), 1)
    assert found.epsilon > cost(rare, 1e-5)


def test_equal_owners_cost_as_much_as_one() -> None:
    found = epsilon_of_owners([[Event(Q, 1.0, 200)]] * 64, DELTA, ADD, confirm=False)
    assert (found.epsilon, found.owner) == (cost([Event(Q, 1.0, 200)]), 0)


def test_single_releases_are_charged_beside_the_steps() -> None:
    steps = [Event(Q, 1.0, 200)]
    sampled, whole = (cost([*steps, Event(rate, 5.0, 1)]) for rate in (Q, 1.0))
    assert cost(steps) < sampled < whole


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: joint_multiplier([]), "at least one release"),
        (lambda: joint_multiplier([1.0, 0.0]), "above 0"),
        (lambda: Step(0.1, ()), "at least one release"),
        (lambda: Step(0.1, ((1.0,), ())), "at least one block"),
        (lambda: Step(0.1, ((-1.0,),)), "above 0"),
        (lambda: Step(1.5, ((1.0,),)), "rate"),
        (lambda: Step(0.1, ((1.0,),)).event_of((0, 0), 1), "as many owners"),
        (lambda: Step(0.1, ((1.0,),)).event_of((1,), 1), "no block 1"),
        (lambda: owner_sequences([]), "same releases"),
        (
            lambda: owner_sequences([(Step(0.1, ((1.0,),)), 1), (Step(0.1, ((1.0, 1.0),)), 1)]),
            "same releases",
        ),
        (lambda: owner_sequences([(Step(0.1, ((1.0,) * 70, (1.0,) * 70)), 1)]), "4900 combinations"),
        (lambda: epsilon_of_owners([], DELTA, ADD), "at least one owner"),
        (lambda: epsilon_of_owners([[Event(0.1, 1, 5)], [Event(0.1, 2, 6)]], DELTA, REPLACE), "alike"),
        (lambda: epsilon_of_owners([[Event(0.1, 1, 5)], [Event(0.1, 2, 5)] * 2], DELTA, REPLACE), "alike"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, message) -> None:
    with pytest.raises(ParameterError, match=message):
        make()
