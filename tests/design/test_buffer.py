import io

import pytest
import torch

from asbc.design.simulations import FifoBuffer, Simulations
from asbc.errors import InputError


def numbered(start: int, count: int, round: int = 0) -> Simulations:
    """Simulations whose fields all carry their serial number."""
    number = torch.arange(start, start + count)
    return Simulations(
        theta=number[:, None].float().expand(-1, 2).clone(),
        states=number[:, None, None].float().expand(-1, 5, 3).clone(),
        window_id=number,
        round=torch.full((count,), round),
        log_ratio=number.float(),
    )


@pytest.mark.parametrize("capacity", [1, 5, 8, 100])
@pytest.mark.parametrize("sizes", [[3], [2, 2, 2], [8, 1], [1, 20, 3]])
def test_the_newest_stay_in_order(capacity, sizes):
    buffer, pushed = FifoBuffer(capacity), 0
    for round, size in enumerate(sizes):
        buffer.push(numbered(pushed, size, round))
        pushed += size
    expected = list(range(pushed))[-capacity:]
    content = buffer.content
    assert len(buffer) == len(expected)
    assert content.window_id.tolist() == expected
    assert content.theta[:, 1].tolist() == expected
    assert content.states[:, 4, 2].tolist() == expected
    assert content.log_ratio.tolist() == expected
    rounds = [round for round, size in enumerate(sizes) for _ in range(size)]
    assert content.round.tolist() == rounds[-capacity:]


def test_state_survives_a_checkpoint():
    buffer = FifoBuffer(4)
    buffer.push(numbered(0, 6))
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    restored = FifoBuffer(4)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert restored.content.window_id.tolist() == [2, 3, 4, 5]
    assert torch.equal(restored.content.states, buffer.content.states)


def test_a_checkpoint_holds_no_discarded_rows():
    buffer = FifoBuffer(4)
    buffer.push(numbered(0, 1000))
    assert buffer.content.states.untyped_storage().nbytes() == 4 * 5 * 3 * 4


def test_an_empty_buffer_round_trips_and_refuses_to_be_read():
    buffer = FifoBuffer(4)
    buffer.load_state_dict(FifoBuffer(4).state_dict())
    assert len(buffer) == 0
    with pytest.raises(InputError, match="empty"):
        _ = buffer.content


def test_rows_must_match():
    with pytest.raises(InputError, match="simulations.states has 2 rows, expected 3"):
        Simulations(
            torch.zeros(3, 1), torch.zeros(2, 5, 3), torch.zeros(3), torch.zeros(3), torch.zeros(3)
        )
    with pytest.raises(InputError, match="capacity is 0"):
        FifoBuffer(0)
