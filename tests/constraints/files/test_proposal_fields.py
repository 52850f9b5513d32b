"""The fields ``proposal`` and ``adapter`` of constraint files."""

import jsonschema
import pytest
import yaml

from guardwrap.constraints import JSONSchema, Keyword, Length, Regex, dump, load, parse
from guardwrap.constraints.base import All, AnyOf, Not
from guardwrap.constraints.files.constraint_file import ConstraintFile, as_constraint_file, json_schema
from guardwrap.constraints.files.file_fields import demands, trained_for_another
from guardwrap.errors import ConstraintError, SpecError, UsageError
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, merge_proposals

HEAD = "guardwrap: 1\nconstraint: {kind: keyword, words: tea}\n"
TOLD = Prompt("Mention tea. {prompt}")
READ = [
    ("proposal: {prompt: 'Mention tea. {prompt}'}", TOLD, None),
    ("proposal: masked", Masked(), None),
    ("proposal: {masked: {}}", Masked(), None),
    ("proposal: {masked: {unseen: 0.25}}", Masked(unseen=0.25), None),
    ("proposal: {masked: {proposal: {prompt: 'Mention tea. {prompt}'}, unseen: 0}}", Masked(TOLD, 0), None),
    ("proposal: twisted", Twisted(), None),
    ("proposal: {twisted: {}}", Twisted(), None),
    ("proposal: {twisted: {strength: 0.7}}", Twisted(strength=0.7), None),
    ("proposal: {twisted: {strength: 1, proposal: {prompt: 'Mention tea. {prompt}'}}}", Twisted(TOLD, 1), None),
    ("adapter: owner/tea", None, Adapter("owner/tea")),
    ("adapter: catalogue:dragon", None, Adapter("catalogue:dragon")),
    (
        "adapter: {source: owner/tea, allow_mismatch: true, revision: v2}",
        None,
        Adapter("owner/tea", allow_mismatch=True, revision="v2"),
    ),
    ("proposal: masked\nadapter: owner/tea", Masked(), Adapter("owner/tea")),
    ("proposal: twisted\nadapter: owner/tea", Twisted(), Adapter("owner/tea")),
]


@pytest.mark.parametrize(("spelt", "proposal", "adapter"), READ)
def test_there_and_back(spelt, proposal, adapter):
    file = parse(HEAD + spelt)
    assert (file.proposal, file.adapter) == (proposal, adapter)
    jsonschema.validate(yaml.safe_load(dump(file)), json_schema())
    again = parse(dump(file))
    assert (again.proposal, again.adapter) == (proposal, adapter)
    assert (parse(HEAD).proposal, parse(HEAD).adapter) == (None, None)
    assert file.constraint.digest == parse(HEAD).constraint.digest  # the digest covers only the constraint


def test_the_schema_knows_the_options_of_a_twist():
    data = yaml.safe_load(HEAD + "proposal: {twisted: {strength: 0.7, proposal: {prompt: '{prompt}'}}}")
    jsonschema.validate(data, json_schema())
    data["proposal"]["twisted"]["unseen"] = 0.1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json_schema())


