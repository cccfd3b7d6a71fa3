"""Accounting stage: releases to ledger, ledger to certificate."""

from raptor.pipelines.accounting.pipeline import create_pipeline

__all__ = ["create_pipeline"]
