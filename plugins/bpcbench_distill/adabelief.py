"""The AdaBelief optimiser (Zhuang et al., 2020) as RCIG uses it through optax."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class AdaBelief(torch.optim.Optimizer):
    """Adam, whose second moment is that of the surprise: gradient minus its running mean.

    With m = b1 m + (1 - b1) g and s = b2 s + (1 - b2) (g - m_old)^2 + eps_root, both corrected for their start at zero,

        x <- x - lr * m / (sqrt(s) + eps).

    optax subtracts the mean before the update, the paper the mean after it, which makes s smaller by b1^2. This is
    optax's form.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-16,
        eps_root: float = 1e-16,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "eps_root": eps_root})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients in `.grad`; there is no closure."""
        for group in self.param_groups:
            first, second = group["betas"]
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                state = self.state[tensor]
                if not state:
                    state["step"] = 0
                    state["mean"] = torch.zeros_like(tensor)
                    state["surprise"] = torch.zeros_like(tensor)
                state["step"] += 1
                error = tensor.grad - state["mean"]
                state["mean"].lerp_(tensor.grad, 1 - first)
                state["surprise"].mul_(second).addcmul_(error, error, value=1 - second).add_(group["eps_root"])
                mean = state["mean"] / (1 - first ** state["step"])
                surprise = state["surprise"] / (1 - second ** state["step"])
                tensor.addcdiv_(mean, surprise.sqrt_().add_(group["eps"]), value=-group["lr"])
