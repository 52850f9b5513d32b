"""Numbers with their nouns."""

import pytest

from guardwrap.support.formatting import counted_of


@pytest.mark.parametrize(
    ("number", "total", "said"),
    [
        (1, 20, "1 of 20 prompts"),
        (2, 20, "2 of 20 prompts"),
        (1, 1, "1 of 1 prompt"),
        (0, 1, "0 of 1 prompt"),
        (1, None, "1 prompt"),
        (2, None, "2 prompts"),
    ],
)
def test_some_of_all(number, total, said):
    assert counted_of(number, total, "prompt") == said
