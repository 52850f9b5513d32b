"""What rare rules cost with a twist, and whether its texts follow the model: ten words of a story model.

    python benchmarks/rare.py bank --model PATH --bank FOLDER [--batches 200]
    python benchmarks/rare.py words --model PATH --bank FOLDER --out rare-words.jsonl
    python benchmarks/rare.py costs --model PATH --bank FOLDER --out rare-costs.jsonl
    python benchmarks/rare.py paper --model PATH --bank FOLDER --out rare-paper.jsonl
    python benchmarks/rare.py written --model PATH --bank FOLDER --out rare-written.jsonl
    python benchmarks/rare.py confirm --model PATH --bank FOLDER --words night,birds --out rare-confirmed.jsonl

``bank`` draws texts of 30 tokens from ``<s>`` at temperature 1 with ``transformers`` alone, 512 in a file. Those with a
word are exact draws of g, and their share is Z. ``words`` draws 64 texts for each word with ``Twisted()`` and
``qrs(target_tvd=0.1)`` and counts every attempt: of learning, of the pilot and of the texts. Its distances are
estimates. ``costs`` computes the attempts that a text takes for a true distance of .1 and of .05, from the log-weights
of the exact draws, for several shares of the model itself in each step. (``rare_learning.py`` varies other settings.)
``paper`` gives KL(g‖q) at some acceptance rates of QRS, by states and where the word is written, for the string of
``examples/paper/lexical.yaml``, to compare with training. ``written`` gives the attempts that a text takes where words
are written, by the exact draws, and which way a call with ``Twisted()`` takes. ``words`` and ``costs`` measure twists
by states. ``confirm`` draws texts of some words, by default the number that the bank has, and compares where the word
stands, its neighbors and the length of the texts by two-sample tests. Files and lines that exist are kept, so a run
that was stopped can be continued.
"""

import argparse
import dataclasses
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import transformers
from scipy import stats

from guardwrap import Budget, GuardedGenerator, Keyword, Prompt, Twisted, qrs
from guardwrap.calls.sessions import LocalSession
from guardwrap.calls.twisting import TwistedConstraint, Twists
from guardwrap.twists.hits import NEVER, Hits, LearnedHits, _Place, decided
from guardwrap.twists.twist import Defaults, Twist

TOKENS = 30
ROWS = 512
TEXTS = 64
MOST_EXACT = 120
DISTANCES = (0.1, 0.05)
WORDS = ("night", "birds", "river", "king", "castle", "robot", "dragon", "carrots", "trucks", "butterflies")
SETTINGS: dict[str, Any] = {
    "do_sample": True,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "max_new_tokens": TOKENS,
}
PAPER = 1000
RATES = (0.2, 0.416, 0.6, 0.8)
"""Acceptance rates at which KL(g‖q) is measured; the second is the paper's."""
SHARES = (0.0, 0.2, 0.4, 0.6)
EARLIER = Defaults(strength=0.8, model_share=0.6, attempts=384)
"""What ``costs`` learns with, as when its table was measured."""
DEFAULTS = "guardwrap.calls.twisting.defaults_for"
LEARNED = re.compile(r"learned from ([\d,]+) attempts, ([\d,]+) computed tokens")


def load(path: str) -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(path)


def draw_bank(path: str, folder: Path, batches: int) -> None:
    """Draw texts from the model, with a seed for each file."""
    model, tokenizer = load(path)
    start = torch.full((ROWS, 1), tokenizer.bos_token_id)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(batches):
        file = folder / f"{number}.npy"
        if file.exists():
            continue
        torch.manual_seed(1000 + number)
        end = tokenizer.eos_token_id
        ids = model.generate(start, attention_mask=torch.ones_like(start), pad_token_id=end, **SETTINGS)[:, 1:].numpy()
        padding = ((0, 0), (0, TOKENS - ids.shape[1]))
        np.save(file, np.pad(ids.astype(np.int32), padding, constant_values=end))


def rows_of(folder: Path) -> list[list[int]]:
    """Return the tokens of the texts of a bank."""
    return [row for file in sorted(folder.glob("*.npy")) for row in np.load(file).tolist()]


