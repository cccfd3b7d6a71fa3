"""Profile the routing of the base model on public records, and choose the layer to protect."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raptor.pipelines.selection.config import SelectionConfig

if TYPE_CHECKING:
    import datasets
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)


def profile_routing(
    base_model: Path,
    public_corpus: datasets.Dataset,
    config: SelectionConfig,
    owner_vote: Literal["weight", "count"],
    max_length: int,
) -> dict[str, Any]:
    """Owner histogram, entropy, chi2 and their errors for every sparse layer, on public records.

    Args:
        base_model: directory of the public base model and its tokenizer.
        public_corpus: table with the column ``text``.
        config: parameters of the stage.
        owner_vote: rule by which a record's tokens vote for its owner: ``weight`` or ``count``.
        max_length: tokens of a record that are read, as in ingestion.

    Returns:
        The routing profile: ``layers`` and ``gaps`` of ``raptor.pipelines.selection.profile``, and what they were
        computed with.

    Raises:
        DataError: the corpus is empty.
        ModelError: the model has no sparse layer, or routes to no finite weight.
    """
    from raptor.moe.statistics import profile_layers
    from raptor.pipelines.selection.profile import to_json
    from raptor.pipelines.selection.voting import public_owners

    texts = public_corpus["text"][:]
    owners, experts = public_owners(base_model, texts, max_length)
    other_vote = "count" if owner_vote == "weight" else "weight"
    statistics = profile_layers(owners[owner_vote], owners[other_vote], experts, config.bootstrap)
    return {
        "owner_vote": owner_vote,
        "max_length": max_length,
        "records": len(texts),
        "bootstrap": config.bootstrap,
        **to_json(statistics),
    }


def select_layers(routing_profile: dict[str, Any], config: SelectionConfig) -> dict[str, Any]:
    """Choose the layer of the largest owner entropy, and say how sure the choice is.

    Returns:
        The layer plan: the fields of ``raptor.moe.statistics.LayerChoice``, with ``layers`` (indices, that of the
        largest entropy first) for its ``layer``, and the vote rule. ``"significant": false`` marks a choice whose gap
        to the runner-up is below two standard errors.

    Raises:
        ParameterError: ``selection.layers`` names a layer that is not sparse, or fewer layers than are to be protected.
    """
    from raptor.moe.statistics import choose_layers, ranked_layers
    from raptor.pipelines.selection.profile import from_json, headline

    profile = from_json(routing_profile)
    choice = choose_layers(profile, config.candidates([row.layer for row in profile.layers]))
    config.require_enough(choice.candidates)
    plan = {
        "layers": list(ranked_layers(profile, choice.candidates)[: config.protected_layers]),
        "rule": choice.rule,
        "entropy": choice.entropy,
        "experts": choice.experts,
        "runner_up": choice.runner_up,
        "gap": choice.gap,
        "gap_standard_error": choice.gap_standard_error,
        "significant": choice.significant,
        "not_distinguished": list(choice.not_distinguished),
        "candidates": list(choice.candidates),
        "owner_vote": routing_profile["owner_vote"],
    }
    logger.info("%s.", headline(plan))
    return plan


def plot_routing(routing_profile: dict[str, Any], layer_plan: dict[str, Any]) -> Figure:
    """Entropy of every sparse layer with its error, and the load of its experts; public data only."""
    from raptor.pipelines.selection.figure import draw

    return draw(routing_profile, layer_plan)
