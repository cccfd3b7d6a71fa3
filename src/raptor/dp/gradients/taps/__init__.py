"""Taps: what each kind of module keeps of one forward and backward pass, to give its per-record gradients."""

from raptor.dp.gradients.taps.base import Pass, Tap
from raptor.dp.gradients.taps.embedding import EmbeddingTap, TiedEmbeddingTap
from raptor.dp.gradients.taps.experts import ExpertsTap
from raptor.dp.gradients.taps.linear import LinearTap
from raptor.dp.gradients.taps.norms import ElementwiseTap, FunctionalNormTap, RmsNormTap
from raptor.dp.gradients.taps.relative_bias import RelativeBiasTap

__all__ = [
    "ElementwiseTap",
    "EmbeddingTap",
    "ExpertsTap",
    "FunctionalNormTap",
    "LinearTap",
    "Pass",
    "RelativeBiasTap",
    "RmsNormTap",
    "Tap",
    "TiedEmbeddingTap",
]
