"""Every engine there is, with workers that can import what the tests let them do."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from asbc.engine import Engine, LocalEngine, RayEngine

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def pieces():
    """The module of pieces."""
    sys.path.insert(0, HERE)
    yield importlib.import_module("engine_pieces")
    sys.path.remove(HERE)


@pytest.fixture(scope="session")
def cluster(pieces):
    """A Ray cluster of two CPUs on this machine, for all tests that want one."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'asbc[ray]'")
    path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
    ray.init(
        num_cpus=2,
        object_store_memory=10**8,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield ray
    ray.shutdown()


@pytest.fixture(params=["local", "ray"])
def engine(request, pieces) -> Engine:
    """Two workers of each engine."""
    if request.param == "local":
        return LocalEngine(workers=2)
    request.getfixturevalue("cluster")
    return RayEngine(workers=2)
