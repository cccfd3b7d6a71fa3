"""Which tap claims which parameter. A trainable parameter that no tap covers stops the run, by name."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from raptor.dp.gradients.taps import ElementwiseTap, EmbeddingTap, LinearTap, RelativeBiasTap, Tap
from raptor.errors import ModelError

# F.layer_norm and its like check the shape of their weight, so a per-record copy cannot stand in for it.
_FIXED_SHAPE_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)


def _owners(model: nn.Module) -> dict[str, tuple[nn.Module, str, str]]:
    """Parameter name -> (module that holds it, name of the module, attribute); tied modules share a name."""
    found: dict[str, tuple[nn.Module, str, str]] = {}
    for name, _ in model.named_parameters():
        prefix, _, attribute = name.rpartition(".")
        found[name] = (model.get_submodule(prefix), prefix, attribute)
    return found


def _called_module(model: nn.Module, holder: nn.Module, attribute: str) -> nn.Module:
    """The module through which a tied parameter is really used: the last one that registers it."""
    parameter = holder.get_parameter(attribute)
    users = [module for module in model.modules() if module._parameters.get(attribute) is parameter]
    if len(users) > 1 and not all(isinstance(user, nn.Embedding) for user in users):
        raise ModelError(
            "A parameter is shared by modules of different kinds (a tied output head): its per-record gradient "
            "has a cross term that is not covered. Untie the weights."
        )
    return users[-1]


def _tap(model: nn.Module, prefix: str, module: nn.Module, names: dict[str, str]) -> Tap | None:
    if isinstance(module, nn.Linear):
        return LinearTap(module, names.get("weight"), names.get("bias"))
    if isinstance(module, nn.Embedding):
        if prefix.endswith("relative_attention_bias"):
            attention = model.get_submodule(prefix.rpartition(".")[0])
            return RelativeBiasTap(attention, names["weight"]) if hasattr(attention, "compute_bias") else None
        called = _called_module(model, module, "weight")
        return EmbeddingTap(called, names["weight"]) if isinstance(called, nn.Embedding) else None
    if isinstance(module, _FIXED_SHAPE_NORMS):
        return None
    if all(module.get_parameter(attribute).ndim == 1 for attribute in names):
        return ElementwiseTap(module, names)
    return None


def claim(model: nn.Module, names: Sequence[str]) -> list[Tap]:
    """One tap for each module that holds a named parameter; each parameter is claimed exactly once.

    Raises:
        ModelError: a parameter is unknown or no tap covers it; the message lists them all.
    """
    owners = _owners(model)
    unknown = sorted(set(names) - set(owners))
    if unknown:
        raise ModelError(f"The model has no parameters named {', '.join(unknown)}.")
    modules: dict[str, dict[str, str]] = {}
    for name in names:
        _, prefix, attribute = owners[name]
        modules.setdefault(prefix, {})[attribute] = name
    taps: list[Tap] = []
    uncovered: list[str] = []
    for prefix, attributes in modules.items():
        tap = _tap(model, prefix, model.get_submodule(prefix), attributes)
        if tap is None:
            uncovered += attributes.values()
        else:
            taps.append(tap)
    if uncovered:
        raise ModelError(
            "No exact per-record gradient is known for these trainable parameters: "
            f"{', '.join(sorted(uncovered))}. Leave them out of training, or use another model."
        )
    claimed = [name for tap in taps for name in tap.parameters]
    if sorted(claimed) != sorted(names):
        raise ModelError("A trainable parameter is claimed twice or not at all; no gradient would be exact.")
    return taps
