from collections.abc import Iterator

import pytest

from tests.training.fixtures_training import undrawn


@pytest.fixture(scope="module", autouse=True)
def _undrawn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        yield