def texts_of(tokenizer: Any, rows: Sequence[list[int]]) -> list[str]:
    """Return the texts of a bank, as the wrapper returns them."""
    start = [tokenizer.bos_token_id]
    whole = tokenizer.batch_decode([start + row for row in rows], skip_special_tokens=True)
    return [text.lstrip() for text in whole]


def drawn(guarded: GuardedGenerator, count: int, seed: int, target: float, pilot: int | None = None) -> dict[str, Any]:
    """Return texts with what they cost in all, and the report's figures."""
    began = time.process_time()
    sampler = qrs(target_tvd=target, pilot=pilot)
    budget = Budget(max_attempts=None, max_computed_tokens=20_000_000)
    (outcome,) = guarded.run([""], num_return_sequences=count, sampler=sampler, budget=budget, seed=seed, **SETTINGS)
    attempts, computed = learning_of(outcome.report.notes)
    usage, evidence = outcome.report.usage, outcome.report.evidence
    return {
        "ended": outcome.report.ended,
        "texts": len(outcome.texts),
        "learning": attempts,
        "attempts": usage.attempts + usage.surplus_attempts,
        "attempts a text": round((attempts + usage.attempts + usage.surplus_attempts) / max(1, len(outcome.texts)), 1),
        "computed tokens": computed + usage.computed_tokens,
        "cpu seconds": round(time.process_time() - began, 1),
        "evidence": {name: plain(figure) for name, figure in evidence.items()},
        "drawn": list(outcome.texts),
    }


def learning_of(notes: Sequence[str]) -> tuple[int, int]:
    """Return the attempts and the computed tokens that a twist has learned from, by the notes of a report."""
    (match,) = (match for note in notes if (match := LEARNED.search(note)))
    return int(match[1].replace(",", "")), int(match[2].replace(",", ""))


def plain(figure: Any) -> Any:
    low = getattr(figure, "low", None)
    return figure if low is None else [figure.value, low, figure.high]


def has(word: str, text: str) -> bool:
    return re.search(rf"\b{word}\b", text, re.IGNORECASE) is not None


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def measure_words(path: str, bank: Sequence[str], words: Sequence[str], out: Path, seed: int) -> None:
    """Write a line for each word that has none in the file."""
    model, tokenizer = load(path)
    finished = {line["word"] for line in lines_of(out)}
    for word in words:
        if word in finished:
            continue
        share = sum(has(word, text) for text in bank) / len(bank)
        guarded = GuardedGenerator(model, Keyword(word), tokenizer=tokenizer, proposal=Twisted(), batch_size=64)
        line = {"word": word, "Z": share, "seed": seed, **drawn(guarded, TEXTS, seed, 0.1)}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(word, {name: line[name] for name in ("Z", "attempts a text", "evidence")}, flush=True)


def learned(guarded: GuardedGenerator, seed: int, shift: int = 0) -> Twist:
    """Return a wrapper's twist by states, after it has learned; ``shift`` is added to the seeds of its attempts."""
    twists: list[Twist] = []
    make, learn = Twists.twist, TwistedConstraint.learn

    def kept(self: Twists, prompt: Any, draw_of: Any) -> Twist:
        twist = make(self, prompt, draw_of)
        assert isinstance(twist, Twist)
        twists.append(twist)
        return twist

    def seeded(self: TwistedConstraint, prompts: Any, attempts: Any, *left: Any) -> Any:
        def shifted(some: Any, its: Any, count: int, its_seed: int) -> Any:
            return attempts(some, its, count, its_seed + shift)

        return learn(self, prompts, shifted, *left)

    by_states = mock.patch.object(LearnedHits, "of", return_value=None)
    with by_states, mock.patch.object(Twists, "twist", kept), mock.patch.object(TwistedConstraint, "learn", seeded):
        guarded.attempts("", 1, seed=seed, **SETTINGS)
    return twists[0]


def passing(guarded: GuardedGenerator, count: int, seed: int) -> tuple[int, int]:
    """Return how many attempts of a wrapper pass, and of how many."""
    (attempts,) = guarded.attempts("", count, seed=seed, **SETTINGS)
    return sum(attempt.satisfied for attempt in attempts), len(attempts)


