"""The server's page: it loads nothing from other sites, and inserts no data as HTML."""

import re
from pathlib import Path

import pytest

import guardwrap.serve

PAGE = Path(guardwrap.serve.__file__).with_name("page.html").read_text()


def faults(page: str) -> list[str]:
    """Return code that could run or load something from outside the page."""
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://|<link|<img|\bsrc=|@import|url\("
    return re.findall(ways, page)


def test_it_loads_nothing_and_makes_no_html() -> None:
    assert faults(PAGE) == []


@pytest.mark.parametrize("fault", ['<script src="x.js"></script>', "a.innerHTML = b", "@import 'x'", "https://x.org"])
def test_the_check_can_fail(fault: str) -> None:
    assert faults(PAGE + fault)


def test_each_element_that_the_script_asks_for_is_there() -> None:
    asked = set(re.findall(r'\bat\("([^"]+)"\)', PAGE))
    there = set(re.findall(r'\bid="([^"]+)"', PAGE))
    assert asked <= there
    assert len(asked) > 15


def test_each_field_has_a_label() -> None:
    fields = re.findall(r"<(?:input|select|textarea)\b", PAGE)
    labels = re.findall(r"<label>.*?</label>", PAGE, flags=re.S)
    assert len(fields) == len(labels)
    assert all(re.search(r"<(?:input|select|textarea)\b", label) for label in labels)
