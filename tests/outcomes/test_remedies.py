"""Settings that leave no text, in words."""

import pytest

from guardwrap.outcomes import Obstacle


@pytest.mark.parametrize(
    ("obstacle", "words"),
    [
        (
            Obstacle(("top_k=50",), 0.0031),
            "top_k=50 leaves out all possible first tokens, which have probability 0.0031 without it",
        ),
        (
            Obstacle(("a", "b=1", "c"), 0.25),
            "a, b=1 and c leave out all possible first tokens, which have probability 0.25 without them",
        ),
        (
            Obstacle(("top_k=50",), 0.25, after=1, at_least=True),
            "top_k=50 leaves out all tokens that are possible after the first token, which have probability "
            "at least 0.25 without it",
        ),
        (
            Obstacle(("top_k=50",), 0.25, after=3, textless=True),
            "top_k=50 leaves out all tokens that are possible after the first 3 tokens except those without visible "
            "text, which have probability 0.25 without it",
        ),
        (
            Obstacle(("max_new_tokens=2",), 1.0, after=2),
            "max_new_tokens=2 ends every text too early, and the tokens that are possible after the first 2 tokens "
            "have probability 1 without it",
        ),
    ],
)
def test_obstacles_in_words(obstacle: Obstacle, words: str) -> None:
    assert str(obstacle) == words


def test_each_setting_has_a_remedy() -> None:
    obstacle = Obstacle(("top_k=50", "max_new_tokens=2", "bad_words_ids"), 0.25)
    assert obstacle.names == ["top_k", "max_new_tokens", "bad_words_ids"]
    assert obstacle.remedies() == ["pass top_k=0", "raise max_new_tokens", "leave out bad_words_ids"]
