"""The routing profile and the layer plan: as JSON and back, and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from raptor.moe.statistics import Gap, LayerStatistics, LoadStatistics, RoutingStatistics


def to_json(statistics: RoutingStatistics) -> dict[str, Any]:
    """``layers``, one flat object a layer, and ``gaps``, one object a pair of layers."""
    return {
        "layers": [
            {
                "layer": row.layer,
                **asdict(row.load),
                "entropy_standard_error": row.entropy_standard_error,
                "vote_agreement": row.vote_agreement,
            }
            for row in statistics.layers
        ],
        "gaps": [asdict(gap) for gap in statistics.gaps],
    }


def from_json(profile: Mapping[str, Any]) -> RoutingStatistics:
    """Inverse of ``to_json``; other keys of the profile are left alone."""
    return RoutingStatistics(
        layers=tuple(_layer(dict(row)) for row in profile["layers"]),
        gaps=tuple(Gap(**gap) for gap in profile["gaps"]),
    )


def _layer(row: dict[str, Any]) -> LayerStatistics:
    own = {key: row.pop(key) for key in ("layer", "entropy_standard_error", "vote_agreement")}
    return LayerStatistics(load=LoadStatistics(**{**row, "counts": tuple(row["counts"])}), **own)


def headline(plan: Mapping[str, Any]) -> str:
    """The choice of a layer plan in one line."""
    if len(plan["layers"]) > 1:
        layers = ", ".join(map(str, plan["layers"]))
        return f"Layers {layers} are protected, the {len(plan['layers'])} most even ones"
    layer, runner_up = plan["layers"][0], plan["runner_up"]
    if runner_up is None:
        return f"Layer {layer} is the only candidate"
    gap = f"{plan['gap']:.4f} nats (standard error {plan['gap_standard_error']:.4f})"
    if plan["significant"]:
        return f"Layer {layer} is the most even, {gap} ahead of layer {runner_up}"
    return f"Layer {layer} is taken, but no layer wins: {gap} to layer {runner_up}"
