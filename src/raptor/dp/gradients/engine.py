"""Engines: from a batch of private records to one clipped sum, for a role.

An engine runs one forward and one backward pass that computes activation gradients only; every parameter is
a constant for autograd. The taps turn what they kept into the clipped sum. No engine returns anything else:
no loss, no norm, no gradient of a record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Protocol, TypedDict, Unpack

import torch
from torch import Tensor, nn

from raptor.dp.clipping import ClippedSum, ClippingRule, Scales, clip_and_sum
from raptor.dp.gradients.coverage import claim, claim_experts
from raptor.dp.gradients.fused import FusedRms, is_rms_norm
from raptor.dp.gradients.kernels import Way, accumulate
from raptor.dp.gradients.losses import RecordLoss, RecordWeights, classification_loss, loss_of
from raptor.dp.gradients.routed import FrozenExperts
from raptor.dp.gradients.taps import Pass, Tap
from raptor.dp.records import Batch
from raptor.errors import ModelError
from raptor.moe.families import sparse_layer, sparse_layers
from raptor.moe.roles import Role, parameter_roles


class EngineOptions(TypedDict, total=False):
    """What every engine can be told.

    Attributes:
        loss: one loss per record; by default the one that goes with the model (`raptor.dp.gradients.losses.loss_of`).
        way: how norms of linear layers are computed; the cheaper one by default.
        autocast: type of the forward pass, such as bfloat16; norms and sums stay in float32.
        weights: factors of the losses, computed before the pass; none by default.
        factors: public ones, for each expert's gradients before they are clipped; 1 for all by default.
        fused: whether norms and frozen experts run in faster forms than the library's (`raptor.dp.gradients.fused`,
            `raptor.dp.gradients.routed`); they do by default.
    """

    loss: RecordLoss
    weights: RecordWeights | None
    factors: Sequence[float]
    way: Way
    autocast: torch.dtype | None
    fused: bool


class GradientEngine(Protocol):
    """Gives the clipped sum of the per-record gradients of its parameters.

    Attributes:
        parameters: dotted names of the parameters that it sums over.
        scales: public factors in its sums, by name (see `ClippedSum.scales`).
    """

    parameters: tuple[str, ...]
    scales: Scales

    def clipped_sum(self, batch: Batch, rule: ClippingRule) -> ClippedSum:
        """Sum over the batch of clipped gradients; a batch without records gives zeros."""
        ...


def freeze(model: nn.Module) -> None:
    """Make every parameter a constant for autograd, so that no pass can leave a gradient on one."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None


