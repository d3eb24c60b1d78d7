"""Adam for large tables of which a step touches a few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

GROWTH = 1.5  # when moments for more rows are needed


class RowAdam(torch.optim.Optimizer):
    """AdamW that keeps state for rows that had a gradient, and changes no other ones.

    The gradients are sparse (``sparse=True`` of `torch.nn.functional.embedding`). For the rows of one step this is
    `torch.optim.SparseAdam`: moments and values of other rows stay as they are, the bias correction goes by the number
    of all steps, and weight decay is decoupled, for the rows of the step alone. SparseAdam holds moments for the whole
    table, three times its memory; here a table (N, d) of which T rows had a gradient so far takes 4 N bytes for the
    rows' places and 8 T d for their moments, up to half as much again in reserve, and for a moment, when the reserve is
    used up, 4 T d more.

    Args:
        params: tables (N, d), or groups of them.
        lr: learning rate.
        betas: decay of the means of gradients and of their squares.
        eps: added to the root of the second one.
        weight_decay: decoupled weight decay.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step over the rows that have a gradient.

        Raises:
            TypeError: a gradient is dense.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    if not table.grad.is_sparse:
                        raise TypeError("RowAdam takes sparse gradients; this one is dense, use AdamW")
                    self._update(table, table.grad.coalesce(), group)
        return loss

    def _update(self, table: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[table]
        if not state:
            state["step"] = 0
            state["place"] = torch.full((len(table),), -1, dtype=torch.int32, device=table.device)
            state["rows"] = 0
            state["mean"] = table.new_empty(0, table.shape[1])
            state["square"] = table.new_empty(0, table.shape[1])
        state["step"] += 1
        rows, values = gradient.indices()[0], gradient.values()
        if not len(rows):
            return
        places = _places(state, rows)
        (first, second), step = group["betas"], state["step"]
        mean = state["mean"][places].lerp_(values, 1 - first)
        square = state["square"][places].mul_(second).addcmul_(values, values, value=1 - second)
        state["mean"][places], state["square"][places] = mean, square
        size = group["lr"] * (1 - second**step) ** 0.5 / (1 - first**step)
        old = table[rows] * (1 - group["lr"] * group["weight_decay"])
        table[rows] = old - size * mean / square.sqrt_().add_(group["eps"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer.load_state_dict`, which would make places of rows floating-point numbers."""
        super().load_state_dict(state_dict)
        tables = [table for group in self.param_groups for table in group["params"]]
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        for table, name in zip(tables, names, strict=True):
            if name in state_dict["state"]:
                self.state[table]["place"] = state_dict["state"][name]["place"].to(table.device, torch.int32)


def _places(state: dict[str, Any], rows: Tensor) -> Tensor:
    """Where the moments of rows are; rows without any get the next places, and moments of 0."""
    place = state["place"]
    new = rows[place[rows] < 0]
    if len(new):
        count = state["rows"] + len(new)
        for name in ("mean", "square"):
            if count > len(state[name]):
                most = min(len(place), max(count, int(GROWTH * len(state[name]))))
                grown = state[name].new_zeros(most, state[name].shape[1])
                grown[: state["rows"]] = state[name][: state["rows"]]
                state[name] = grown
        place[new] = torch.arange(state["rows"], count, dtype=torch.int32, device=place.device)
        state["rows"] = count
    found: Tensor = place[rows].long()
    return found
