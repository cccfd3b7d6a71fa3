"""Couplings that have a name: parts of a model that are refused whatever the numbers say."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raptor.dp.isolation.specs import refusal
from raptor.moe.roles import Role, parameter_roles

COEFFICIENTS = ("router_aux_loss_coef", "router_z_loss_coef", "aux_loss_alpha")
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# What every module has; buffers and parameters are looked at by `State`.
OWN = frozenset(vars(nn.Module()))


def check_structure(model: nn.Module) -> None:
    """Raises ModelError for a part that couples records, or that cannot be computed."""
    for config in _configs(model):
        _auxiliary_loss(config)
    for name, module in model.named_modules():
        _statistics(name, module)
        _capacity(name, module)
        _buckets(name, module)
        _jitter(name, module)


def check_router(model: nn.Module, group: str, parameters: Sequence[str]) -> None:
    """Raises ModelError when an engine trains a router."""
    roles = parameter_roles(model)
    routers = [name for name in parameters if roles[name].role is Role.ROUTER]
    if routers:
        raise refusal(
            "routers",
            f"the {group} parameters hold those of routers: {', '.join(routers[:3])}.",
            "A router must stay frozen, as ownership of records rests on it. Leave it out of training.",
        )


def active_dropout(model: nn.Module) -> list[nn.modules.dropout._DropoutNd]:
    """Dropout modules of torch that act in the present mode; a derived one may do something else with its share."""
    own = {kind.forward for kind in DROPOUTS}
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0
        if type(module).forward in own
    ]


class State:
    """Buffers, parameters and gradients of a model at one time."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._buffers = {name: value.detach().clone() for name, value in model.named_buffers()}
        self._parameters = {name: _mark(value) for name, value in model.named_parameters()}

    def require_same(self, group: str) -> None:
        """Raises ModelError when a pass of an engine or of the loss has changed anything."""
        buffers = dict(self._model.named_buffers())
        changed = sorted(
            name
            for name in buffers.keys() | self._buffers.keys()
            if name not in buffers
            or name not in self._buffers
            or not _is_equal(buffers[name], self._buffers[name])
        )
        parameters = dict(self._model.named_parameters())
        changed += [name for name, mark in self._parameters.items() if _mark(parameters[name]) != mark]
        if changed:
            raise refusal(
                "state",
                f"a pass over records of the {group} parameters changes {', '.join(changed[:3])}, so that records "
                "act on later ones without noise.",
                "Switch off what updates it (statistics of batches, balancing of the load by a bias), or use "
                "another model.",
            )
        left = [name for name, value in parameters.items() if value.requires_grad or value.grad is not None]
        if left:
            raise refusal(
                "gradients left behind",
                f"after a pass over the {group} parameters these ask for a gradient or hold one: "
                f"{', '.join(left[:3])}.",
                "Only the noisy release may set a gradient; freeze the model before the pass and after it.",
            )


class Attributes:
    """Numbers, tensors and collections of them in plain attributes of a model's modules, at one time."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._found = self._read()

    def _read(self) -> dict[str, object]:
        return {
            f"{name}.{attribute}".lstrip("."): _description(value)
            for name, module in self._model.named_modules()
            for attribute, value in vars(module).items()
            if attribute not in OWN
        }

    def require_same(self) -> None:
        """Raises ModelError when passes have changed one: it may act on later records without noise."""
        found = self._read()
        changed = sorted(
            name for name in found.keys() | self._found.keys() if found.get(name) != self._found.get(name)
        )
        if changed:
            raise refusal(
                "memory of modules",
                f"passes over records change the attributes {', '.join(changed[:3])}, which may act on later records "
                "without noise.",
                "Switch off what is kept there (caches, counters, running statistics), or use another model.",
            )


def _description(value: object, depth: int = 4) -> object:
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), hashlib.sha256(data).digest()
    if isinstance(value, int | float | str | bytes):
        return repr(value)
    if depth and isinstance(value, Mapping):
        return [(repr(key), _description(item, depth - 1)) for key, item in value.items()]
    if depth and isinstance(value, list | tuple | deque):
        return [_description(item, depth - 1) for item in value]
    if isinstance(value, list | tuple | deque | Mapping | set | frozenset):
        return len(value)
    # Nothing is said of other objects; a type of numbers is one that routers note down.
    return None


def _mark(value: Tensor) -> tuple[int, int, float]:
    return value.data_ptr(), value._version, float(value.detach().sum(dtype=torch.float64).nan_to_num())


def _is_equal(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool(torch.isclose(first, second, 0, 0, equal_nan=True).all())


def _configs(model: nn.Module) -> Iterator[Any]:
    seen: set[int] = set()
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and id(config) not in seen:
            seen.add(id(config))
            yield config


def _auxiliary_loss(config: Any) -> None:
    weights = [name for name in COEFFICIENTS if getattr(config, name, None)]
    if getattr(config, "output_router_logits", False) and weights:
        raise refusal(
            "auxiliary losses",
            f"the config has output_router_logits with a non-zero {' and '.join(weights)}; such a loss is a "
            "statistic of the batch.",
            "Set output_router_logits to false, or the coefficients to 0.",
        )


def _statistics(name: str, module: nn.Module) -> None:
    is_batch_norm = isinstance(
        module, nn.modules.batchnorm._BatchNorm | nn.modules.instancenorm._InstanceNorm
    )
    if not is_batch_norm and "batchnorm" not in type(module).__name__.lower():
        return
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and not module.track_running_stats:
        return
    raise refusal(
        "statistics of batches",
        f"the module {name} ({type(module).__name__}) normalises by statistics of other records.",
        "Replace it by a layer norm or an RMS norm.",
    )


def _capacity(name: str, module: nn.Module) -> None:
    capacity = getattr(module, "expert_capacity", None)
    if isinstance(capacity, int | float) and capacity < 1:
        raise refusal(
            "capacity",
            f"the router {name} has an expert_capacity of {capacity}: no token reaches an expert.",
            "Set expert_capacity in the model's config to at least the number of tokens of a record.",
        )


def _buckets(name: str, module: nn.Module) -> None:
    buckets = getattr(module, "relative_attention_num_buckets", None)
    distance = getattr(module, "relative_attention_max_distance", None)
    if not isinstance(buckets, int) or not isinstance(distance, int) or not isinstance(module, nn.Module):
        return
    exact = buckets // 2 if getattr(module, "is_decoder", False) else buckets // 2 // 2
    if exact < 1 or distance <= exact:
        raise refusal(
            "relative positions",
            f"{name} has relative_attention_num_buckets {buckets} and relative_attention_max_distance {distance}, "
            "for which the formula of the buckets divides by zero.",
            "Use a model with at least 4 buckets (2 in a decoder) and a larger distance than exact buckets.",
        )


def _jitter(name: str, module: nn.Module) -> None:
    jitter = getattr(module, "jitter_noise", None) or getattr(module, "router_jitter_noise", None)
    if module.training and isinstance(jitter, int | float) and jitter > 0:
        raise refusal(
            "jitter",
            f"the router {name} adds jitter of {jitter} in the mode that training uses, so that a record's experts "
            "are drawn anew in each pass.",
            "Put the model in evaluation mode, or set router_jitter_noise to 0.",
        )
