"""Peers: the same clipped sum by Opacus (hooks, ghost) and by torch.func, where they can be brought to do it.

Opacus takes the tokens of an expert for records, so for the expert role the protected block is replaced by one
that runs every expert on every token; that is what a user of Opacus would have to write. What a peer cannot
train is left out of its step, which flatters its ratio: the relative position bias of Switch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.cases import Subject
from benchmarks.clock import Step
from benchmarks.methods import EXPERT, RULE, SHARED, role_parameters, train_only
from raptor.moe.families import SparseLayer, sparse_layer, sparse_layers

OPACUS_HOOKS, OPACUS_GHOST, VMAP = "Opacus hooks", "Opacus ghost", "torch.func vmap(grad)"
UNCOVERED = "relative_attention_bias"


class DenseBlock(nn.Module):
    """A sparse block that runs all its experts, as plain linear layers, on every token of every record.

    Attributes:
        owners: (records,), the one expert whose parameters count for a record; all count by default.
    """

    def __init__(self, layer: SparseLayer) -> None:
        super().__init__()
        self._layer = layer
        self._bank = layer.bank()
        self.router: Any = layer.router
        self.owners: Tensor | None = None
        self.first, self.second = (
            nn.ModuleList(self._linear(linear.weight.of(expert)) for expert in range(layer.num_experts))
            for linear in (self._bank.first, self._bank.second)
        )

    @staticmethod
    def _linear(weight: Tensor) -> nn.Linear:
        result = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        result.weight = nn.Parameter(weight.detach().clone())
        return result

    def _weights(self, hidden: Tensor) -> Tensor:
        """(records, tokens, experts), zero for experts that were not chosen."""
        if hasattr(self.router, "classifier"):
            # Switch's own router counts tokens in a way that torch.func cannot batch.
            weights, chosen = (
                functional.linear(hidden, self.router.classifier.weight).softmax(-1).max(-1, True)
            )
        else:
            routing = self._layer.family.read_routing(self.router(hidden), len(hidden))
            weights, chosen = routing.weights, routing.experts
        numbers = torch.arange(len(self.first), device=hidden.device)
        return ((chosen[..., None] == numbers) * weights[..., None]).sum(dim=-2)

    def forward(self, hidden: Tensor) -> Tensor:
        weights = self._weights(hidden)
        result = torch.zeros_like(hidden)
        for expert, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            output = second(self._bank.activate(first(hidden)))
            if self.owners is not None:
                output = torch.where((self.owners == expert)[:, None, None], output, output.detach())
            result = result + weights[..., expert, None] * output
        return result


def _replace(model: nn.Module, layer: SparseLayer) -> DenseBlock:
    dense = DenseBlock(layer)
    parent, _, attribute = layer.name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, dense)
    return dense


def _is_switch(model: nn.Module) -> bool:
    return sparse_layers(model)[0].family.name == "switch_transformers"


def _own_model(subject: Subject, role: str) -> tuple[Any, tuple[str, ...]]:
    """A copy of the model that a peer may wrap and change, and the parameters it trains."""
    model: Any = copy.deepcopy(subject.model)
    train_only(model, ())
    if role == EXPERT:
        layer = sparse_layer(model, subject.layer)
        dense = _replace(model, layer)
        dense.owners = subject.batch.owners
        prefixes = (f"{layer.name}.first.", f"{layer.name}.second.")
        names = tuple(name for name, _ in model.named_parameters() if name.startswith(prefixes))
    else:
        names = tuple(name for name in role_parameters(subject, role) if UNCOVERED not in name)
    if hasattr(model.encoder, "shared"):
        # Switch holds its embedding table twice, which Opacus takes for tied parameters.
        del model.encoder._modules["shared"]
        names = tuple(name.replace("encoder.shared.", "encoder.encoder.embed_tokens.") for name in names)
    return model, names


class _Opacus(Step):
    def __init__(self, subject: Subject, role: str) -> None:
        self._batch = subject.batch
        self.model, self.names = _own_model(subject, role)
        train_only(self.model, self.names)
        # Opacus listens to modules in training mode only; no module here behaves otherwise in it.
        self.model.train()
        self._wrapped: Any = None
        self._optimizer: Any = None

    def prepare(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def sums(self) -> dict[str, Tensor]:
        """Clipped sums of the last step, by names of the copied model."""
        return {name: self._sum(self.model.get_parameter(name)) for name in self.names}

    def _sum(self, parameter: Any) -> Tensor:
        raise NotImplementedError

    def _losses(self) -> Tensor:
        logits = self._wrapped(self._batch.input_ids, self._batch.attention_mask)
        return functional.cross_entropy(logits, self._batch.labels, reduction="none")

    def _backward(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        with warnings.catch_warnings():
            # Of the embedding, whose input are numbers of tokens: nothing is wrong with it.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            self._backward()


class OpacusHooks(_Opacus):
    """Gradients of single records in full, then clipped."""

    def __init__(self, subject: Subject, role: str) -> None:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        super().__init__(subject, role)
        self._wrapped = GradSampleModule(self.model, loss_reduction="sum", strict=False)
        trained = [self.model.get_parameter(name) for name in self.names]
        self._optimizer = DPOptimizer(
            torch.optim.SGD(trained, lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=RULE.norm,
            expected_batch_size=len(subject.batch),
            loss_reduction="sum",
        )

    def _backward(self) -> None:
        self._losses().sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.clip_and_accumulate()

    def _sum(self, parameter: Any) -> Tensor:
        result: Tensor = parameter.summed_grad
        return result


class OpacusGhost(_Opacus):
    """Norms in one backward pass, the clipped sum in a second one."""

    def __init__(self, subject: Subject, role: str) -> None:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        super().__init__(subject, role)
        self._wrapped = GradSampleModuleFastGradientClipping(
            self.model, loss_reduction="sum", strict=False, max_grad_norm=RULE.norm, use_ghost_clipping=True
        )
        trained = [self.model.get_parameter(name) for name in self.names]
        self._optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(trained, lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=RULE.norm,
            expected_batch_size=len(subject.batch),
            loss_reduction="sum",
        )
        self._two_passes = DPTensorFastGradientClipping

    def _backward(self) -> None:
        self._two_passes(self._wrapped, self._optimizer, self._losses(), "sum").backward()

    def _sum(self, parameter: Any) -> Tensor:
        result: Tensor = parameter.grad
        return result


class Vmap(Step):
    """Gradients of single records by torch.func, then clipped; Switch runs all its experts densely for it."""

    def __init__(self, subject: Subject, role: str) -> None:
        model, self.names = _own_model(subject, role)
        if _is_switch(model):
            for layer in sparse_layers(model):
                _replace(model, layer)
        train_only(model, ())
        # torch.func cannot batch what the library does with a mask; no record here is padded, so none is needed.
        model.forward = lambda ids: model.head(model.encoder(input_ids=ids).last_hidden_state.mean(dim=1))
        self._batch = subject.batch
        self._parameters = {name: model.get_parameter(name).detach() for name in self.names}
        self.result: dict[str, Tensor] = {}

        def loss(parameters: dict[str, Tensor], ids: Tensor, label: Tensor) -> Tensor:
            logits = torch.func.functional_call(model, parameters, (ids[None],))
            return functional.cross_entropy(logits, label[None])

        self._gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def prepare(self) -> None:
        self.result = {}

    def run(self) -> None:
        batch = self._batch
        with warnings.catch_warnings():
            # That parts of the library run record by record here; it is part of what is measured.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found = self._gradients(self._parameters, batch.input_ids, batch.labels)
        squared = torch.stack([value.flatten(1).square().sum(dim=1) for value in found.values()]).sum(dim=0)
        factors = RULE.factors(squared)
        self.result = {name: torch.tensordot(factors, value, dims=1) for name, value in found.items()}

    def sums(self) -> dict[str, Tensor]:
        """Clipped sums of the last step, by names of the copied model."""
        return self.result


PEERS: dict[str, tuple[Callable[[Subject, str], Step], tuple[str, ...]]] = {
    OPACUS_HOOKS: (OpacusHooks, (SHARED, EXPERT)),
    OPACUS_GHOST: (OpacusGhost, (SHARED, EXPERT)),
    VMAP: (Vmap, (SHARED,)),
}
"""Each peer, and the roles it is measured on."""
