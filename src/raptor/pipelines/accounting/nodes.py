"""Nodes of the accounting stage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


def compose_ledger(
    privacy_plan: Mapping[str, Any], release_log: Sequence[Mapping[str, Any]], raptor_model: Path
) -> list[dict[str, Any]]:
    """The ledger of the training: plan, releases, reserved releases, totals and the digest of the model.

    Raises:
        LedgerError: the release log is broken, belongs to another plan, or has a release that the plan has
            not.
    """
    from raptor.accounting.certificate import model_digest
    from raptor.accounting.ledger import compose_ledger as compose

    return compose(privacy_plan, release_log, model_digest(raptor_model))


def certify(
    privacy_ledger: Sequence[Mapping[str, Any]], audit_results: Mapping[str, Any] | None
) -> tuple[dict[str, Any], str]:
    """The certificate of the ledger, as fields and as a page.

    `audit_results` is None or empty where no audit was made.

    Raises:
        LedgerError: the ledger is broken, or the audit contradicts itself.
        BudgetError: the releases cost more than the plan allowed.
    """
    from raptor.accounting.certificate import build_certificate
    from raptor.accounting.page import render_page

    certificate = build_certificate(privacy_ledger, audit_results)
    logger.info(
        "Certificate: epsilon %.6g at delta %.3g (%s), all streams in one ledger; %.6g if added stream by stream",
        certificate["epsilon"],
        certificate["delta"],
        certificate["adjacency"],
        certificate["epsilon_split_sum"],
    )
    if not certificate["private"]:
        logger.warning("The noise came from a seed: the certificate says not private.")
    if (search := certificate["search"]) is not None:
        logger.info(
            "The run belongs to a search of %d runs (%s): epsilon %.6g for the whole search",
            search["runs"],
            search["selection"],
            search["epsilon"],
        )
    return certificate, render_page(certificate)
