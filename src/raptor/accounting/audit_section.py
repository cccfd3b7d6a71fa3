"""What a certificate repeats of the empirical audit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from raptor.accounting.chain import canonical
from raptor.accounting.plan import PrivacyPlan, plan_digest
from raptor.errors import LedgerError

_BROKEN = "the results of the audit (audit.json)"


def audit_section(results: Mapping[str, Any] | None, plan: PrivacyPlan) -> dict[str, Any] | None:
    """Outcome and digest of an audit of this plan's mechanism; None when there is none.

    Raises:
        LedgerError: the results lack a figure, or the outcome does not follow from their own figures.
    """
    if not results:
        return None
    try:
        if results["plan"] != plan_digest(plan.to_json()) or not results["at_the_plans_noise"]:
            return None
        attacks = [results["schedule"], *results["releases"]]
        found = max(test["epsilon"] for test in results["schedule"]["tests"])
        passed = all(item["lower_bound"] <= item["claim"] for item in attacks) and all(
            item["passed"] for item in results["structure"]
        )
        if found != results["lower_bound"] or results["schedule"]["claim"] != results["claim"]:
            raise LedgerError(f"{_BROKEN} state other bounds at the top than in their tests: audit again")
        if bool(results["passed"]) != passed:
            raise LedgerError(f"{_BROKEN} state another outcome than their figures give: audit again")
        return {
            "passed": passed,
            "lower_bound": found,
            "claim": results["claim"],
            "confidence": results["confidence"],
            "digest": hashlib.sha256(canonical(dict(results))).hexdigest(),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{_BROKEN} cannot be read: {error!r}; audit again") from None
