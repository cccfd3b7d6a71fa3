"""The `config.json` of DeepSeek-VL2, and what it means in configs of transformers.

The original's file names its parts (`vision_config`, `projector_config`, `language_config`) and leaves out what is
usual; the usual values are those below. Nothing of the file is changed when it is written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig, SiglipVisionConfig
from transformers.models.deepseek_ocr2.configuration_deepseek_ocr2 import DeepseekOcr2TextConfig

from raptor.errors import ModelError

MODEL_TYPE = "deepseek_vl_v2"
# SigLIP-SO400M/14 at 384 pixels, which the Tiny checkpoint has.
VISION: Mapping[str, Any] = {
    "image_size": 384,
    "patch_size": 14,
    "width": 1152,
    "layers": 27,
    "heads": 16,
    "mlp_ratio": 3.7362,
}
PROJECTOR: Mapping[str, Any] = {
    "projector_type": "downsample_mlp_gelu",
    "input_dim": 1152,
    "n_embed": 2048,
    "depth": 2,
    "mlp_ratio": 1,
    "downsample_ratio": 2,
}
LANGUAGE: Mapping[str, Any] = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "moe_intermediate_size": 1407,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "use_mla": True,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# In these the model computes what the parts used here compute.
NEEDED: Mapping[str, Any] = {
    "use_mla": False,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "moe_layer_freq": 1,
    "rope_scaling": None,
}


class Vl2Config(PretrainedConfig):  # type: ignore[no-untyped-call]
    """As the original writes it; `candidate_resolutions` are (width, height) in pixels."""

    model_type = MODEL_TYPE

    vision_config: dict[str, Any] | None = None
    projector_config: dict[str, Any] | None = None
    language_config: dict[str, Any] | None = None
    tile_tag: str = "2D"
    global_view_pos: str = "head"
    candidate_resolutions: list[list[int]] | tuple[tuple[int, int], ...] = ((384, 384),)

    @property
    def vision(self) -> dict[str, Any]:
        return {**VISION, **(self.vision_config or {})}

    @property
    def projector(self) -> dict[str, Any]:
        return {**PROJECTOR, **(self.projector_config or {})}

    @property
    def language(self) -> dict[str, Any]:
        return {**LANGUAGE, **(self.language_config or {})}

    @property
    def hidden_size(self) -> int:
        return int(self.language["hidden_size"])

    @property
    def vocab_size(self) -> int:
        return int(self.language["vocab_size"])

    @property
    def num_hidden_layers(self) -> int:
        return int(self.language["num_hidden_layers"])

    @property
    def num_attention_heads(self) -> int:
        return int(self.language["num_attention_heads"])

    @property
    def image_size(self) -> int:
        """Width and height of a tile, in pixels."""
        return int(self.vision["image_size"])

    @property
    def side(self) -> int:
        """Features in a row of a tile, after 2x2 patches have become one."""
        patches = self.image_size // int(self.vision["patch_size"])
        return -(-patches // int(self.projector["downsample_ratio"]))

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """The divisions of an image into tiles among which one is chosen, as (columns, rows)."""
        size = self.image_size
        return tuple(
            (int(width) // size, int(height) // size) for width, height in self.candidate_resolutions
        )

    def require_covered(self) -> None:
        """Refuse a member of the family that computes something else.

        Raises:
            ModelError: names the entries.
        """
        language = self.language
        wrong = [
            f"language_config.{name} {language[name]!r}"
            for name, value in NEEDED.items()
            if language[name] != value
        ]
        if self.tile_tag != "2D":
            wrong.append(f"tile_tag {self.tile_tag!r}")
        if self.projector["projector_type"] != "downsample_mlp_gelu" or self.projector.get("token_pooling"):
            wrong.append(f"projector_config.projector_type {self.projector['projector_type']!r}")
        if self.global_view_pos not in ("head", "tail"):
            wrong.append(f"global_view_pos {self.global_view_pos!r}")
        wrong += self._sizes_that_make_no_image()
        if wrong:
            raise ModelError(
                f"This {MODEL_TYPE!r} model is not covered, as its config has {', '.join(wrong)}. Covered is the "
                "layout of DeepSeek-VL2-Tiny."
            )

    def _sizes_that_make_no_image(self) -> list[str]:
        size, patch = self.image_size, int(self.vision["patch_size"])
        joined, pairs = int(self.projector["downsample_ratio"]), self.candidate_resolutions
        wrong = []
        if not 1 <= patch <= size:
            wrong.append(f"vision_config.patch_size {patch} for images of {size}")
        if joined < 1:
            wrong.append(f"projector_config.downsample_ratio {joined}")
        if not pairs or any(len(pair) != 2 for pair in pairs):
            wrong.append("candidate_resolutions that are no pairs of width and height")
        elif any(side % size or side < size for pair in self.candidate_resolutions for side in pair):
            wrong.append(f"candidate_resolutions that are no multiples of {size}")
        return wrong

    def vision_part(self) -> SiglipVisionConfig:
        """The config of the vision tower; its pooling head is not used."""
        vision = self.vision
        config = SiglipVisionConfig(
            hidden_size=vision["width"],
            intermediate_size=int(vision["width"] * vision["mlp_ratio"]),
            num_hidden_layers=vision["layers"],
            num_attention_heads=vision["heads"],
            image_size=vision["image_size"],
            patch_size=vision["patch_size"],
            hidden_act="gelu_pytorch_tanh",
            layer_norm_eps=1e-6,
            attention_dropout=0.0,
            vision_use_head=False,
        )
        config._attn_implementation = "eager"
        return config

    def language_part(self) -> DeepseekOcr2TextConfig:
        """The config of the language model: DeepSeek-MoE with ordinary attention, as DeepSeek-OCR-2 has it, too."""
        language = self.language
        dense = int(language["first_k_dense_replace"])
        taken = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "moe_intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "n_shared_experts",
            "n_routed_experts",
            "num_experts_per_tok",
            "routed_scaling_factor",
            "topk_method",
            "max_position_embeddings",
            "rms_norm_eps",
            "hidden_act",
            "attention_bias",
            "pad_token_id",
            "bos_token_id",
            "eos_token_id",
        )
        config = DeepseekOcr2TextConfig(
            **{name: language[name] for name in taken},
            rope_parameters={"rope_type": "default", "rope_theta": float(language["rope_theta"])},
            mlp_layer_types=[
                "dense" if layer < dense else "sparse" for layer in range(language["num_hidden_layers"])
            ],
            attention_dropout=0.0,
            use_cache=False,
            output_router_logits=False,
        )
        config._attn_implementation = "eager"
        # The grouped kernels take no float64, in which the gate checks; the engine has forms of its own.
        config._experts_implementation = "eager"
        return config