@torch.no_grad()
def log_weights(model: Any, twist: Twist, rows: Sequence[Sequence[int]], start: int) -> np.ndarray[Any, Any]:
    """Return log a / a' of texts in nats, ``[texts]``."""
    weights = []
    for row in rows:
        logits = model(torch.tensor([[start, *row[:-1]]])).logits[0].double().log_softmax(-1).numpy()
        total = 0.0
        for place, (token, law) in enumerate(zip(row, logits, strict=True)):
            factors = twist.log_factors(row[:place], None, law)
            total += float(np.logaddexp.reduce(law + factors) - factors[token])
        weights.append(total)
    return np.array(weights)


def qrs_at(logs: np.ndarray[Any, Any], share: float, log_beta: float) -> tuple[float, float]:
    """Return the distance of QRS from g (TVD), and the attempts for each text, from log-weights of exact draws of g.

    With β it draws q(y) ∝ a'(y) min(1, w(y) / β), so q/g ∝ min(1/w, 1/β), and accepts Z times the mean of that under g.
    """
    kept = np.exp(np.minimum(-logs, -log_beta))
    return float(np.maximum(1 - kept / kept.mean(), 0).mean()), float(1 / (share * kept.mean()))


def kl_at(logs: np.ndarray[Any, Any], share: float, rate: float) -> float:
    """Return KL(g‖q) in nats where QRS with its distribution q accepts a rate of attempts; see ``qrs_at``."""
    low, high = float(logs.min()) - 10, float(logs.max())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if qrs_at(logs, share, middle)[1] < 1 / rate else (low, middle)
    kept = np.minimum(-logs, -high)
    return float(np.logaddexp.reduce(kept) - np.log(len(kept)) - kept.mean())


def attempts_a_text(logs: np.ndarray[Any, Any], share: float, tvd: float) -> float:
    """Return the attempts that QRS takes for a text at a distance from g."""
    low, high = float(logs.min()), float(logs.max())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if qrs_at(logs, share, middle)[0] > tvd else (low, middle)
    return qrs_at(logs, share, high)[1]


class Bank(NamedTuple):
    """A model with its tokenizer, and the tokens and the text of each of its own texts."""

    model: Any
    tokenizer: Any
    rows: Sequence[list[int]]
    texts: Sequence[str]

    @classmethod
    def read(cls, path: str, folder: Path) -> "Bank":
        """Load a model and read its texts."""
        model, tokenizer = load(path)
        rows = rows_of(folder)
        return cls(model, tokenizer, rows, texts_of(tokenizer, rows))

    def exact(self, word: str, most: int | None = MOST_EXACT) -> tuple[list[list[int]], int]:
        """Return up to ``most`` draws of g for a word, and how many there are."""
        exact = [row for row, text in zip(self.rows, self.texts, strict=True) if has(word, text)]
        return [ended(row, self.tokenizer.eos_token_id) for row in exact[:most]], len(exact)

    def guarded(self, rule: Keyword, proposal: Prompt | Twisted) -> GuardedGenerator:
        """Return a wrapper of the model."""
        return GuardedGenerator(self.model, rule, tokenizer=self.tokenizer, proposal=proposal, batch_size=64)

    def costs(self, twist: Twist, exact: Sequence[Sequence[int]], share: float) -> list[float]:
        """Return the attempts that a text takes for a TVD of .1 and of .05; ``share`` is Z."""
        logs = log_weights(self.model, twist, exact, self.tokenizer.bos_token_id)
        return [round(attempts_a_text(logs, share, tvd), 1) for tvd in DISTANCES]


def measure_costs(path: str, folder: Path, words: Sequence[str], out: Path, seed: int) -> None:
    """Write a line for each word that has none in the file: what QRS costs with several shares of the model."""
    bank = Bank.read(path, folder)
    finished = {line["word"] for line in lines_of(out)}
    for word in words:
        exact, count = bank.exact(word)
        if word in finished or not exact:
            continue
        share = count / len(bank.rows)
        with mock.patch(DEFAULTS, return_value=EARLIER):
            twist = learned(bank.guarded(Keyword(word), Twisted()), seed)
        costs = {own: bank.costs(dataclasses.replace(twist, model_share=own), exact, share) for own in SHARES}
        written(out, {"word": word, "Z": share, "exact": count, "seed": seed, "attempts at .1 and .05": costs})


