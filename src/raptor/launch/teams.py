"""Teams of several processes: data parallel with the whole model in each, or with the model in shards (FSDP2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, distribute_tensor

from raptor.dp.clipping import ClippedSum
from raptor.moe.families import sparse_layers

Value = TypeVar("Value")


class _Group:
    """What both kinds of teams share: one sample for all, and one digest of what all have made."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """`group` is the default group of torch.distributed, unless it is given."""
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def share(self, make: Callable[[], Value]) -> Value:
        """What `make` gives in the first process, in all of them."""
        held: list[Any] = [make() if self.rank == 0 else None]
        dist.broadcast_object_list(held, group=self._group, group_src=0)
        result: Value = held[0]
        return result

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, by rank, in all of them."""
        held: list[Any] = [None] * self.size
        dist.all_gather_object(held, value, group=self._group)
        return held

    def part(self, draw: Callable[[], Tensor]) -> Tensor:
        """Every `size`-th unit of the sample that the first process draws, from the `rank`-th on.

        Guarantee: the parts are disjoint and together the sample, so that a record is in it by its one coin.
        """
        sample = draw() if self.rank == 0 else torch.empty(0, dtype=torch.int64)
        count = torch.tensor([len(sample)])
        dist.broadcast(count, group=self._group, group_src=0)
        if self.rank != 0:
            sample = torch.empty(int(count), dtype=torch.int64)
        dist.broadcast(sample, group=self._group, group_src=0)
        return sample[self.rank :: self.size]

    def seal(self, digest: str) -> str:
        if self.size == 1:
            return digest
        return hashlib.sha256("\n".join(self.gather(digest)).encode()).hexdigest()


class Replicated(_Group):
    """Every process holds the model; the first one adds the noise.

    Guarantee: see `raptor.dp.team.Team`. All coordinates of the sum go to the first process, which alone has a private
    keystream; the others add noise to nothing. Sums are added in their own type, float32 at least.
    """

    is_in_step = False

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self._held: dict[str, Tensor] = {}

    @property
    def makers(self) -> int:
        """How many processes add noise."""
        return 1

    def place(self, model: nn.Module) -> None:
        pass

    def whole(self, names: Sequence[str] | None = None) -> nullcontext[None]:
        return nullcontext()

    def goes_on(self, has_batch: bool) -> bool:
        """A pass needs no other process, so who has drawn nothing just adds zeros."""
        return has_batch

    def collect(self, total: ClippedSum) -> ClippedSum:
        for tensor in total.tensors.values():
            dist.reduce(tensor, group=self._group, group_dst=0)
        dimension = sum(tensor.numel() for tensor in total.tensors.values())
        if self.rank == 0:
            return replace(total, dimension=dimension)
        self._held = total.tensors
        nothing = {name: tensor.new_empty(0) for name, tensor in total.tensors.items()}
        return replace(total, tensors=nothing, dimension=dimension)

    def spread(self, released: dict[str, Tensor]) -> dict[str, Tensor]:
        values = released if self.rank == 0 else self._held
        for value in values.values():
            dist.broadcast(value, group=self._group, group_src=0)
        self._held = {}
        return values

    def full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors of a state, in the first process at least."""
        return dict(tensors)

    def laid_out(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What `full` gave, as this process holds it."""
        return dict(tensors)


class Sharded(_Group):
    """Every process holds a shard of each parameter and of its optimizer's state; each adds noise to its shards.

    The experts of every sparse layer are one group of parameters, and everything else is another (FSDP2, Zhao et al.,
    arXiv 2304.11277, in its second form in torch). A group without trained parameters is made whole for its part of
    forward and backward pass alone; one with trained parameters for the whole pass.

    Guarantee: see `raptor.dp.team.Team`. Shards are disjoint and together the whole, so every coordinate gets its noise
    from the one process that owns it, whose keystream has a key of its own. Sums are added in their own type, float32
    at least.
    """

    is_in_step = True

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self._parts: dict[FSDPModule, frozenset[str]] = {}
        self._layout: dict[str, DTensor] = {}

    @property
    def makers(self) -> int:
        """How many processes add noise."""
        return self.size

    def place(self, model: nn.Module) -> None:
        device = next(model.parameters()).device.type
        group = self._group if self._group is not None else dist.group.WORLD
        mesh = DeviceMesh.from_group(group, device)  # type: ignore[arg-type]
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        rest = {name for name, _ in model.named_parameters()}
        for layer in sparse_layers(model):
            own = frozenset(name for name in rest if name.startswith(layer.experts_prefix))
            self._parts[fully_shard(layer.experts, mesh=mesh)] = own
            rest -= own
        # The root's hooks are called first, and its parameters stay until `whole` ends.
        root = fully_shard(model, mesh=mesh, reshard_after_forward=False)
        root.set_reshard_after_backward(False, recurse=False)
        self._parts[root] = frozenset(rest)
        self._layout = {name: value for name, value in model.named_parameters() if isinstance(value, DTensor)}

    @contextmanager
    def whole(self, names: Sequence[str] | None = None) -> Iterator[None]:
        wanted = None if names is None else frozenset(names)
        held = [part for part, own in self._parts.items() if wanted is None or own & wanted]
        root = next(reversed(self._parts))
        held = [part for part in held if part is not root]
        for part in [*held, root]:
            part.unshard()
        for part in held:
            part.set_reshard_after_forward(False, recurse=False)
            part.set_reshard_after_backward(False, recurse=False)
        try:
            yield
        finally:
            for part in held:
                part.set_reshard_after_forward(True, recurse=False)
                part.set_reshard_after_backward(True, recurse=False)
            for part in [*held, root]:
                part.reshard()

    def goes_on(self, has_batch: bool) -> bool:
        any_has = torch.tensor([int(has_batch)])
        dist.all_reduce(any_has, op=dist.ReduceOp.MAX, group=self._group)
        return bool(any_has)

    def collect(self, total: ClippedSum) -> ClippedSum:
        mine = {}
        for name, tensor in total.tensors.items():
            layout = self._layout[name]
            whole = DTensor.from_local(tensor, layout.device_mesh, [Partial()], run_check=False)
            mine[name] = whole.redistribute(placements=layout.placements).to_local()
        dimension = sum(tensor.numel() for tensor in total.tensors.values())
        return replace(total, tensors=mine, dimension=dimension)

    def spread(self, released: dict[str, Tensor]) -> dict[str, Tensor]:
        result: dict[str, Tensor] = {}
        for name, value in released.items():
            layout = self._layout[name]
            result[name] = DTensor.from_local(
                value.to(layout.dtype),
                layout.device_mesh,
                layout.placements,
                run_check=False,
                shape=layout.shape,
                stride=layout.stride(),
            )
        return result

    def full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors of a state; one after the other, so that only the first process ever holds all of them."""
        found: dict[str, Tensor] = {}
        for name, value in tensors.items():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if self.rank == 0:
                found[name] = whole.cpu()
        return found

    def laid_out(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What `full` gave, as this process holds it; names are `STREAM:PARAMETER:FIELD`."""
        found: dict[str, Tensor] = {}
        for name, value in tensors.items():
            layout = self._layout[name.split(":")[1]]
            is_like_parameter = value.shape == layout.shape and not name.endswith(":step")
            if not is_like_parameter:
                found[name] = value
                continue
            device = layout.device_mesh.device_type
            found[name] = distribute_tensor(
                value.to(device), layout.device_mesh, layout.placements, src_data_rank=None
            )
        return found


def local(value: Tensor) -> Tensor:
    """The part of a tensor that this process holds."""
    return value.to_local() if isinstance(value, DTensor) else value
