"""The prompts of a run that did not get all their texts, by the rule that rejected most of their attempts."""

from __future__ import annotations

from collections import Counter, defaultdict

from guardwrap.errors import quoted
from guardwrap.outcomes import Report

MOST = 10
"""The most rules, and the most prompts of one rule, that are listed."""


class FailedPrompts:
    """Collects the prompts that did not get all their texts, and describes them after the run."""

    def __init__(self) -> None:
        self._prompts: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self._rejected: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()

    def add(self, number: int, where: str, report: Report) -> None:
        """Add a prompt, given its number and its place in the input."""
        rule = max(report.rejections, key=report.rejections.__getitem__, default="")
        label = quoted(rule) if rule else f"no rule (ended by {report.ended})"
        self._prompts[label].append((number, f"{where} ({report.accepted} of {report.requested} texts)"))
        self._rejected[label] += report.rejections.get(rule, 0)
        self._attempts[label] += report.usage.attempts

    def lines(self) -> list[str]:
        """Return one line for each rule, the one of most prompts first; none for a single prompt.

        A rule is listed with the prompts whose attempts it rejected more of than any other rule.
        """
        if sum(map(len, self._prompts.values())) < 2:
            return []
        rules = sorted(self._prompts, key=lambda label: (-len(self._prompts[label]), label))
        listed = [self._line(label) for label in rules[:MOST]]
        return [*listed, f"  and {len(rules) - MOST} more rules"] if len(rules) > MOST else listed

    def _line(self, label: str) -> str:
        prompts = [words for _, words in sorted(self._prompts[label])]
        more = f" and {len(prompts) - MOST:,} more" if len(prompts) > MOST else ""
        rejected = f"rejected {self._rejected[label]:,} of {self._attempts[label]:,} attempts"
        return f"  {label} {rejected}: {', '.join(prompts[:MOST])}{more}"
