"""A tiny random DeepSeek-VL2 checkpoint as the original is laid out, and its vision tower written out plainly.

Sharded safetensors with an index, a tensor for each expert, keys of timm in the vision tower, and a config that
leaves out what the original's leaves out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional

WIDTH, VISION, EXPERTS, LAYERS, SIZE, PATCH = 24, 16, 4, 3, 28, 4
HEADS, TOWER_LAYERS, INNER, DENSE = 2, 2, 16, 32
PAD = "<｜▁pad▁｜>"
WORDS = ("<s>", "</s>", PAD, "<unk>", "which", "digit", "is", "shown", "?", "odd", "large", "the", "a", "it")
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekVLV2ForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek_vl_v2.DeepseekVLV2ForCausalLM"},
    "candidate_resolutions": [[SIZE, SIZE], [SIZE, 2 * SIZE], [2 * SIZE, SIZE], [2 * SIZE, 2 * SIZE]],
    "global_view_pos": "head",
    "language_config": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "bos_token_id": 0,
        "eos_token_id": 1,
        "first_k_dense_replace": 1,
        "hidden_size": WIDTH,
        "intermediate_size": DENSE,
        "kv_lora_rank": None,
        "lm_head": True,
        "max_position_embeddings": 256,
        "model_type": "deepseek_v2",
        "moe_intermediate_size": INNER,
        "n_group": 1,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 2,
        "num_attention_heads": HEADS,
        "num_experts_per_tok": 2,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "topk_group": 1,
        "topk_method": "greedy",
        "torch_dtype": "bfloat16",
        "use_mla": False,
        "v_head_dim": 0,
        "vocab_size": 64,
    },
    "model_type": "deepseek_vl_v2",
    "projector_config": {"model_type": "mlp_projector", "n_embed": WIDTH, "input_dim": VISION},
    "tile_tag": "2D",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.38.2",
    "vision_config": {
        "layers": TOWER_LAYERS,
        "mlp_ratio": 2.0,
        "model_name": "siglip_so400m_patch14_384",
        "model_type": "vision",
        "patch_size": PATCH,
        "width": VISION,
        "image_size": SIZE,
        "heads": HEADS,
    },
}


def _shapes() -> dict[str, tuple[int, ...]]:
    patches = (SIZE // PATCH) ** 2
    shapes: dict[str, tuple[int, ...]] = {
        "image_newline": (WIDTH,),
        "view_seperator": (WIDTH,),
        "vision.patch_embed.proj.weight": (VISION, 3, PATCH, PATCH),
        "vision.patch_embed.proj.bias": (VISION,),
        "vision.pos_embed": (1, patches, VISION),
        "vision.norm.weight": (VISION,),
        "vision.norm.bias": (VISION,),
        # Pooling of the tower, which the original keeps and does not use.
        "vision.attn_pool.latent": (1, 1, VISION),
        "vision.attn_pool.q.weight": (VISION, VISION),
        "projector.layers.0.weight": (WIDTH, 4 * VISION),
        "projector.layers.0.bias": (WIDTH,),
        "projector.layers.2.weight": (WIDTH, WIDTH),
        "projector.layers.2.bias": (WIDTH,),
        "language.lm_head.weight": (64, WIDTH),
        "language.model.embed_tokens.weight": (64, WIDTH),
        "language.model.norm.weight": (WIDTH,),
    }
    for block in range(TOWER_LAYERS):
        name = f"vision.blocks.{block}"
        for norm in ("norm1", "norm2"):
            shapes |= {f"{name}.{norm}.weight": (VISION,), f"{name}.{norm}.bias": (VISION,)}
        sides = {"attn.qkv": (3 * VISION, VISION), "attn.proj": (VISION, VISION)}
        sides |= {"mlp.fc1": (2 * VISION, VISION), "mlp.fc2": (VISION, 2 * VISION)}
        for part, shape in sides.items():
            shapes |= {f"{name}.{part}.weight": shape, f"{name}.{part}.bias": shape[:1]}
    for layer in range(LAYERS):
        name = f"language.model.layers.{layer}"
        shapes |= {f"{name}.{norm}_layernorm.weight": (WIDTH,) for norm in ("input", "post_attention")}
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (WIDTH, WIDTH) for part in "qkvo"}
        if layer == 0:
            shapes |= _mlp(f"{name}.mlp", DENSE)
            continue
        shapes[f"{name}.mlp.gate.weight"] = (EXPERTS, WIDTH)
        shapes |= _mlp(f"{name}.mlp.shared_experts", 2 * INNER)
        for expert in range(EXPERTS):
            shapes |= _mlp(f"{name}.mlp.experts.{expert}", INNER)
    return shapes


def _mlp(name: str, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj.weight": (inner, WIDTH),
        f"{name}.up_proj.weight": (inner, WIDTH),
        f"{name}.down_proj.weight": (WIDTH, inner),
    }


def original_weights(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Random tensors under the original's keys."""
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in _shapes().items():
        value = torch.randn(shape, generator=random)
        is_norm = "norm" in name and name.endswith("weight")
        value = 1.0 + 0.1 * value if is_norm else value * (0.1 if len(shape) == 1 else shape[-1] ** -0.5)
        weights[name] = (2.0 * value if ".mlp.gate." in name else value).to(dtype).contiguous()
    return weights


