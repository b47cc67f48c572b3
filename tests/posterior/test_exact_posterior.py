"""The estimator learns the residual-IDM's posterior, which NUTS gives exactly."""

import importlib.util
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_close_to_the_exact_posterior_of_held_out_drivers(pytestconfig, tmp_path):
    """20 drivers behind held-out leaders, 4,000 simulations, a short training; sbi if it is there.

    Measured with one seed: C2ST 0.892 and a standardised mean error of 1.09 after 37 s of CPU
    time; the limits leave room for another. The prior scores 0.972 and 3.40. sbi with the same
    simulations, inputs, encoder and number of epochs scored 0.967 and 2.59. Trained for longer
    (`--updates 1200 --patience 20`), ours reached 0.820 and 0.55 in 156 s, and sbi, when its own
    rule stopped it after 183 epochs, 0.853 and 0.68 in 637 s.
    """
    command = [sys.executable, "benchmarks/bench_exact_posterior.py", "--simulations", "4000"]
    command += ["--updates", "300", "--patience", "1", "--cache", str(tmp_path)]
    with_sbi = importlib.util.find_spec("sbi") is not None
    command += [] if with_sbi else ["--without-sbi"]
    result = subprocess.run(
        command, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    header, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in result.stdout.splitlines()
    )
    rows = {line[0].split(",")[0]: dict(zip(header, line, strict=True)) for line in lines}
    c2st = {name: float(row["C2ST"]) for name, row in rows.items()}
    error = {name: float(row["mean error"]) for name, row in rows.items()}
    assert c2st["prior"] > 0.95 and error["prior"] > 2
    assert c2st["ours"] < 0.93 and error["ours"] < 1.5
    if with_sbi:
        assert c2st["ours"] <= c2st["sbi"] + 0.02