@pytest.mark.parametrize(
    ("spelt", "says"),
    [
        ("proposal: maskd", "proposal: 'maskd' is not one of masked, twisted (did you mean 'masked'?)"),
        ("proposal: {promt: 'a {prompt}'}", "proposal.promt: unknown field 'promt' (did you mean 'prompt'?)"),
        ("proposal: {prompt: Mention tea.}", "proposal.prompt: Prompt('Mention tea.') needs {prompt}"),
        ("proposal: {masked: {unsen: 0.1}}", "proposal.masked.unsen: unknown field 'unsen' (did you mean 'unseen'?)"),
        ("proposal: {masked: {unseen: 1}}", "proposal.masked: Masked(unseen=1.0): give a share of at least 0"),
        ("proposal: {twisted: {strenght: 1}}", "unknown field 'strenght' (did you mean 'strength'?)"),
        ("proposal: {twisted: {strength: 2}}", "proposal.twisted: Twisted(strength=2.0): give a power above 0"),
        ("proposal: {twisted: {learned: a, attempts: 99}}", "with a file nothing is learned; leave one of them out"),
        ("proposal: {twisted: {proposal: {masked: {}}}}", "proposal.twisted.proposal"),
        ("proposal: {}", "proposal: give prompt, masked or twisted"),
        ("proposal: {prompt: '{prompt}', masked: {}}", "proposal: give prompt, masked or twisted"),
        ("proposal: {masked: {}, twisted: {}}", "proposal: give prompt, masked or twisted"),
        ("adapter: catalogue:dragn", "adapter: unknown adapter 'dragn' (did you mean 'dragon'?)"),
        ("adapter: ./nowhere", "there is no folder"),
        ("adapter: 3", "adapter"),
        ("adapter: {sorce: a/b}", "adapter.sorce: unknown field 'sorce' (did you mean 'source'?)"),
        (
            "proposal: {prompt: '{prompt}'}\nadapter: owner/tea",
            "adapter: attempts come from a proposal or from an adapter, not both",
        ),
    ],
)
def test_what_is_wrong_has_its_line(spelt, says):
    with pytest.raises(SpecError) as caught:
        parse(HEAD + spelt, path="rules.yaml")
    line = 4 if "\n" in spelt else 3
    assert str(caught.value).startswith(f"rules.yaml:{line}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_adapter_is_looked_for_beside_the_file(tmp_path, monkeypatch):
    (tmp_path / "rules" / "adapters" / "tea").mkdir(parents=True)
    (tmp_path / "rules" / "a.yaml").write_text(HEAD + "adapter: adapters/tea\n")
    monkeypatch.chdir(tmp_path)
    assert load("rules/a.yaml").adapter == Adapter("rules/adapters/tea")
    (tmp_path / "rules" / "a.yaml").write_text(HEAD + "adapter: ./adapters/te\n")
    with pytest.raises(SpecError, match="did you mean 'tea'"):
        load("rules/a.yaml")
    (tmp_path / "rules" / "a.yaml").write_text(HEAD + "adapter: ./a.yaml\n")
    with pytest.raises(SpecError, match="is a file; give an adapter's folder"):
        load("rules/a.yaml")


def test_the_first_of_several_files_counts():
    files = [ConstraintFile(Regex("a")), parse(HEAD + "proposal: masked"), parse(HEAD + "adapter: owner/tea")]
    both = as_constraint_file([*files, parse(HEAD + "adapter: owner/coffee")])
    assert (both.proposal, both.adapter) == (Masked(), Adapter("owner/tea"))
    told = ConstraintFile(Keyword("b"), proposal=TOLD)
    with pytest.raises(UsageError, match="not both"):
        as_constraint_file([told, files[2]])


def test_what_python_alone_can_say_is_not_dumped():
    for proposal in (Prompt(str), Masked(Prompt(str)), Masked("owner/model"), Twisted("owner/model")):
        with pytest.raises(ConstraintError, match="can only hold a prompt, a mask or a twist"):
            dump(ConstraintFile(Regex("a"), proposal=proposal))


TEA = Adapter("owner/tea")


@pytest.mark.parametrize(
    ("near", "far", "found"),
    [
        ((None, None), (TOLD, None), (TOLD, None)),
        ((None, None), (Masked(), TEA), (Masked(), TEA)),
        ((Masked(), None), (None, TEA), (Masked(), TEA)),
        ((None, TEA), (Masked(), None), (Masked(), TEA)),
        ((None, TEA), (Masked(TOLD, 0.5), None), (Masked(unseen=0.5), TEA)),
        ((None, TEA), (Twisted(TOLD, 0.5), None), (Twisted(strength=0.5), TEA)),
        ((None, TEA), (TOLD, None), (None, TEA)),
        ((TOLD, None), (None, TEA), (TOLD, None)),
        ((TOLD, None), (Masked(), Adapter("b/c")), (TOLD, None)),
        ((False, None), (TOLD, None), (False, None)),
        ((None, False), (Masked(), TEA), (Masked(), False)),
        ((False, TEA), (TOLD, None), (False, TEA)),
    ],
)
def test_what_is_nearer_wins(near, far, found):
    assert merge_proposals(near, far) == found


def test_one_place_says_one_of_both():
    with pytest.raises(UsageError, match="not both"):
        merge_proposals((TOLD, TEA), (None, None))


MENTIONS, SHORT, CALM = Keyword("tea"), Length(max=9), ~Regex("!")


@pytest.mark.parametrize(
    ("constraint", "card", "holds"),
    [
        (MENTIONS & SHORT, MENTIONS, True),
        (SHORT & CALM & MENTIONS, MENTIONS, True),
        (MENTIONS & SHORT & CALM, MENTIONS & SHORT, True),  # the list in a file, and one more constraint
        (CALM & (MENTIONS & SHORT), MENTIONS & SHORT, True),
        (All((All((MENTIONS, SHORT), name="ours"), CALM)), MENTIONS & SHORT, True),
        (All((All((MENTIONS, SHORT), name="ours"), CALM)), MENTIONS, True),
        (All((All((MENTIONS, SHORT), name="ours"), CALM)), All((MENTIONS, SHORT), name="another name"), True),
        (JSONSchema({"type": "object"}) & JSONSchema({"required": ["a"]}), JSONSchema({"type": "object"}), True),
        (MENTIONS, MENTIONS & SHORT, False),  # weaker
        (MENTIONS & CALM, MENTIONS & SHORT, False),
        (MENTIONS | SHORT, MENTIONS, False),
        (Not(MENTIONS & SHORT), MENTIONS, False),
        (AnyOf((MENTIONS & SHORT, CALM)), MENTIONS, False),
        (SHORT & CALM, MENTIONS, False),
    ],
)
def test_a_stricter_rule_demands_what_its_part_does(constraint, card, holds):
    assert demands(constraint, card.digest) is holds
    assert (trained_for_another(Adapter("x"), "x", card.digest, card.title, constraint) is None) is holds


@pytest.mark.slow
def test_a_rule_of_very_many_parts_is_not_searched_for_ever():
    many = All(tuple(Keyword(f"w{i}") for i in range(2_000)))
    assert demands(many, Keyword("w1999").digest)
    assert not demands(many, MENTIONS.digest)


def test_another_constraint_is_described():
    said = trained_for_another(Adapter("x"), "x", MENTIONS.digest, MENTIONS.title, SHORT)
    assert said == f"""the adapter 'x' was trained for another constraint, "{MENTIONS.title}", than {SHORT.title}"""
    hostile = trained_for_another(Adapter("x"), "x", MENTIONS.digest, "a\n\x1b[31m" + "b" * 9_000, SHORT)
    assert said is not None
    assert hostile is not None
    assert len(hostile) < 400
    assert hostile.isprintable()
    # Constraints without a description, or with the same one, are distinguished by their digests.
    for description in ("", SHORT.title):
        alike = trained_for_another(Adapter("x"), "x", MENTIONS.digest, description, SHORT)
        assert alike is not None
        assert MENTIONS.digest[:12] in alike
        assert SHORT.digest[:12] in alike
