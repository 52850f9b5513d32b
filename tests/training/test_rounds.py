"""The plan of rounds: their total, and the remaining ones of a resumed training."""

from hypothesis import given
from hypothesis import strategies as st

from guardwrap.training import Settings
from guardwrap.training.rounds import BASE, POLICY, continued, rounds

HINTS = ["Think of a dragon. {prompt}", "A tale of dragons: {prompt}", "{prompt} and dragons"]


@st.composite
def settings(draw):
    prompts, hints = draw(st.integers(1, 7)), HINTS[: draw(st.integers(0, 3))]
    samples = draw(st.integers(prompts * (1 + 2 * len(hints)), 5000))
    return Settings(
        constraint="x",
        prompts=[str(number) for number in range(prompts)],
        method=draw(st.sampled_from(["replay", "dpg", "sft"])),
        hints=hints,
        warm_samples=draw(st.integers(min(samples, 2 * prompts * len(hints)), samples)),
        samples=samples,
        base_share=draw(st.sampled_from([0.0, 0.05, 0.5])),
        rounds=draw(st.integers(1, 8)),
        samples_per_step=draw(st.integers(1, 6000)),
    )


def total(planned):
    return sum(count for part in planned for _, count in part.draws)


@given(settings())
def test_all_samples_are_drawn_and_none_more(told):
    planned = rounds(told)
    # The remainders, of hints and of the rest, cannot be divided equally among prompts.
    assert told.samples - 2 * len(told.prompts) < total(planned) * len(told.prompts) <= told.samples
    assert all(count > 0 for part in planned for _, count in part.draws)
    laws = {law for part in planned for law, _ in part.draws}
    assert laws <= {BASE, POLICY, *told.hints}
    if told.method == "dpg":
        steps = [part for part in planned if part.learn == "dpg"]
        assert all(part.draws[0][0] == POLICY and len(part.draws) == 1 for part in steps)
        sizes = [part.draws[0][1] for part in steps]
        assert not sizes or max(sizes) - min(sizes) <= 1


@given(settings(), st.integers(0, 12), st.integers(1, 8000))
def test_another_number_of_samples_keeps_what_has_begun(told, begun, samples):
    kept = rounds(told)[:begun]
    planned = continued(kept, told.model_copy(update={"samples": samples}))
    assert planned[: len(kept)] == kept
    prompts = len(told.prompts)
    assert total(planned) * prompts <= max(samples, total(kept) * prompts)
    assert planned == kept or total(planned) * prompts > samples - 2 * prompts
    if told.method != "sft":  # the warm start is not repeated
        assert all(law not in told.hints for part in planned[len(kept) :] for law, _ in part.draws)
