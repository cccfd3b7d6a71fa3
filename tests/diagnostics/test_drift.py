"""Margins: exact for a token, safe for a record's owner, and refused where a router is not a linear map."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from raptor.diagnostics.drift import (
    LinearRouter,
    RoutedTokens,
    certain_owners,
    drift_between,
    owner_stability,
    routed_tokens,
    token_margins,
)
from raptor.errors import ModelError
from raptor.moe.families import sparse_layer
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import Vote, record_votes
from tests.tiny import tiny_batch, tiny_encoder

WIDTH, EXPERTS = 6, 5


def router(top_k: int, gates: str, seed: int = 0) -> LinearRouter:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(EXPERTS, WIDTH, generator=generator, dtype=torch.float64)
    bias = 0.3 * torch.randn(EXPERTS, generator=generator, dtype=torch.float64)
    return LinearRouter(weight, bias, top_k, gates)  # type: ignore[arg-type]


def tokens(records: int = 40, seed: int = 1) -> RoutedTokens:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (records,), generator=generator)
    hidden = torch.randn(int(lengths.sum()), WIDTH, generator=generator, dtype=torch.float64)
    return RoutedTokens(hidden, torch.arange(records).repeat_interleave(lengths), records)


def chosen(map_: LinearRouter, hidden: Tensor) -> list[set[int]]:
    return [set(row.tolist()) for row in map_.scores(hidden).topk(map_.top_k, dim=1).indices]


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_margin_is_the_distance_to_the_nearest_face(top_k: int) -> None:
    map_, hidden = router(top_k, "softmax"), tokens().hidden
    margins = token_margins(map_, hidden)
    before = chosen(map_, hidden)
    directions = []
    for row, token in enumerate(hidden):
        scores = map_.scores(token)
        ways = [
            ((scores[a] - scores[b]) / (map_.weight[a] - map_.weight[b]).norm(), a, b)
            for a in before[row]
            for b in range(EXPERTS)
            if b not in before[row]
        ]
        nearest, a, b = min(ways, key=lambda way: float(way[0]))
        assert float(margins[row]) == pytest.approx(float(nearest))
        directions.append(nn.functional.normalize(map_.weight[b] - map_.weight[a], dim=0))
    towards = torch.stack(directions)
    assert chosen(map_, hidden + (1 - 1e-6) * margins[:, None] * towards) == before
    after = chosen(map_, hidden + (1 + 1e-6) * margins[:, None] * towards)
    assert all(new != old for new, old in zip(after, before, strict=True))
    generator = torch.Generator().manual_seed(2)
    for _ in range(20):
        step = nn.functional.normalize(
            torch.randn(hidden.shape, generator=generator, dtype=torch.float64), dim=1
        )
        assert chosen(map_, hidden + 0.999 * margins[:, None] * step) == before


@pytest.mark.parametrize("vote", ["weight", "count"])
@pytest.mark.parametrize(("top_k", "gates"), [(1, "softmax"), (2, "softmax"), (2, "chosen softmax")])
def test_an_owner_that_is_sure_stays_whatever_the_drift(vote: Vote, top_k: int, gates: str) -> None:
    map_, given = router(top_k, gates), tokens()
    before, probabilities = map_.gated(given.hidden)

    def owners(values: Tensor) -> Tensor:
        ballots = (values > 0).double() if vote == "count" else values
        return assign_owners(given.per_record(ballots))

    first, margins = owners(before), token_margins(map_, given.hidden)
    generator = torch.Generator().manual_seed(3)
    some_sure = False
    for drift in (0.005, 0.02, 0.1, 0.4):
        sure = certain_owners(given, map_, vote, drift, before, probabilities, margins)
        some_sure = some_sure or bool(sure.any())
        for trial in range(40):
            step = torch.randn(given.hidden.shape, generator=generator, dtype=torch.float64)
            if trial % 2:
                # Towards one rival, for all tokens of a record alike: what harms it most.
                rival = torch.randint(EXPERTS, (given.records,), generator=generator)[given.record]
                step = map_.weight[rival] - map_.weight[first[given.record]]
            moved = map_.gated(given.hidden + drift * nn.functional.normalize(step, dim=1))[0]
            assert bool((owners(moved) == first)[sure].all())
    assert some_sure


def test_shares_lie_in_order_and_grow_with_the_drift() -> None:
    map_, given = router(1, "softmax"), tokens(200)
    found = owner_stability(given, map_, "weight", [0.0, 0.01, 0.1, 1.0, 100.0])
    assert list(found.unsure) == sorted(found.unsure)
    assert all(moved <= unsure for moved, unsure in zip(found.moved, found.unsure, strict=True))
    assert found.moved[0] == 0
    assert found.unsure[-1] == 1.0


def test_tokens_of_a_model_vote_as_selection_lets_them_vote() -> None:
    encoder = tiny_encoder()
    ids, mask, _ = tiny_batch(30)
    given, map_ = routed_tokens(encoder, ids, mask.sum(dim=1), 1)
    assert len(given.hidden) == int(mask.sum())
    votes = given.per_record(map_.gated(given.hidden)[0])
    assert votes == pytest.approx(record_votes(encoder, ids, mask)[1], abs=1e-5)
    same = drift_between(given, given, (map_, map_), "weight")
    assert (same.median, same.moved, same.missed) == (0.0, 0.0, 0.0)
    with torch.no_grad():
        encoder.get_input_embeddings().weight.add_(
            0.7 * torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
        )
    after, same_map = routed_tokens(encoder, ids, mask.sum(dim=1), 1)
    moved = drift_between(given, after, (map_, same_map), "weight")
    assert 0 < moved.median <= moved.most
    assert 0 < moved.moved <= 1


def test_a_router_that_is_no_linear_map_is_refused() -> None:
    encoder = tiny_encoder()
    inner = sparse_layer(encoder, 1).router.get_submodule("classifier")
    assert isinstance(inner, nn.Linear)
    inner.register_forward_hook(lambda _module, _given, output: output.sin())
    ids, mask, _ = tiny_batch(12)
    with pytest.raises(ModelError, match="linear map and a softmax"):
        routed_tokens(encoder, ids, mask.sum(dim=1), 1)
