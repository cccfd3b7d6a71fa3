"""The optimizer of a stream: post-processing of releases, with a state that can be kept and put back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from raptor.dp.config import TrainingConfig
from raptor.dp.noise_aware import Deviation, NoiseAwareOptimizer
from raptor.dp.trainable import HEAD
from raptor.errors import CheckpointError

FINAL_SHARE = 0.1
WEIGHT = "weight"


class ReleaseOptimizer:
    """Adam, or what `training.optimizer` says, fed with releases in place of gradients: it costs no privacy."""

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        config: TrainingConfig,
        steps: int,
        experts: Collection[str] = (),
        deviations: Mapping[str, Deviation] | None = None,
        step_factors: Mapping[str, float | Tensor] | None = None,
    ) -> None:
        """Step sizes go by role in every method: those among `names` that are in `experts`, the head, the rest.

        Args:
            steps: updates of the whole run, over which the step size falls.
            deviations: name -> public standard deviation of the noise on each number of an update; None without
                noise, where there is none to correct and Adam is used in any case.
            step_factors: name -> public factor on its steps, one for each expert of a fused parameter; 1 by default.
        """
        self._parameters = {name: model.get_parameter(name) for name in names}
        expert = [value for name, value in self._parameters.items() if name in experts]
        head = [value for name, value in self._parameters.items() if name.startswith(HEAD)]
        known = {id(value) for value in expert + head}
        body = [value for value in self._parameters.values() if id(value) not in known]
        groups = [
            {"params": body, "lr": config.shared.learning_rate},
            {"params": head, "lr": config.head_learning_rate or config.shared.learning_rate},
            {"params": expert, "lr": config.expert.learning_rate},
        ]
        present = [group for group in groups if group["params"]]
        betas, eps = config.adam_betas, config.adam_epsilon
        if config.optimizer == "adam" or deviations is None:
            self._optimizer: torch.optim.Optimizer = torch.optim.Adam(
                present, betas=betas, eps=eps, fused=True
            )
        else:
            known_noise: dict[Tensor, Deviation] = {
                value: deviations[name] for name, value in self._parameters.items()
            }
            floor = config.adam_bc_floor if config.optimizer == "adam_bc" else None
            self._optimizer = NoiseAwareOptimizer(present, known_noise, betas, eps, floor)
        self._factors = {
            name: torch.as_tensor(factor).to(self._parameters[name])
            for name, factor in (step_factors or {}).items()
        }
        final = FINAL_SHARE if config.schedule == "linear" else 1.0
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: 1.0 - (1.0 - final) * min(step / max(steps - 1, 1), 1.0)
        )

    @property
    def updates(self) -> int:
        """Updates made so far, which is also the position in the schedule of step sizes."""
        return int(self._schedule.last_epoch)

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self._parameters.values())

    def apply(self, update: dict[str, Tensor]) -> None:
        for name, value in update.items():
            self._parameters[name].grad = value
        before = {name: self._parameters[name].detach().clone() for name in self._factors}
        self._optimizer.step()
        for name, start in before.items():
            # Whatever the optimizer, its step is multiplied, and not its gradient, which Adam would undo.
            parameter = self._parameters[name]
            parameter.data.copy_(start.lerp(parameter.data, self._factors[name]))
        self._optimizer.zero_grad(set_to_none=True)
        self._schedule.step()

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, and once they were updated their moments and step counts, as `parameter:field`.

        Not copied.
        """
        found = {f"{name}:{WEIGHT}": value.detach() for name, value in self._parameters.items()}
        for name, parameter in self._parameters.items():
            found |= {f"{name}:{field}": value for field, value in self._optimizer.state[parameter].items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        """Take over what `tensors` and `updates` gave.

        Raises:
            CheckpointError: the tensors are of other parameters.
        """
        shapes = {
            key.removesuffix(f":{WEIGHT}"): tensors[key].shape
            for key in tensors
            if key.endswith(f":{WEIGHT}")
        }
        if shapes != {name: parameter.shape for name, parameter in self._parameters.items()}:
            raise CheckpointError(
                "The checkpoint holds other trained parameters than the model has by training.trainable and "
                "training.frozen."
            )
        for key, value in tensors.items():
            name, _, field = key.rpartition(":")
            parameter = self._parameters[name]
            if field == WEIGHT:
                parameter.data.copy_(value)
            else:
                self._optimizer.state[parameter][field] = value.to(parameter.device, copy=True)
        schedule = self._schedule
        schedule.last_epoch = updates
        groups = zip(self._optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True)
        for group, peak, share in groups:
            group["lr"] = peak * share(updates)