def written(out: Path, line: dict[str, Any]) -> None:
    """Add a line to a file."""
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def learned_to_write(guarded: GuardedGenerator, seed: int) -> list[tuple[bool, str]]:
    """Let a wrapper learn and write its word, whatever is decided. Returns the decision with its reason, if any."""
    decisions: list[tuple[bool, str]] = []

    def written_anyway(*ways: Any) -> tuple[bool, str]:
        decisions.append(decided(*ways))
        return True, decisions[-1][1]

    with mock.patch("guardwrap.calls.twisting.decided", written_anyway):
        guarded.attempts("", 1, seed=seed, **SETTINGS)
    return decisions


def learned_of(guarded: GuardedGenerator) -> TwistedConstraint:
    """Return what a wrapper has learned."""
    session = guarded.session
    assert isinstance(session, LocalSession)
    ((twisted, _),) = session._learned.values()
    return twisted


def measure_written(
    path: str, folder: Path, words: Sequence[str], out: Path, seed: int, learning: int | None = None
) -> None:
    """Write a line for each word that has none in the file: what writing it costs, and which way a call would take."""
    bank = Bank.read(path, folder)
    finished = {line["word"] for line in lines_of(out)}
    for word in words:
        if word in finished:
            continue
        guarded = bank.guarded(Keyword(word), Twisted(attempts=learning))
        began = time.process_time()
        decisions = learned_to_write(guarded, seed)
        exact, count = bank.exact(word, None)
        twisted = learned_of(guarded)
        line = {
            "word": word,
            "seed": seed,
            "learning": twisted.spent.attempts,
            "taken": "written" if decisions and decisions[0][0] else "by states",
            "decision": twisted.decision,
            "by exact draws": costs_of(led_log_weights(guarded, exact, seed), count / len(bank.rows), seed),
            "cpu seconds": round(time.process_time() - began, 1),
        }
        written(out, line)


@dataclasses.dataclass(eq=False)
class Led(Hits):
    """The twist of one exact draw of g: its path begins as the draw does up to the word, which is written there.

    The rest of the path is drawn as always, so that path and choice together follow g, and the weight is theirs.
    """

    draw: Sequence[int] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        path: list[tuple[tuple[int, ...], bool]] = [((0,), True)]
        for token in self.draw:
            if not self._missing((0,), path[-1][0]):
                break
            path.append(path[-1] if token in self.end_ids else self._step(*path[-1], token))
        ids, (states, _) = self.draw[: len(path) - 1], path[-1]
        places = [
            (before, spelling)
            for before, (at, begins) in enumerate(path)
            for _, spelling in self._first_here(at, begins, (0,))
            if self._writes(_Place(before, 0, spelling, 0.0, 0.0, 0.0), ids, ids[-1] in self.end_ids, states)
        ]
        # where the draw has the word for the first time, and its spelling
        self.place, self.spelling = places[0] if places else (len(ids), -1)

    def _mixed(self, path: Any, token_ids: Sequence[int], tokens: Any, log_probabilities: Any, _: float) -> Any:
        log_weight = -float(np.logaddexp.reduce(path.log_parts))
        factors = super()._mixed(path, token_ids, tokens, log_probabilities, log_weight)
        if len(token_ids) < self.place:
            columns = np.arange(len(factors)) if tokens is None else tokens
            return np.where(columns == self.draw[len(token_ids)], 0.0, NEVER)
        return factors

    def turned(self, attempt: Any) -> bool:
        path = self._path(attempt.token_ids)
        if path.rest is None:
            parts = path.log_parts + path.mixture.tilts[:, attempt.token_ids[-1]] - path.log_norms
            log_weight = -float(np.logaddexp.reduce(parts))
            attempt.log_probability += attempt.log_weight - log_weight
            attempt.log_weight = log_weight
        return super().turned(attempt)

    def _turn(self, path: Any, attempt: Any) -> bool:
        log_sum = float(np.logaddexp.reduce([place.log_term for place in path.places]))
        (its,) = (each for each in path.places if (each.spelling, each.before) == (self.spelling, self.place))
        path.places = [its._replace(log_term=log_sum)]
        return super()._turn(path, attempt)


