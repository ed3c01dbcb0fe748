"""The LAMB optimiser (You et al., 2020) as FRePo uses it through optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT


class Lamb(Optimizer):
    """Adam with each tensor's step scaled to the norm of the tensor, times the learning rate.

        u = m^ / (sqrt(v^) + eps) + weight_decay * x,    x <- x - lr * (||x|| / ||u||) * u,

    with m^ and v^ the bias-corrected moving averages of the gradient and its square. The trust ratio ||x|| / ||u|| is
    one number per tensor, not clipped, and 1 where either norm is 0. The gradient is not clipped. For FRePo the images
    are one tensor and the labels another. timm's Lamb is the same with `always_adapt=True, max_grad_norm=None`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        if not (lr >= 0 and eps >= 0 and weight_decay >= 0 and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(f"bad lr {lr}, betas {betas}, eps {eps} or weight_decay {weight_decay}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; `closure` computes the gradients first, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        first, second = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        average = state["exp_avg"] / (1 - first ** state["step"])
        scale = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
        update = average.div_(scale).add_(parameter, alpha=group["weight_decay"])
        length, size = parameter.norm(), update.norm()
        # torch.where instead of `if`: a Python condition would wait for the device.
        trust = torch.where((length > 0) & (size > 0), length / size, 1.0)
        parameter.sub_(update * trust * group["lr"])
