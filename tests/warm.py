"""Imported by the server that processes of tests are forked from: the compiled projection is loaded there, once.

Each process would take longer for that than for the steps that a test has it train. The gradient is given: a backward
pass may start threads, which forbid forking.
"""

import torch

import pbwn

_layer = torch.nn.Linear(64, 64)
_layer.weight.grad = torch.ones_like(_layer.weight)
_optimizer = torch.optim.SGD(_layer.parameters(), lr=0.1)
_projection = pbwn.attach(_layer, _optimizer, output_layer=None)
_optimizer.step()
_projection.detach()