def led_log_weights(guarded: GuardedGenerator, exact: Sequence[Sequence[int]], seed: int) -> np.ndarray[Any, Any]:
    """Return the log-weights with which a learned wrapper draws texts of g, given paths as they then are, ``[texts]``.

    Their distribution is that of weights under g, so that costs and distances by them miss nothing of g.
    """
    make, draws = Twists.twist, iter(exact)

    def led(self: Twists, prompt: Any, draw_of: Any) -> Led:
        twist = make(self, prompt, draw_of)
        fields = {each.name: getattr(twist, each.name) for each in dataclasses.fields(Hits) if each.init}
        return Led(**fields, draw=next(draws))

    with mock.patch.object(Twists, "twist", led):
        drawn = guarded.attempts([""] * len(exact), 1, seed=seed, **SETTINGS)
    return np.array([attempts[0].log_weight for attempts in drawn], dtype=np.float64)


def costs_of(logs: np.ndarray[Any, Any], share: float, seed: int) -> dict[str, Any]:
    """Return the attempts that a text takes for a TVD of .1 and of .05, and KL(g‖q) at some rates, by exact draws.

    The intervals are of the draws. Where words are written, KL is that of paths and choices, and bounds that of texts.
    """
    chance = np.random.default_rng(seed)
    again = [chance.choice(logs, len(logs)) for _ in range(200)]

    def interval(values: Sequence[float]) -> list[float]:
        return [round(float(end), 2) for end in np.quantile(values, (0.025, 0.975))]

    return {
        "Z": share,
        "draws": len(logs),
        "KL at acceptance rates": {
            rate: [round(kl_at(logs, share, rate), 2), *interval([kl_at(some, share, rate) for some in again])]
            for rate in RATES
        },
        "attempts at .1 and .05": [round(attempts_a_text(logs, share, tvd), 1) for tvd in DISTANCES],
        "interval at .1": interval([attempts_a_text(some, share, DISTANCES[0]) for some in again]),
        "largest weights": [round(float(each), 1) for each in np.sort(np.exp(logs) / share)[-5:]],
    }


