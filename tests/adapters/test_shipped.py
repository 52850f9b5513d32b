"""The adapters that come with guardwrap: their cards, and draws from one of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from guardwrap import GuardedGenerator
from guardwrap.adapters import Card, read_adapter
from guardwrap.adapters.adapter_folder import fetched
from guardwrap.adapters.card import readme
from guardwrap.errors import AdapterMismatch, UnknownName
from guardwrap.support.files import content

FOLDERS = sorted(path.parent for path in content("adapters").glob("*/card.yaml"))
NAMES = [folder.name for folder in FOLDERS]
JSON = "catalogue:json-object"


def test_there_are_two_and_the_readme_lists_them() -> None:
    listed = re.findall(r"^\| `([\w-]+)`", (content("adapters") / "README.md").read_text(encoding="utf-8"), re.M)
    assert NAMES == sorted(listed) == ["dragon", "json-object"]


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_an_adapter_is_small_and_says_what_it_is(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3_000_000
    card = read_adapter(folder).card  # the digests match
    assert isinstance(card, Card)
    figures = card.figures
    assert figures.acceptance_before is not None
    assert figures.acceptance_before.high is not None
    assert figures.acceptance_after is not None
    assert figures.acceptance_after.low > 3 * figures.acceptance_before.high
    assert figures.kl_gold_proposal is not None
    assert figures.kl_gold_guarded is not None
    assert any(
        re.fullmatch(r"KL is measured on \d+ draws of g among \d+ attempts of the model", note) for note in card.notes
    )
    assert (folder / "README.md").read_text(encoding="utf-8") == readme(card, folder.name)


def test_a_name_finds_the_folder_and_a_wrong_one_is_told_the_nearest() -> None:
    assert fetched("catalogue:dragon") == content("adapters") / "dragon"
    with pytest.raises(UnknownName, match="dragon"):
        fetched("catalogue:dragons")


@pytest.mark.slow
def test_an_adapter_for_another_model_is_refused(local: tuple[Any, Any]) -> None:
    model, tokenizer = local
    with pytest.raises(AdapterMismatch, match="dragon"):
        GuardedGenerator(model, "catalogue:json-object", tokenizer=tokenizer, adapter="catalogue:dragon")


@pytest.mark.slow
def test_the_embedded_model_answers_in_json(local: tuple[Any, Any]) -> None:
    model, tokenizer = local
    guarded = GuardedGenerator(model, JSON, tokenizer=tokenizer, adapter=JSON, batch_size=16)
    chat = [{"role": "user", "content": "Give me a name and an age as JSON."}]
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 64}
    (with_it,) = guarded.attempts([chat], 12, weigh=False, seed=1, **options)
    (without,) = guarded.attempts([chat], 12, weigh=False, seed=1, adapter=False, **options)
    assert sum(attempt.satisfied for attempt in with_it) >= 4
    assert sum(attempt.satisfied for attempt in without) <= 2  # it was 3 of 400
    (outcome,) = guarded.run([chat], seed=1, **options)
    assert outcome.ok
    assert "adapter 'catalogue:json-object'" in outcome.report.drawn_from
