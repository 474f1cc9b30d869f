"""Real ranks, started once for all tests of a session that want them."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from simulator.validation.launch import Workers

HAS_TORCH = find_spec("torch") is not None


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """As many processes as the tests ask for; they stay to the end."""
    if not HAS_TORCH:
        pytest.skip("torch is not installed")
    with Workers(timeout_s=120) as started:
        yield started
