"""Which tap claims which parameter. A trainable parameter that no tap covers stops the run, by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from raptor.dp.gradients.fused import is_rms_norm
from raptor.dp.gradients.taps import (
    ElementwiseTap,
    EmbeddingTap,
    ExpertsTap,
    FunctionalNormTap,
    LinearTap,
    RelativeBiasTap,
    RmsNormTap,
    Tap,
    TiedEmbeddingTap,
)
from raptor.errors import ModelError
from raptor.moe.families import SparseLayer


def _users(model: nn.Module, parameter: nn.Parameter) -> list[nn.Module]:
    """Modules that hold a parameter; several hold a tied one."""
    return [
        module
        for module in model.modules()
        if any(value is parameter for value in module._parameters.values())
    ]


def _embedding_tap(users: Sequence[nn.Module], name: str) -> Tap | None:
    tables = [user for user in users if isinstance(user, nn.Embedding)]
    heads = [user for user in users if isinstance(user, nn.Linear)]
    if len(tables) + len(heads) != len(users) or not tables or len(heads) > 1:
        return None
    if not all(_is_plain(user) for user in users):
        return None
    return TiedEmbeddingTap(tables, heads[0], name) if heads else EmbeddingTap(tables, name)


def _is_plain(module: nn.Module) -> bool:
    """Whether the module computes what its class of torch does: a derived class may do something else."""
    kinds = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm)
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)


def _tap(model: nn.Module, prefix: str, names: dict[str, str], fused: bool) -> Tap | None:
    module = model.get_submodule(prefix)
    parameters = {attribute: module.get_parameter(attribute) for attribute in names}
    tied = [attribute for attribute, value in parameters.items() if len(_users(model, value)) > 1]
    if isinstance(module, nn.Embedding) and prefix.endswith("relative_attention_bias"):
        attention = model.get_submodule(prefix.rpartition(".")[0])
        covered = not tied and hasattr(attention, "compute_bias")
        return RelativeBiasTap(attention, names["weight"]) if covered else None
    if isinstance(module, nn.Embedding) or (
        isinstance(module, nn.Linear) and tied == ["weight"] and len(names) == 1
    ):
        return _embedding_tap(_users(model, parameters["weight"]), names["weight"])
    if tied:
        return None
    if isinstance(module, nn.Linear | nn.LayerNorm | nn.RMSNorm) and not _is_plain(module):
        return None
    if isinstance(module, nn.Linear):
        return LinearTap(module, names.get("weight"), names.get("bias"))
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return FunctionalNormTap(module, names)
    if isinstance(module, nn.GroupNorm | nn.modules.batchnorm._NormBase):
        return None
    if all(value.ndim == 1 for value in parameters.values()):
        is_fused = fused and set(names) == {"weight"} and is_rms_norm(module)
        return RmsNormTap(module, names["weight"]) if is_fused else ElementwiseTap(module, names)
    return None


def claim(model: nn.Module, names: Sequence[str], *, fused: bool = True) -> list[Tap]:
    """One tap for each module that holds a named parameter; each parameter is claimed exactly once.

    Args:
        model: the model.
        names: dotted parameter names.
        fused: whether norms may run in one formula.

    Raises:
        ModelError: a parameter is unknown or no tap covers it; the message lists them all.
    """
    known = {name for name, _ in model.named_parameters()}
    if unknown := sorted(set(names) - known):
        raise ModelError(f"The model has no parameters named {', '.join(unknown)}.")
    modules: dict[str, dict[str, str]] = {}
    for name in names:
        prefix, _, attribute = name.rpartition(".")
        modules.setdefault(prefix, {})[attribute] = name
    taps: list[Tap] = []
    uncovered: list[str] = []
    for prefix, attributes in modules.items():
        tap = _tap(model, prefix, attributes, fused)
        if tap is None:
            uncovered += attributes.values()
        else:
            taps.append(tap)
    if uncovered:
        raise ModelError(
            "No exact per-record gradient is known for these trainable parameters: "
            f"{', '.join(sorted(uncovered))}. Leave them out of training, or use another model."
        )
    _require_each_once(taps, names)
    return taps


def claim_experts(
    layers: Sequence[SparseLayer], names: Collection[str], factors: Sequence[float] = ()
) -> list[Tap]:
    """One tap for each layer whose experts hold a named parameter.

    `factors` are public, one for each expert's gradients in every layer; 1 for all by default.

    Raises:
        ModelError: the layout of the experts is not covered, or a parameter is claimed by no layer.
    """
    taps: list[Tap] = []
    for position, layer in enumerate(layers):
        tap = ExpertsTap(layer.bank(), names, position, factors)
        if tap.parameters:
            taps.append(tap)
    _require_each_once(taps, names)
    return taps


def _require_each_once(taps: Sequence[Tap], names: Collection[str]) -> None:
    claimed = [name for tap in taps for name in tap.parameters]
    if sorted(claimed) == sorted(names):
        return
    wrong = sorted(set(names).symmetric_difference(claimed)) or sorted(
        name for name in set(claimed) if claimed.count(name) > 1
    )
    raise ModelError(
        f"These trainable parameters are not claimed exactly once: {', '.join(wrong)}. No gradient would be exact."
    )
