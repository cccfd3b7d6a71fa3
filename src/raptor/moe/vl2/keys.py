"""From the keys of the original's checkpoint to those of the parts of transformers, and back when it is saved.

The vision tower of the original is written as in timm, the projector is a list of layers, and every expert has
tensors of its own. transformers applies the table when it loads, also over several files with an index, and turns
it round when it saves.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    ConversionOps,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
)

# original -> ours. What stands in neither is called alike. Those of the tower count from its own name on.
RENAMED: tuple[tuple[str, str], ...] = ((r"^language\.model\.", "language."),)
RENAMED_IN_TOWER: tuple[tuple[str, str], ...] = (
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^blocks\.", "encoder.layers."),
    (r"\.norm1\.", ".layer_norm1."),
    (r"\.norm2\.", ".layer_norm2."),
    (r"\.attn\.proj\.", ".self_attn.out_proj."),
    (r"^norm\.", "post_layernorm."),
)
# In the original's checkpoint, and no part of what a classifier computes: the pooling of the vision tower, which the
# original leaves out, too, and the scores of the next token.
UNUSED = (r"^vision\.attn_pool\.", r"^language\.lm_head\.")


def _only(found: dict[str, Any]) -> Tensor:
    (value,) = found.values()
    tensor: Tensor = value[0] if isinstance(value, list) else value
    return tensor.detach()


class FirstAxis(ConversionOps):
    """(1, ...) -> (...), and back."""

    def __init__(self, is_dropped: bool = True) -> None:
        self.is_dropped = is_dropped

    def convert(  # type: ignore[override]
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        value = _only(input_dict)
        return {target_patterns[0]: value.squeeze(0) if self.is_dropped else value.unsqueeze(0)}

    @property
    def reverse_op(self) -> ConversionOps:
        return FirstAxis(not self.is_dropped)


def table() -> list[WeightRenaming | WeightConverter]:
    """The table of projector and language model: experts are stacked, gates on top of up-projections."""
    return [
        *(WeightRenaming(source_patterns=source, target_patterns=target) for source, target in RENAMED),
        WeightConverter(
            source_patterns=["mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"],
            target_patterns="mlp.experts.gate_up_proj",
            operations=[MergeModulelist(dim=0), Concatenate(dim=1)],
        ),
        WeightConverter(
            source_patterns="mlp.experts.*.down_proj.weight",
            target_patterns="mlp.experts.down_proj",
            operations=[MergeModulelist(dim=0)],
        ),
    ]


def tower_table() -> list[WeightRenaming | WeightConverter]:
    """The table of the vision tower: one matrix of queries, keys and values, one behind the other, becomes three."""
    return [
        *(
            WeightRenaming(source_patterns=source, target_patterns=target)
            for source, target in RENAMED_IN_TOWER
        ),
        WeightConverter(
            source_patterns="pos_embed",
            target_patterns="embeddings.position_embedding.weight",
            operations=[FirstAxis()],
        ),
        *(
            WeightConverter(
                source_patterns=f"attn.qkv.{kind}",
                target_patterns=[f"self_attn.{name}_proj.{kind}" for name in "qkv"],
                operations=[Chunk(dim=0)],
            )
            for kind in ("weight", "bias")
        ),
    ]


def register(model: str, tower: str) -> None:
    """Tell transformers the tables, by the names of the classes."""
    register_checkpoint_conversion_mapping(model, table(), overwrite=True)
    register_checkpoint_conversion_mapping(tower, tower_table(), overwrite=True)