def save_checkpoint(directory: Path, weights: dict[str, Tensor], shards: int = 3, **config: Any) -> Path:
    """The checkpoint's files in a directory, tokenizer included."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **config}, indent=2))
    names = sorted(weights)
    where = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:06d}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    size = sum(value.numel() * value.element_size() for value in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    save_tokenizer(directory)
    return directory


def save_tokenizer(directory: Path) -> None:
    """As the original's: a padding token that no file names as such, no token of an image, none that begins a text."""
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(WORDS[:4]))
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def plain_tower(weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """The vision tower by the original's keys: a ViT of pre-norm blocks with one matrix for queries, keys and values.

    Args:
        pixels: (tiles, 3, size, size) in [-1, 1].

    Returns:
        (tiles, patches, width) after the last norm.
    """
    get = {name.removeprefix("vision."): value.to(pixels.dtype) for name, value in weights.items()}
    hidden = functional.conv2d(
        pixels, get["patch_embed.proj.weight"], get["patch_embed.proj.bias"], stride=PATCH
    )
    hidden = hidden.flatten(2).transpose(1, 2) + get["pos_embed"]

    def linear(name: str, value: Tensor) -> Tensor:
        return functional.linear(value, get[f"{name}.weight"], get[f"{name}.bias"])

    def norm(name: str, value: Tensor) -> Tensor:
        centred = value - value.mean(dim=-1, keepdim=True)
        scale = (centred.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()
        return centred * scale * get[f"{name}.weight"] + get[f"{name}.bias"]

    for block in range(TOWER_LAYERS):
        name = f"blocks.{block}"
        tiles, patches, width = hidden.shape
        given = linear(f"{name}.attn.qkv", norm(f"{name}.norm1", hidden))
        query, key, value = given.view(tiles, patches, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)) * (width // HEADS) ** -0.5
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(tiles, patches, width)
        hidden = hidden + linear(f"{name}.attn.proj", mixed)
        inner = linear(f"{name}.mlp.fc1", norm(f"{name}.norm2", hidden))
        hidden = hidden + linear(f"{name}.mlp.fc2", functional.gelu(inner, approximate="tanh"))
    return norm("norm", hidden)


def plain_image(weights: dict[str, Tensor], views: Tensor, columns: int, rows: int) -> list[Tensor]:
    """What the original puts in the place of an image's tokens, one vector after the other.

    Args:
        views: (1 + columns x rows, 3, size, size): the whole image, then its tiles row by row.
    """
    tower = plain_tower(weights, views)
    patches = SIZE // PATCH
    side = (patches + 1) // 2
    get = {name: value.to(views.dtype) for name, value in weights.items()}

    def feature(view: int, line: int, place: int) -> Tensor:
        """2x2 patches become one; patches over the edge are zeros."""
        block = torch.zeros(VISION, 2, 2, dtype=views.dtype)
        for down in range(2):
            for right in range(2):
                y, x = 2 * line + down, 2 * place + right
                if y < patches and x < patches:
                    block[:, down, right] = tower[view, y * patches + x]
        first = functional.linear(
            block.flatten(), get["projector.layers.0.weight"], get["projector.layers.0.bias"]
        )
        return functional.linear(
            functional.gelu(first), get["projector.layers.2.weight"], get["projector.layers.2.bias"]
        )

    whole: list[Tensor] = []
    for line in range(side):
        whole += [feature(0, line, place) for place in range(side)]
        whole.append(get["image_newline"])
    parts: list[Tensor] = []
    for row in range(rows):
        for line in range(side):
            for column in range(columns):
                parts += [feature(1 + row * columns + column, line, place) for place in range(side)]
            parts.append(get["image_newline"])
    return [*whole, get["view_seperator"], *parts]


def plain_language(weights: dict[str, Tensor], embedded: Tensor) -> Tensor:
    """Hidden states (tokens, width) of the language model, token by token, by the original's keys."""
    get = {name.removeprefix("language.model."): value.to(embedded.dtype) for name, value in weights.items()}
    tokens, size = len(embedded), WIDTH // HEADS
    angles = torch.arange(tokens)[:, None] / 10000.0 ** (torch.arange(0, size, 2) / size)[None]
    cosine, sine = (
        torch.cat([turn(angles)] * 2, dim=1).to(embedded.dtype) for turn in (torch.cos, torch.sin)
    )

    def norm(name: str, value: Tensor) -> Tensor:
        return value * (value.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt() * get[f"{name}.weight"]

    def mlp(name: str, value: Tensor) -> Tensor:
        inner = functional.silu(value @ get[f"{name}.gate_proj.weight"].T)
        return (inner * (value @ get[f"{name}.up_proj.weight"].T)) @ get[f"{name}.down_proj.weight"].T

    def turned(value: Tensor) -> Tensor:
        half = torch.cat([-value[:, size // 2 :], value[:, : size // 2]], dim=1)
        return value * cosine + half * sine

    hidden = embedded
    for layer in range(LAYERS):
        name = f"layers.{layer}"
        given = norm(f"{name}.input_layernorm", hidden)
        query, key, value = (given @ get[f"{name}.self_attn.{part}_proj.weight"].T for part in "qkv")
        mixed = []
        for head in range(HEADS):
            own = slice(head * size, (head + 1) * size)
            scores = turned(query[:, own]) @ turned(key[:, own]).T / size**0.5
            scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float("-inf"))
            mixed.append(scores.softmax(dim=-1) @ value[:, own])
        hidden = hidden + torch.cat(mixed, dim=1) @ get[f"{name}.self_attn.o_proj.weight"].T
        given = norm(f"{name}.post_attention_layernorm", hidden)
        if layer == 0:
            hidden = hidden + mlp(f"{name}.mlp", given)
            continue
        added = mlp(f"{name}.mlp.shared_experts", given)
        gates = (given @ get[f"{name}.mlp.gate.weight"].T).softmax(dim=-1)
        for token in range(tokens):
            best = gates[token].topk(2)
            for weight, expert in zip(best.values, best.indices.tolist(), strict=True):
                added[token] = added[token] + weight * mlp(f"{name}.mlp.experts.{expert}", given[token])
        hidden = hidden + added
    return norm("norm", hidden)