def measure_paper(path: str, folder: Path, out: Path, seed: int) -> None:
    """Write a line for each way that has none in the file: what twists have learned from 1 000 attempts at most."""
    bank = Bank.read(path, folder)
    every = [row for row, text in zip(bank.rows, bank.texts, strict=True) if "dragon" in text]
    exact, share = [ended(row, bank.tokenizer.eos_token_id) for row in every], len(every) / len(bank.rows)
    rule = Keyword("dragon", case_sensitive=True, whole_words=False)
    finished = {line["way"] for line in lines_of(out)}
    if "by states" not in finished:
        guarded = bank.guarded(rule, Twisted())
        twist = learned(guarded, seed)
        logs = log_weights(bank.model, twist, exact, bank.tokenizer.bos_token_id)
        written(
            out, {"way": "by states", "learning": learned_of(guarded).spent.attempts, **costs_of(logs, share, seed)}
        )
    if "written" not in finished:
        # Rounds with the word written are half as many again.
        guarded = bank.guarded(rule, Twisted(attempts=PAPER * 2 // 3))
        learned_to_write(guarded, seed)
        costs = costs_of(led_log_weights(guarded, exact, seed), share, seed)
        written(out, {"way": "written", "learning": learned_of(guarded).spent.attempts, **costs})


def ended(row: Sequence[int], end: int) -> list[int]:
    """Return the tokens up to the first end."""
    return list(row[: row.index(end) + 1]) if end in row else list(row)


def summary(lines: Sequence[dict[str, Any]]) -> str:
    """Return the table of the words, and its median."""
    rows = ["word, Z, rejection, twist, acceptance, TVD"]
    for line in lines:
        evidence, share = line["evidence"], line["Z"]
        rejection = round(1 / share) if share else "?"
        tvd = evidence.get("tvd")
        rows.append(f"{line['word']}, {share:.5f}, {rejection}, {line['attempts a text']}, {tvd}")
    rows.append(f"median attempts a text: {median(line['attempts a text'] for line in lines):.1f}")
    return "\n".join(rows)


def features(word: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return of each text where the word stands, what is beside it, and how long the text is."""
    split = [re.findall(r"[\w']+|[^\w\s]", text.lower()) for text in texts]
    places = [words.index(word) for words in split]
    return {
        "place": places,
        "length": [len(words) for words in split],
        "word before": [words[place - 1] if place else "" for words, place in zip(split, places, strict=True)],
        "word after": [" ".join(words[place + 1 : place + 2]) for words, place in zip(split, places, strict=True)],
    }


def compared(one: Sequence[Any], other: Sequence[Any]) -> dict[str, float]:
    """Return the distance of two samples of a feature, and the p-value of the test that they have one distribution.

    Numbers: the two-sample Kolmogorov-Smirnov test, with its statistic. Words: the chi-squared test on those with at
    least ten in both samples together, the others as one, with half the sum of the differences of shares.
    """
    if isinstance(one[0], int):
        test = stats.ks_2samp(one, other)
        return {"distance": round(float(test.statistic), 3), "p": round(float(test.pvalue), 4)}
    counts = Counter(one), Counter(other)
    common = [word for word, count in (counts[0] + counts[1]).items() if count >= 10]
    table = [[count[word] for word in common] for count in counts]
    rest = [count.total() - sum(row) for count, row in zip(counts, table, strict=True)]
    if any(rest):
        table = [[*row, left] for row, left in zip(table, rest, strict=True)]
    shares = [np.array(row) / sum(row) for row in table]
    distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    return {"distance": round(distance, 3), "p": round(float(stats.chi2_contingency(table).pvalue), 4)}


def confirm(
    path: str, bank: Sequence[str], words: Sequence[str], out: Path, seed: int, *, texts: int | None, pilot: int | None
) -> None:
    """Compare exact draws of words with draws by a twist and QRS."""
    model, tokenizer = load(path)
    finished = {(line["word"], line.get("pilot")) for line in lines_of(out)}
    for word in words:
        if (word, pilot) in finished:
            continue
        exact = [text for text in bank if has(word, text)]
        guarded = GuardedGenerator(model, Keyword(word), tokenizer=tokenizer, proposal=Twisted(), batch_size=64)
        line = drawn(guarded, texts or len(exact), seed, 0.1, pilot)
        of_exact, of_twisted = features(word, exact), features(word, line.pop("drawn"))
        # What two halves of the exact draws differ by is the size of noise.
        halves = features(word, exact[::2]), features(word, exact[1::2])
        line |= {
            "word": word,
            "exact": len(exact),
            "pilot": pilot,
            "seed": seed,
            "tests": {name: compared(of_exact[name], of_twisted[name]) for name in of_exact},
            "halves": {name: compared(halves[0][name], halves[1][name]) for name in of_exact},
        }
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def parser_of(description: str | None, words: Sequence[str], seed: int) -> argparse.ArgumentParser:
    """Return the options that the benchmarks of this model have in common, and keep to one thread in silence."""
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the story model")
    parser.add_argument("--bank", type=Path, required=True, help="folder of the model's own texts")
    parser.add_argument("--words", default=",".join(words))
    parser.add_argument("--seed", type=int, default=seed)
    return parser


def main() -> None:
    parser = parser_of(__doc__, WORDS, 3)
    parser.add_argument("what", choices=["bank", "words", "costs", "paper", "written", "confirm", "summary"])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("rare.jsonl"))
    parser.add_argument("--texts", type=int, help="texts that confirm draws")
    parser.add_argument("--learning", type=int, help="attempts by states that written learns from, instead of 768")
    parser.add_argument("--pilot", type=int, help="attempts of the pilot of confirm that pass")
    options = parser.parse_args()
    if options.what == "bank":
        draw_bank(options.model, options.bank, options.batches)
        return
    if options.what == "summary":
        print(summary(lines_of(options.out)))
        return
    if options.what == "costs":
        measure_costs(options.model, options.bank, options.words.split(","), options.out, options.seed)
        return
    if options.what == "written":
        words = options.words.split(",")
        measure_written(options.model, options.bank, words, options.out, options.seed, options.learning)
        return
    if options.what == "paper":
        measure_paper(options.model, options.bank, options.out, options.seed)
        return
    bank = texts_of(load(options.model)[1], rows_of(options.bank))
    words = options.words.split(",")
    if options.what == "words":
        measure_words(options.model, bank, words, options.out, options.seed)
        return
    confirm(options.model, bank, words, options.out, options.seed, texts=options.texts, pilot=options.pilot)


if __name__ == "__main__":
    main()
