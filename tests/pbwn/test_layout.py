"""Where tensors lie in memory, and which of them share some."""

import torch

from pbwn.layout import overlapping


def test_tensors_that_meet_in_memory_are_found_and_neighbours_are_not():
    memory = torch.zeros(100)
    pieces = [memory[50:60], memory[:20], memory[20:40], memory[30:45], memory[31:32], torch.zeros(5), memory[60:]]
    assert overlapping(pieces) == {2, 3, 4}
    assert overlapping([memory, memory[3:4]]) == {0, 1}
    assert overlapping([]) == set()
