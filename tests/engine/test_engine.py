"""Any engine, number of workers and order: the same bytes, whatever dies on the way."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from asbc.engine import LocalEngine, RayEngine
from asbc.errors import InputError

NAMES = "abcdefg"


def test_results_are_the_same_bytes_for_any_engine_and_order(engine, pieces):
    expected = [pieces.draw(7, name) for name in NAMES]
    work = [(name, name) for name in NAMES]
    with engine.pool(partial(int, "7")) as pool:
        assert pool.gather(pieces.draw, work) == expected
        assert pool.gather(pieces.draw, work[::-1]) == expected[::-1]
        assert dict(pool.map(pieces.draw, iter(work))) == dict(zip(NAMES, expected, strict=True))
        assert pool.gather(pieces.draw, []) == []


def test_a_killed_worker_is_replaced_and_its_piece_done_again(engine, pieces, tmp_path):
    work = [(name, (name, 2 if name == "b" else int(name == "e"))) for name in NAMES]
    with engine.pool(partial(str, tmp_path)) as pool:
        found = pool.gather(pieces.draw_after_deaths, work)
    assert found == [pieces.draw(7, name) for name in NAMES]
    assert len(list(tmp_path.iterdir())) == 3  # deaths


def test_a_piece_that_kills_its_workers_is_named_when_all_others_are_done(
    engine, pieces, tmp_path
):
    work = [(f"piece {name}", (name, 9 if name == "b" else 0)) for name in NAMES]
    done = {}
    with engine.pool(partial(str, tmp_path)) as pool:
        with pytest.raises(InputError, match=r"^piece b: 3 workers died on it, the last because"):
            for key, result in pool.map(pieces.draw_after_deaths, work):
                done[key] = result
        # The pool is as good as before.
        assert pool.gather(pieces.draw_after_deaths, work[:1]) == [pieces.draw(7, "a")]
    assert done == {f"piece {n}": pieces.draw(7, n) for n in NAMES if n != "b"}


def test_a_hung_worker_is_replaced(engine, pieces, tmp_path):
    limited = replace(engine, time_limit=5.0)
    with limited.pool(partial(str, tmp_path)) as pool:
        found = pool.gather(pieces.hang_once, [(name, name) for name in "abcd"])
    assert found == [pieces.draw(7, name) for name in "abcd"]


def test_of_several_refusals_that_of_the_first_piece_is_raised(engine, pieces):
    work = [(name, name) for name in "abcd"]
    with engine.pool(partial(frozenset, "ab")) as pool:
        for _ in range(2):
            with pytest.raises(InputError, match="^b is refused$"):
                pool.gather(pieces.refuse, work)


def test_what_cannot_be_sent_is_an_error_and_no_hang(engine, pieces):
    with engine.pool() as pool:
        with pytest.raises(RuntimeError, match="is awkward"):
            pool.gather(pieces.be_awkward, [("x", "x"), ("y", "y")])
        with pytest.raises(RuntimeError, match="(?i)pickle"):
            pool.gather(pieces.unsendable, [("x", "x"), ("y", "y")])


def test_workers_compute_on_one_thread(engine, pieces):
    with engine.pool() as pool:
        assert set(pool.gather(pieces.threads, [("x", "x"), ("y", "y")])) == {(1, "1")}


def test_one_worker_is_this_process_on_one_thread_for_as_long_as_it_takes(pieces):
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with LocalEngine(workers=1).pool(os.getpid) as pool:
            for _, (threads, _) in pool.map(pieces.threads, [("x", "x")]):
                assert threads == 1
            assert pool.gather(lambda own, value: (own, value), [("x", 5)]) == [(os.getpid(), 5)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_worker_is_set_up_once_and_there_are_no_more_than_pieces(engine, pieces, tmp_path):
    with engine.pool(partial(pieces.counted, str(tmp_path))) as pool:
        first = pool.gather(pieces.whoami, [("x", "x")])
        assert len(list(tmp_path.iterdir())) == 1
        many = pool.gather(pieces.whoami, [(str(i), i) for i in range(8)])
    assert len(list(tmp_path.iterdir())) == 2 == len(set(many)) and set(first) <= set(many)


def test_a_setup_that_fails_says_so(engine, pieces):
    with engine.pool(pieces.fail_to_set_up) as pool, pytest.raises(InputError, match="^no such m"):
        pool.gather(pieces.draw, [("x", "x"), ("y", "y")])
    with engine.pool(pieces.die_when_set_up) as pool, pytest.raises(InputError, match="die befor"):
        pool.gather(pieces.draw, [("x", "x"), ("y", "y")])


def test_leaving_early_ends_what_is_under_way(engine, pieces, tmp_path):
    with engine.pool(partial(str, tmp_path)) as pool:
        for _ in pool.map(pieces.hang_once, [("a", "a"), ("c", "c")]):
            break
        assert pool.gather(pieces.hang_once, [("b", "b")]) == [pieces.draw(7, "b")]


def test_workers_of_a_worker_are_the_worker_itself():
    with LocalEngine(workers=2).pool() as pool:
        assert pool.gather(_nested, [("a", 1), ("b", 2)]) == [[1], [2]]


def _nested(_: None, value: int) -> list[int]:
    with LocalEngine(workers=2).pool() as pool:
        return pool.gather(lambda _, value: value, [("x", value)])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_running_when_the_main_process_ends(end, pieces, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import engine_pieces, sys\n"
        "from functools import partial\n"
        "from asbc.engine import LocalEngine\n"
        "if __name__ == '__main__':\n"
        "    with LocalEngine(workers=2).pool(partial(str, sys.argv[1])) as pool:\n"
        "        pool.gather(engine_pieces.start_and_wait, [('a', 'a'), ('b', 'b')])\n"
    )
    path = f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    main = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores Ctrl-C, and its children with it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        _until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
        started = [int(p) for n in "ab" for p in (tmp_path / n).read_text().split()]
        main.send_signal(end)
        main.wait(20)
        _until(lambda: not any(_running(p) for p in started))
        if end == signal.SIGINT:
            assert main.stderr is not None and main.stderr.read().count("Traceback") == 1
    finally:
        main.kill()


def _until(condition, seconds: float = 30) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # dead, but not yet buried by whoever inherited it


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, r"engine.workers=0; expected a whole number from 1 on"),
        ({"attempts": 0}, r"engine.attempts=0; expected a whole number from 1 on"),
        ({"time_limit": -1}, r"engine.time_limit=-1; expected seconds above 0"),
    ],
)
@pytest.mark.parametrize("kind", [LocalEngine, RayEngine])
def test_bad_settings_are_named(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind(**settings)


def test_ray_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'asbc\[ray\]'"):
        RayEngine().pool()