@contextmanager
def _exact_products(device: str) -> Iterator[None]:
    """Products of float32 matrices in float32, whatever the caller allows: norms rest on them."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(allowed)


def _stand_ins(model: nn.Module, claimed: Collection[str]) -> list[FusedRms | FrozenExperts]:
    """Faster forms of what the library runs and no tap listens to."""
    norms = [
        FusedRms(module)
        for prefix, module in model.named_modules()
        if f"{prefix}.weight" not in claimed and is_rms_norm(module)
    ]
    experts = []
    for layer in sparse_layers(model):
        if any(name.startswith(layer.experts_prefix) for name in claimed):
            continue
        with suppress(ModelError):
            # Experts of a layout that is not covered are none of ours: they are frozen, and run as they are.
            bank = layer.bank()
            if FrozenExperts.is_faster(bank):
                experts.append(FrozenExperts(bank))
    return [*norms, *experts]


class _TappedGradients:
    """One pass over a batch with taps open, and the clipped sum of what they kept."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[str],
        taps: Sequence[Tap],
        options: EngineOptions,
    ) -> None:
        self.parameters = tuple(parameters)
        self.scales: Scales = {name: scale for tap in taps for name, scale in tap.scales.items()}
        self._model = model
        self._taps = list(taps)
        self._loss = options.get("loss") or loss_of(model)
        self._weights = options.get("weights")
        if self._weights is not None and self._loss is not classification_loss:
            raise ModelError("Weights of records are known for the loss of a classification head only.")
        self._way = options.get("way", "auto")
        self._autocast = options.get("autocast")
        claimed = {name for tap in taps for name in tap.parameters}
        self._stand_ins = _stand_ins(model, claimed) if options.get("fused", True) else []
        self._is_layout_known = False

    def _owners(self, batch: Batch) -> Tensor | None:
        return None

    @staticmethod
    @contextmanager
    def _labels_that_fit() -> Iterator[None]:
        try:
            yield
        except IndexError:
            # Without the cause: torch tells the label of a record.
            raise ModelError(
                "A record has a token or label that the model does not have. Tokenise and label the records for this "
                "model."
            ) from None

    def clipped_sum(self, batch: Batch, rule: ClippingRule) -> ClippedSum:
        """Sum over the batch of clipped gradients, in float32 or better."""
        records = len(batch)
        if records == 0:
            zeros = {
                name: accumulate(torch.zeros_like(self._model.get_parameter(name)))
                for name in self.parameters
            }
            return ClippedSum(zeros, rule.sensitivity, scales=self.scales)
        rows, tokens = batch.input_ids.shape
        tiles = 1 if batch.images is None else batch.images.pixels.shape[1]
        is_telling = tokens not in (rows, rows * tiles)
        if records > 1 and not is_telling and not self._is_layout_known:
            # Tokens on the first axis would pass for records. In two parts, a tap refuses them.
            total = self.clipped_sum(batch.part(0, records // 2), rule)
            total.add(self.clipped_sum(batch.part(records // 2, records), rule))
            return total
        if self._weights is not None:
            with self._labels_that_fit():
                batch = replace(batch, weights=self._weights(self._model, batch))
        members = batch.members
        current = Pass(
            records, tokens * members, self._way, self._owners(batch), members=members, tiles=tiles
        )
        device = batch.input_ids.device.type
        if torch.is_inference_mode_enabled():
            raise ModelError("A gradient cannot be taken in torch.inference_mode; leave it before.")
        for parameter in self._model.parameters():
            # One that asks for a gradient again would be left with a sum that is not clipped.
            parameter.requires_grad_(False)
        with ExitStack() as stack:
            stack.enter_context(_exact_products(device))
            stack.callback(current.grams.clear)
            for stand_in in self._stand_ins:
                stack.callback(stand_in.close)
                stand_in.open()
            for tap in self._taps:
                stack.callback(tap.close)
                tap.open(current)
            cast = torch.autocast(device, self._autocast) if self._autocast is not None else nullcontext()
            with torch.enable_grad(), cast:
                with self._labels_that_fit():
                    losses = self._loss(self._model, batch)
                if losses.shape != (records,):
                    # Without numbers: how many records were drawn is private.
                    raise ModelError(
                        "The loss is not one number for each record, from that record alone. A mean or sum over the "
                        "batch couples records."
                    )
            for tap in self._taps:
                tap.require_called()
            current.is_recomputing = True
            losses.backward(torch.ones_like(losses))  # type: ignore[no-untyped-call]
            current.grams.clear()
            for tap in self._taps:
                tap.settle()
            with torch.no_grad():
                result = clip_and_sum(self._taps, torch.isfinite(losses.detach()), rule)
            self._is_layout_known = self._is_layout_known or (rows > 1 and is_telling)
            return result


class JointGradients(_TappedGradients):
    """One vector per record over all named parameters: the shared role, and the monolithic baseline.

    Routed experts may be among the parameters; then every active expert of a record counts.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[str], **options: Unpack[EngineOptions]) -> None:
        """Raises ModelError when a parameter is not covered.

        Args:
            model: frozen from now on.
            parameters: dotted names.
            options: see `EngineOptions`.
        """
        freeze(model)
        roles = parameter_roles(model)
        routed = {name for name in parameters if name in roles and roles[name].role is Role.EXPERT}
        plain = [name for name in parameters if name not in routed]
        taps = claim(model, plain, fused=options.get("fused", True))
        if routed:
            taps += claim_experts(sparse_layers(model), routed, options.get("factors", ()))
        super().__init__(model, parameters, taps, options)


class OwnerExpertGradients(_TappedGradients):
    """One vector per record over its owner expert in one layer, or its owners in several: the expert role.

    The sums of all experts come back together. A record adds to the block of its owner only, because active
    experts that do not own it are constants for it; their inputs keep their gradient (RAPTOR, arXiv 2609.05770,
    section 3.3). A record with no token at its owner adds zero.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: int | Sequence[int],
        *,
        parameters: Sequence[str] | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        """Raises ModelError when a layer is not sparse or an expert parameter is not covered.

        Args:
            model: frozen from now on.
            layers: sparse layers; the columns of `Batch.owners` are in this order.
            parameters: dotted names of the trained ones; all of the experts' by default.
            options: see `EngineOptions`.
        """
        chosen = [layers] if isinstance(layers, int) else list(layers)
        freeze(model)
        found = [sparse_layer(model, layer) for layer in chosen]
        inside = [name for layer in found for name in layer.bank().parameters]
        wanted = inside if parameters is None else list(parameters)
        if strange := sorted(set(wanted) - set(inside)):
            raise ModelError(f"No routed expert of layers {chosen} has the parameters {', '.join(strange)}.")
        super().__init__(model, wanted, claim_experts(found, wanted, options.get("factors", ())), options)

    def _owners(self, batch: Batch) -> Tensor | None:
        return batch.owners[:, None] if batch.owners.ndim == 1 else batch.owners
