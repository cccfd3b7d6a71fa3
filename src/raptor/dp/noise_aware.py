"""Updates that know the noise in a release: Adam with its noise bias removed, and momentum in units of the noise.

A release is a gradient plus noise of a known variance Phi = (sigma C / D)^2 on each number, so the second moment of
Adam estimates gradient^2 + Phi, and where noise rules every step has the same size whatever the gradient. DP-AdamBC
(Tang et al., "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias Correction)", arXiv 2312.14334,
algorithm 1) takes Phi off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

Deviation = float | Tensor
"""Standard deviation of the noise on each number of a parameter's update, or a tensor that goes with its shape."""


class NoiseAwareOptimizer(torch.optim.Optimizer):
    """m / sqrt(max(v - Phi, floor Phi)), m and v being Adam's moments with their start corrected; or m / sqrt(Phi).

    Guarantee:
        Nothing private is read: Phi and the floor are public constants of the plan, and moments are of releases. So
        an update is post-processing and costs no privacy.
    """

    def __init__(
        self,
        groups: Iterable[Mapping[str, Any]],
        deviations: Mapping[Tensor, Deviation],
        betas: tuple[float, float],
        eps: float,
        floor: float | None,
    ) -> None:
        """`groups` as Adam takes them, each with its step size.

        Args:
            deviations: parameter -> sqrt(Phi).
            betas: decay of the two moments.
            eps: added to the divisor, as in Adam.
            floor: the corrected second moment counts for no less than so many times Phi; None divides by sqrt(Phi),
                and keeps no second moment.
        """
        super().__init__([dict(group) for group in groups], {})
        self._deviations = {id(parameter): deviation for parameter, deviation in deviations.items()}
        self._betas = betas
        self._eps = eps
        self._floor = floor

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter by its gradient, which is a release."""
        first, second = self._betas
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                if gradient is None:
                    continue
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"] = torch.zeros_like(parameter)
                    if self._floor is not None:
                        state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                number = float(state["step"])
                state["exp_avg"].lerp_(gradient, 1.0 - first)
                deviation = self._deviations[id(parameter)]
                if isinstance(deviation, Tensor):
                    deviation = deviation.to(parameter)
                size = group["lr"] / (1.0 - first**number)
                if self._floor is None:
                    parameter.sub_(state["exp_avg"] / deviation * size)
                    continue
                state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
                noise = deviation**2
                moment = state["exp_avg_sq"] / (1.0 - second**number) - noise
                # A number is no tensor, so that it goes with parameters that lie in parts.
                least = self._floor * noise
                known = moment.clamp(min=least) if isinstance(least, float) else moment.maximum(least)
                parameter.addcdiv_(state["exp_avg"], known.sqrt_().add_(self._eps), value=-size)
