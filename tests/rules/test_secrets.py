"""Secrets: the forms of keys and tokens, texts about them, sound verdicts, and hostile texts."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Secrets, Verdict
from guardwrap.constraints import parse
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.serve.request_models import GuardwrapFields
from guardwrap.serve.request_policy import RequestPolicy, constraints_of
from guardwrap.testing import check_constraint

# Put together here, so that no scanner takes this file for a leak.
KEYS = {
    "AWS access key": "AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub token": "ghp_" + "a1B2" * 9,
    "GitLab token": "glpat-" + "a1B2c3D4e5" * 2,
    "OpenAI key": "sk-proj-" + "a1B2" * 10 + "T3BlbkFJ" + "a1B2" * 10,
    "Anthropic key": "sk-ant-" + "api03-" + "a1B2" * 23,
    "Slack token": "xoxb-" + "123456789012-abcdefABCDEF",
    "Slack webhook": "hooks.slack.com/services/" + "T00000000/B00000000/" + "X" * 24,
    "Stripe key": "sk_live_" + "a1B2" * 6,
    "Google API key": "AIza" + "a1B2c" * 7,
    "Google OAuth secret": "GOCSPX-" + "a1B2" * 7,
    "SendGrid key": "SG." + "a" * 22 + "." + "b" * 43,
    "Hugging Face token": "hf_" + "aBcDe" * 6 + "fghi",
    "Azure storage key": "AccountKey=" + "a1B2" * 21 + "a1==",
    "Databricks token": "dapi" + "a1b2" * 8,
    "DigitalOcean token": "dop_v1_" + "a1b2" * 16,
    "Shopify token": "shpat_" + "a1b2" * 8,
    "Twilio key": "AC" + "a1b2" * 8,
    "npm token": "npm_" + "a1B2" * 9,
    "PyPI token": "pypi-AgEIcHlwaS5vcmc" + "a1B2" * 20,
    "JSON Web Token": "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0In0" + "." + "a1B2" * 10,
    "private key": "-----BEGIN RSA PRIVATE" + " KEY-----",
}


@pytest.mark.parametrize("label", KEYS)
def test_every_form_is_found_and_named(label):
    for text in (KEYS[label], f"Schlüssel={KEYS[label]}。", f'"{KEYS[label]}"', f"密钥：{KEYS[label]}"):
        assert not Secrets().accepts(text)
        fault = Secrets().fault(text)
        assert fault.startswith(f"has a {label}, '")
        assert KEYS[label] not in fault, "its beginning alone, as logs keep explanations"
    assert Secrets().verdict(f"{KEYS[label]} ") is Verdict.VIOLATED
    check_constraint(Secrets(), [f"x {KEYS[label]} y"])


@pytest.mark.parametrize("label", sorted(set(KEYS) - {"private key", "Slack webhook"}))
def test_what_is_cut_short_is_no_key(label):
    assert Secrets().accepts(KEYS[label][:12])


@pytest.mark.parametrize(
    "text",
    [
        "Set OPENAI_API_KEY to your key, which begins with sk-.",
        "Die Datei beginnt mit BEGIN PRIVATE KEY.",
        "-----BEGIN PUBLIC KEY-----",
        "d41d8cd98f00b204e9800998ecf8427e",
        "ghp_short and AKIA",
        "xAKIAIOSFODNN7EXAMPLE",
        "",
    ],
)
def test_texts_about_keys_pass(text):
    assert Secrets().accepts(text)


def test_random_strings_are_an_option():
    random, digest = "q9Zx7Lm2Vb8Kc4Tn6Rw1Yp5Js3", "d41d8cd98f00b204e9800998ecf8427e"
    for text in (random, digest):
        assert Secrets().accepts(text)
        assert Secrets(random_strings=True).fault(text).startswith("has a random string, '")
    for text in ("a" * 30, "Donaudampfschifffahrtsgesellschaft", "1" * 40, "the-quick-brown-fox-jumps-over"):
        assert Secrets(random_strings=True).accepts(text)


PIECES = st.sampled_from([*KEYS.values(), *(key[:9] for key in KEYS.values()), *"aZ9-_. \né", "PRIVATE", "-----"])


@pytest.mark.slow
@given(text=st.lists(PIECES, max_size=4).map("".join), random=st.booleans())
def test_verdicts_are_sound(text, random):
    check_constraint(Secrets(random_strings=random), [text])


def test_files_and_requests_may_use_it():
    assert parse("guardwrap: 1\nconstraint: {kind: secrets}\n").constraint == Secrets()
    (file,) = constraints_of(GuardwrapFields(constraint={"kind": "secrets"}), RequestPolicy(models=("m",)))
    assert file.constraint.digest == Secrets().digest != Secrets(random_strings=True).digest
    with pytest.raises(ConstraintError, match="random_strings must be"):
        Secrets(random_strings=1)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["a" * 30_000, "-eyJ" * 30_000, "sk-" * 30_000, "A1" * 30_000, "x." * 30_000, "-----BEGIN " * 30_000]
)
def test_hostile_texts_end(text):
    with contextlib.suppress(CheckFailed):
        assert Secrets(random_strings=True).accepts(text) in (True, False)
    assert Secrets().verdict(text) in Verdict
