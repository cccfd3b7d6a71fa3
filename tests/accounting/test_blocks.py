"""Norms and step sizes of single blocks are public constants that the certificate states."""

from __future__ import annotations

from pathlib import Path

import pytest

from raptor.accounting.page import render_page
from raptor.accounting.verification import verify_certificate
from raptor.errors import LedgerError
from tests.accounting.samples import make_plan, make_project, stream

NORMS = [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]


def own_plan(**blocks: list[float]) -> dict:
    expert = stream("expert", noise_multiplier=0.9, denominator=8.0, blocks=8, **blocks)
    return make_plan(streams=[stream("shared"), expert], evaluation=0)


def test_certificate_and_page_state_them_and_are_verified(tmp_path: Path) -> None:
    project = make_project(tmp_path, own_plan(block_norms=NORMS, block_steps=NORMS))
    verify_certificate(project.certificate)
    found = project.fields()
    assert found["streams"][1]["block_norms"] == NORMS
    page = render_page(found)
    assert (
        "Clipping norm and noise of each block of stream expert, over the stream's, a public constant: 0.5"
        in page
    )
    assert "Step size of each block of stream expert" in page
    plain = make_project(tmp_path / "plain", own_plan())
    assert "block_norms" not in plain.fields()["streams"][1]
    # Only the plan's constants differ: what it costs does not.
    assert found["epsilon"] == plain.fields()["epsilon"]


def test_other_norms_than_the_ledgers_are_found(tmp_path: Path) -> None:
    project = make_project(tmp_path, own_plan(block_norms=NORMS))
    found = project.fields()
    found["streams"][1]["block_norms"][0] = 0.25
    project.write_fields(found)
    with pytest.raises(LedgerError, match="block_norms"):
        verify_certificate(project.certificate)
