"""Explanations of symbols and abbreviations, for a page's legend and the first uses in its tables."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A symbol or abbreviation with its meaning."""

    name: str  # the symbol
    meaning: str  # its explanation, in words and other terms of the legend
    pattern: str  # regular expression that finds it in a text. Single letters count only on pages that mention g or g'.


TERMS = (
    Term(
        "a",
        "your model's own distribution, under its prompt and settings",
        r"(?<=‖)a(?=\))|(?<=log )a\b",
    ),
    Term(
        "g",
        "the target: your model's own distribution, given the constraint",
        r"(?<![\w'])g(?![\w'])",
    ),
    Term(
        "a'",
        "a proposal: another source of texts, such as a hint or an adapter, that satisfies the constraint more often",
        r"(?<!\w)a'(?!\w)",
    ),
    Term("g'", "the proposal's distribution, given the constraint", r"(?<!\w)g'(?!\w)"),
    Term(
        "AR",
        "acceptance rate: the share of attempts that satisfy the constraint; a text takes 1 / AR attempts on average",
        r"(?<![\w'])AR(?:_a'?)?(?![\w'])",
    ),
    Term("Z", "the probability that a text of your model satisfies the constraint", r"(?<![\w'])Z(?![\w'])"),
    Term(
        "KL",
        "Kullback-Leibler divergence: 0 if two distributions are the same, larger if they are further apart",
        r"(?<!\w)KL(?!\w)",
    ),
    Term(
        "projected KL",
        "KL of one feature only: the position of the constraint's match in a text; other differences do not count",
        r"projected KL(?!\w)",
    ),
    Term("nats", "the unit of KL: one nat is an average factor of 2.7 in probability", r"(?<!\w)nats?(?!\w)"),
    Term(
        "TVD",
        "total variation distance, from 0 to 1: the largest difference in the probability of any event",
        r"(?<!\w)TVD(?!\w)",
    ),
    Term(
        "ESS",
        "effective sample size: how many draws of the target the attempts are worth",
        r"(?<!\w)(?:ESS|effective sample size)(?!\w)",
    ),
    Term(
        "Pareto k",
        "how heavy the tail of the weights is: if it is too high, the attempts so far may lack the weights that matter "
        "most, and no upper end of a distance is known",
        r"(?<!\w)Pareto k(?!\w)",
    ),
    Term(
        "QRS",
        "quasi-rejection sampling: drops texts that a proposal writes too often, to get closer to the target",
        r"(?<!\w)QRS(?!\w)",
    ),
    Term("β", "how strict QRS is: a larger β costs more and gets closer to the target", r"β"),
    Term(
        "IMH",
        "independent Metropolis-Hastings: a Markov chain over texts; more steps get closer to the target",
        r"(?<!\w)IMH(?!\w)",
    ),
    Term(
        "base",
        "your model itself, in tables of figures",
        r"(?<![\w'-])base(?![\w-])",
    ),
    Term(
        "Theorem 2",
        "KL(g‖a') is KL(g‖g') minus the logarithm of AR: the cost of texts and their distance to the target add up;"
        ' from "the paper": Kim et al., Guaranteed Generation from Large Language Models (ICLR 2025)',
        r"Theorem 2(?!\d)",
    ),
    Term("R-hat", "whether chains agree: near 1 if they do", r"(?<!\w)R-hat(?!\w)"),
    Term("Self-BLEU", "how alike texts are, from 0 to 100: higher is more alike", r"(?<!\w)Self-BLEU(?!\w)"),
)
"""In the order of the legend: a term comes after those that its meaning uses."""

_SPEAKS_OF_G = re.compile(r"g‖|‖g|(?<!\w)g'(?!\w)|of g\b")


def used_in(text: str) -> list[Term]:
    """Return the terms that a page uses.

    ``text``: the page's captions, titles and notes. Single letters count only if it mentions g in a formula; a lone
    "g" may mean grams.
    """
    found = [term for term in TERMS if re.search(term.pattern, text)]
    if _SPEAKS_OF_G.search(text):
        return found
    return [term for term in found if len(term.name.rstrip("'")) > 1 or term.name == "β"]


def first_uses(text: str, left: dict[str, Term]) -> list[tuple[str, Term | None]]:
    """Split a text at the first uses of terms."""
    spots = [(*found.span(), term) for term in left.values() if (found := re.search(term.pattern, text))]
    pieces: list[tuple[str, Term | None]] = []
    done = 0
    for begin, end, term in sorted(spots, key=lambda spot: spot[:2]):
        if begin >= done:
            pieces += [(text[done:begin], None), (text[begin:end], term)]
            done = end
            del left[term.name]
    return [piece for piece in [*pieces, (text[done:], None)] if piece[0]]
