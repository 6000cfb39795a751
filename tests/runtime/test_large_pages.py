import pytest
import torch

from engine.runtime.large_pages import PAGE, Room, zeros


@pytest.mark.parametrize("shape", [(3, 5), (0, 7), (PAGE + 2,)])
def test_zeros_start_a_page_and_can_be_written(shape):
    tensor = zeros(shape, torch.bfloat16)
    assert tensor.shape == shape
    assert not tensor.any()
    tensor.fill_(2)
    assert tensor.sum() == 2 * tensor.numel()
    assert tensor.numel() == 0 or tensor.data_ptr() % PAGE == 0


def test_a_room_keeps_copies_apart_and_grows():
    room = Room(share=128)
    first, second = room.keep(torch.tensor([1, 2, 3], dtype=torch.int16)), torch.arange(64)
    kept = room.keep(second.to(torch.uint8))
    assert first.tolist() == [1, 2, 3]
    assert torch.equal(kept, second.to(torch.uint8))
    assert kept.data_ptr() % 64 == 0
    for size in (1, 200):  # of a share of its own, and larger than one
        later = room.keep(torch.full((size,), 7, dtype=torch.uint8))
        assert later.tolist() == [7] * size
    assert first.tolist() == [1, 2, 3]
    assert torch.equal(kept, second.to(torch.uint8))
