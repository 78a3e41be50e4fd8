"""Every optimizer of torch.optim, and a step of it."""

import torch

OPTIMIZERS = [
    optimizer
    for optimizer in vars(torch.optim).values()
    if isinstance(optimizer, type)
    and issubclass(optimizer, torch.optim.Optimizer)
    and optimizer is not torch.optim.Optimizer
]


def take_step(optimizer, closure):
    """A step; LBFGS calls the closure itself, for the others it comes first. Returns the loss before the step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        return optimizer.step(closure)
    loss = closure()
    optimizer.step()
    return loss
