import pytest
import torch

from asbc.training.datamodule import Batches
from asbc.utils.random import stream


def data(rows=10):
    return {"theta": torch.arange(rows)[:, None], "weight": torch.arange(rows) / 10}


def shuffled(key):
    return lambda rows: torch.from_numpy(stream(key, "order").permutation(rows))


def test_each_row_comes_once_and_columns_stay_together():
    batches = list(Batches(data, 4, shuffled(1)))
    assert [len(b["theta"]) for b in batches] == [4, 4, 2]
    assert len(Batches(data, 4, shuffled(1))) == 3
    theta = torch.cat([b["theta"] for b in batches])[:, 0]
    assert sorted(theta.tolist()) == list(range(10)) != theta.tolist()
    assert torch.equal(torch.cat([b["weight"] for b in batches]), theta / 10)


def test_the_order_is_a_function_of_the_key():
    first, again, other = (
        torch.cat([b["theta"] for b in Batches(data, 4, shuffled(key))]) for key in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_without_an_order_rows_come_as_they_are():
    assert torch.cat([b["theta"] for b in Batches(data, 3)])[:, 0].tolist() == list(range(10))


def test_nothing_is_read_before_the_first_batch():
    asked = []

    def reading():
        asked.append(1)
        return data()

    batches = Batches(reading, 4)
    iterators = [iter(batches) for _ in range(3)]
    assert not asked
    next(iterators[0])
    assert len(asked) == 1


def test_new_data_appear_at_once():
    rows = 4
    batches = Batches(lambda: data(rows), 2)
    assert len(batches) == 2
    rows = 8
    assert len(batches) == len(list(batches)) == 4


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_the_mean_over_processes_is_that_of_the_whole_batch(processes):
    """Whatever the batch's size, one row and fewer rows than processes included."""
    value, weight = torch.rand(2, 22, dtype=torch.float64)
    data = {"value": value, "weight": weight}
    whole = list(Batches(lambda: data, 7, lambda n: torch.arange(n).flip(0)))
    shares = [
        list(Batches(lambda: data, 7, lambda n: torch.arange(n).flip(0), share=lambda r=r: r))
        for r in ((rank, processes) for rank in range(processes))
    ]
    assert [len(batch["value"]) for batch in whole] == [7, 7, 7, 1]
    for batch, *parts in zip(whole, *shares, strict=True):
        means = [(part["value"] * part["weight"]).mean() for part in parts]
        expected = (batch["value"] * batch["weight"]).mean()
        assert torch.stack(means).mean() == pytest.approx(float(expected), rel=1e-12)
        assert {part["rows"] for part in parts} == {len(batch["value"])}
        taken = torch.cat([p["value"][p["weight"] > 0] for p in parts])
        assert torch.equal(taken.sort().values, batch["value"].sort().values)


def test_shares_of_the_hold_out_have_weights_too():
    parts = [
        next(iter(Batches(lambda: {"value": torch.arange(5.0)}, 9, share=lambda r=rank: (r, 2))))
        for rank in (0, 1)
    ]
    assert sum((part["value"] * part["weight"]).mean() for part in parts) / 2 == pytest.approx(2.0)
