"""The page is fast, and a large file does not freeze it."""

import io

import numpy as np
import pandas as pd
import pytest

# Longest that the page may not answer a user, in ms; the machine may be busy with other tests.
STALL = 400
ATTEMPTS = 3  # for the same reason
WATCH = """
window.stall = 0;
window.last = performance.now();
window.watch = setInterval(() => {
  const now = performance.now();
  window.stall = Math.max(window.stall, now - window.last);
  window.last = now;
}, 10);
"""


def test_a_hundred_drivers_take_less_than_ten_seconds(give, opened, make_drivers, tmp_path):
    path = tmp_path / "hundred.csv"
    make_drivers(count=100).to_csv(path, index=False)
    for _ in range(ATTEMPTS):
        assert give(path) == "" and "100 drivers" in opened.text("#outcome")
        seconds = float(opened.text("#outcome").split("calibrated in ")[1].split(" s")[0])
        print(f"100 drivers x 500 draws in {seconds} s")
        if seconds < 10:
            break
    assert seconds < 10


def large_csv(megabytes: int) -> bytes:
    """A table of few drivers with very many samples each."""
    steps = 20_000
    time = np.arange(steps) * 0.2
    speed = 12 + 5 * np.sin(time / 7)
    leader = 12 + 5 * np.sin(time / 7 + 0.3)
    opened = np.cumsum((leader[1:] + leader[:-1] - speed[1:] - speed[:-1]) / 2 * 0.2)
    columns = {"recording": "r", "pair_id": "PAIR", "follower_id": "PAIR", "time": time.round(1)}
    columns |= {"gap": (30 + np.append(0, opened)).round(6), "speed": speed.round(6)}
    text = io.StringIO()
    table = pd.DataFrame({**columns, "leader_speed": leader.round(6)})
    table.to_csv(text, index=False)
    head, _, body = text.getvalue().partition("\n")
    count = megabytes * 1_000_000 // len(body) + 1
    bodies = (body.replace("PAIR", f"driver {i}") for i in range(count))
    return "".join([head, "\n", *bodies]).encode()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file of 50 MB."""
    path = tmp_path_factory.mktemp("large") / "large.csv"
    path.write_bytes(large_csv(50))
    assert path.stat().st_size > 50_000_000
    return path


def test_a_file_of_50_megabytes_does_not_freeze_the_page(large, give, opened):
    opened.evaluate(WATCH)
    assert give(large, 180) == ""
    stall = opened.evaluate("window.stall")
    print(f"50 MB: the page was never silent for more than {stall:.0f} ms")
    assert stall < STALL
    assert "drivers calibrated" in opened.text("#outcome")


def test_a_file_opened_meanwhile_takes_its_place(large, give, opened, make_drivers, tmp_path):
    path = tmp_path / "small.csv"
    make_drivers().to_csv(path, index=False)
    opened.choose_file("#file", large)
    opened.wait("document.querySelector('#progress-text').textContent.startsWith('Reading')")
    assert give(path) == "" and opened.text("#outcome").startswith("small.csv: 6 drivers")
    assert opened.problems == []
