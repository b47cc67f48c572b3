import math

from asbc.training.loop import Patience


def test_stops_after_patience_losses_without_improvement():
    rule = Patience(patience=3)
    losses = [5, 4, 4.5, 4.2, 3.9, 4, 4, 4]
    exhausted = []
    for loss in losses:
        rule.update(loss)
        exhausted.append(rule.exhausted)
    assert exhausted == [False] * 7 + [True]
    assert (rule.best, rule.best_index) == (3.9, 4)


def test_a_gain_of_at_most_min_delta_is_none():
    rule = Patience(patience=1, min_delta=0.25)
    assert rule.update(1.0)
    assert not rule.update(0.75)
    assert rule.exhausted and rule.best == 1.0
    assert rule.update(0.5)
    assert not rule.exhausted


def test_a_loss_that_is_not_finite_never_improves():
    rule = Patience(patience=2)
    assert not rule.update(math.nan)
    assert not rule.update(math.inf)
    assert rule.exhausted and rule.best_index == -1
    assert rule.update(7.0)
