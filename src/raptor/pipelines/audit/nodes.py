"""Nodes of the audit. All of it is public: it reads the plan and makes up its own records."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raptor.pipelines.audit.config import AuditConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)


def audit_mechanism(privacy_plan: Mapping[str, Any], config: AuditConfig) -> dict[str, Any]:
    """Lower bounds on epsilon from attacks on canaries, and checks of the noise, beside what the plan claims.

    No private record is an input, so nothing is released of one and the budget stays as it is. Nothing at all, an empty
    result, where `audit.enabled` is false.

    Raises:
        BudgetError: the plan trains nothing.
    """
    from raptor.accounting.plan import read_plan
    from raptor.audit.plan import AuditSettings, audit_plan
    from raptor.dp.streams import RandomSource

    if not config.enabled:
        return {}
    settings = AuditSettings(**config.model_dump(exclude={"enabled", "epsilon", "seed"}))
    randomness = RandomSource.secure() if config.seed is None else RandomSource.seeded(config.seed)
    results = audit_plan(read_plan(privacy_plan), settings, randomness, epsilon=config.epsilon)
    logger.info(
        "Audit: attacks found epsilon %.3g, the claim is %.4g at delta %.3g; %s",
        results["lower_bound"],
        results["claim"],
        results["delta"],
        "all checks passed" if results["passed"] else "FAILED",
    )
    return results


def draw_audit(audit_results: Mapping[str, Any]) -> Figure:
    """What attacks found beside what is claimed."""
    from raptor.reporting.audit import figure
    from raptor.reporting.figures import message

    return figure(audit_results) if audit_results else message("No audit was made")


def refuse_violation(audit_results: Mapping[str, Any], audit_figure: object) -> None:
    """End the run with an error when the audit failed, after its results are on disk.

    Raises:
        AuditError: names each claim that an attack broke and each check that failed.
    """
    from raptor.errors import AuditError
    from raptor.reporting.audit import failures

    if audit_results and (broken := failures(audit_results)):
        raise AuditError(
            "The audit contradicts the claim: "
            + "; ".join(broken)
            + ". Do not hand out a model of this plan. Run the audit again, with fresh coins: a correct mechanism "
            f"fails in about {100 * (1 - audit_results['confidence']):.2g} % of all audits."
        )
