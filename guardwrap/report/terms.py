"""Symbols and short names of a page in words: a legend of those that it uses, and the first ones in its tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TERMS", "Term", "first_uses", "used_in"]


@dataclass(frozen=True)
class Term:
    """What a symbol means.

    Parameters
    ----------
    name
        The symbol.
    meaning
        In words that need no other symbol which is not in the legend.
    pattern
        Finds it in a text; where it is a single letter, only on pages that speak of g and g'.
    """

    name: str
    meaning: str
    pattern: str


TERMS = (
    Term(
        "a",
        "your model, with its prompt and settings: texts come as it writes them",
        r"(?<=‖)a(?=\))|(?<=log )a\b",
    ),
    Term(
        "g",
        "the target: your model's own texts that keep the constraint, each as often as the model writes it",
        r"(?<![\w'])g(?![\w'])",
    ),
    Term(
        "a'",
        "a proposal: another source of texts, such as a hint or an adapter, that keeps the constraint more often",
        r"(?<!\w)a'(?!\w)",
    ),
    Term("g'", "what you get when you keep those texts of a proposal that satisfy the constraint", r"(?<!\w)g'(?!\w)"),
    Term(
        "AR",
        "acceptance rate: the share of attempts that satisfy the constraint; a text costs 1 / AR attempts",
        r"(?<![\w'])AR(?:_a'?)?(?![\w'])",
    ),
    Term("Z", "the probability that a text of your model satisfies the constraint", r"(?<![\w'])Z(?![\w'])"),
    Term(
        "KL",
        "Kullback-Leibler divergence: 0 if two sources of texts are the same, large if they are far apart",
        r"(?<!\w)KL(?!\w)",
    ),
    Term(
        "projected KL",
        "KL of one thing only: where in a text the match of the constraint stands; it is blind to all else",
        r"projected KL(?!\w)",
    ),
    Term("nats", "the unit of KL: one nat is a factor of 2.7 in probability, on average", r"(?<!\w)nats?(?!\w)"),
    Term(
        "TVD",
        "total variation distance, from 0 to 1: the most by which the probability of any event differs",
        r"(?<!\w)TVD(?!\w)",
    ),
    Term(
        "ESS",
        "effective sample size: how many draws of the target the attempts are worth",
        r"(?<!\w)(?:ESS|effective sample size)(?!\w)",
    ),
    Term(
        "QRS",
        "quasi-rejection sampling: leaves out texts that a proposal writes too often, to come nearer to the target",
        r"(?<!\w)QRS(?!\w)",
    ),
    Term("β", "how strict QRS is: the larger, the dearer and the nearer to the target", r"β"),
    Term(
        "IMH",
        "independent Metropolis-Hastings: moves from text to text; more steps come nearer to the target",
        r"(?<!\w)IMH(?!\w)",
    ),
    Term(
        "base",
        "the name of figures of your model itself",
        r"(?<![\w'-])base(?![\w-])",
    ),
    Term(
        "Theorem 2",
        "KL(g‖a') is KL(g‖g') less the logarithm of AR: what texts cost and how far from the target they stay add up;"
        ' of "the paper": Kim et al., Guaranteed Generation from Large Language Models (ICLR 2025)',
        r"Theorem 2(?!\d)",
    ),
    Term("R-hat", "whether chains agree: near 1 if they do", r"(?<!\w)R-hat(?!\w)"),
    Term("Self-BLEU", "how alike texts are, from 0 to 100: high is alike", r"(?<!\w)Self-BLEU(?!\w)"),
)
"""In the order in which one explains the next."""

_SPEAKS_OF_G = re.compile(r"g‖|‖g|(?<!\w)g'(?!\w)|of g\b")


def used_in(text: str) -> list[Term]:
    """Return the terms that a page uses.

    Parameters
    ----------
    text
        All that its author said; a single letter counts only where the page speaks of g, for elsewhere it may be grams.
    """
    found = [term for term in TERMS if re.search(term.pattern, text)]
    if _SPEAKS_OF_G.search(text):
        return found
    return [term for term in found if len(term.name.rstrip("'")) > 1 or term.name == "β"]


def first_uses(text: str, left: dict[str, Term]) -> list[tuple[str, Term | None]]:
    """Cut a text where terms are used first.

    Parameters
    ----------
    text
        Of a table's cell.
    left
        Terms that were not used before, by name; those that are used now are taken out.

    Returns
    -------
    list
        Pieces that together are the text, and the term that one is.
    """
    spots = [(*found.span(), term) for term in left.values() if (found := re.search(term.pattern, text))]
    pieces: list[tuple[str, Term | None]] = []
    done = 0
    for begin, end, term in sorted(spots, key=lambda spot: spot[:2]):
        if begin >= done:
            pieces += [(text[done:begin], None), (text[begin:end], term)]
            done = end
            del left[term.name]
    return [piece for piece in [*pieces, (text[done:], None)] if piece[0]]
