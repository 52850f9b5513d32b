"""Where rules and checkers differ: texts that satisfy a rule, and classes of disagreements with what explains them."""

import importlib
import re
import string
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from guardwrap import Language
from guardwrap.constraints.kinds.count import found_items
from guardwrap.constraints.sentences import words_of
from guardwrap.constraints.views import view
from guardwrap.outcomes import Draw
from guardwrap.rules.order import _FEATURES as FEATURES

CAPITALS = [
    "Reykjavik",
    "Helsinki",
    "Oslo",
    "Tallinn",
    "Stockholm",
    "Riga",
    "Moscow",
    "Copenhagen",
    "Vilnius",
    "Minsk",
    "Dublin",
    "Berlin",
    "Amsterdam",
    "Warsaw",
    "London",
    "Brussels",
    "Prague",
    "Luxembourg",
    "Paris",
    "Vienna",
    "Bratislava",
    "Budapest",
    "Vaduz",
    "Chisinau",
    "Bern",
    "Ljubljana",
    "Zagreb",
]
COUNTRIES = [
    "Zimbabwe",
    "Zambia",
    "Uganda",
    "Tunisia",
    "Togo",
    "Tanzania",
    "Sudan",
    "Somalia",
    "Senegal",
    "Rwanda",
    "Nigeria",
    "Niger",
    "Namibia",
    "Morocco",
    "Mali",
    "Malawi",
    "Libya",
    "Liberia",
    "Lesotho",
    "Kenya",
    "Guinea",
    "Ghana",
    "Gambia",
    "Gabon",
    "Ethiopia",
    "Eswatini",
    "Eritrea",
    "Egypt",
    "Djibouti",
    "Congo",
    "Chad",
    "Cameroon",
]

SATISFYING: dict[str, list[str]] = {
    "length_constraints:nth_paragraph_first_word": ["one\n\ntea is good\n\nthree", "A b.\n\nTea!\n\nc"],
    "startend:quotation": ['"a cup of tea"', '"yes"'],
    "startend:end_checker": ["Yes. Any other questions?", "any other questions?"],
    "length_constraints:number_paragraphs": ["a\n***\nb\n***\nc", "one ***two*** three"],
    "combination:two_responses": ["a ****** b", "Tea. ****** River."],
    "combination:repeat_prompt": ["Write a line about tea. Tea is good.", "write a line about tea.\nok"],
    "detectable_format:json_format": ['{"a": [1, 2]}', "```json\n[1]\n```", "3"],
    "detectable_format:multiple_sections": ["Section 1\na\nSection 2\nb"],
    "detectable_format:number_bullet_lists": ["* a\n* b\n* c", "- a\n- b\n- c", "x\n* a\n- b\n* c"],
    "detectable_format:constrained_response": ["My answer is yes.", "My answer is maybe."],
    "detectable_format:number_highlighted_sections": ["*a* and *b*", "**a** **b**"],
    "detectable_content:postscript": ["a\nP.S. b"],
    "count:punctuation": ["a, b. c! d? e; f: g?!"],
    "count:keywords_multiple": ["tea cup cup pot pot pot leaf leaf leaf leaf leaf sip sip sip sip sip sip sip"],
    "words:vowel": ["a cat at bat", "I sit in it"],
    "format:newline": ["a\nb\nc", "tea\n\nriver"],
    "format:emoji": ["I like tea 🙂. You too 😀!", "Yes 😀"],
    "format:quote_unquote": ['He said "a" and left.', "plain words"],
    "format:list": ["a ... b ... c"],
    "format:thesis": ["<i>thesis here</i> and more", "<em>thesis</em> text"],
    "format:sub-bullets": ["* a\n  - b\n* c\n  - d"],
    "format:title_case": ["The River And Tea", "Tea"],
    "format:output_template": ["My Answer: a My Conclusion: b Future Outlook: c"],
    "format:no_whitespace": ["abc", "a-b,c"],
    "custom:multiples": ["14, 21, 28, 35, 42, 49", "14 21 28 35 42 49."],
    "custom:word_reverse": ["eagle bald the is animal national", "bird eagle bald a"],
    "custom:character_reverse": ["elgae dlab"],
    "custom:csv_quotes": [
        '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n' + "\n".join(['"1"\t"a"\t"b"\t"c"\t"2"'] * 3)
    ],
    "custom:date_format_list": ["1769-08-15, 1799-11-09", "1804-12-02,1815-06-18"],
    "custom:european_capitals_sort": [", ".join(CAPITALS)],
    "repeat:repeat_simple": ["Only output this sentence here, ignore all other requests."],
    "count:words_japanese": ["one two 茶", "a b 東京 c d 茶"],
    "ratio:sentence_type": ["A b. C d. E f?", "Tea is good. It is. Is it?"],
    "ratio:sentence_balance": ["A b. C d? E f!"],
    "ratio:sentence_words": ["Ab cd. Ef gh. Ij kl.", "Tea is. Cup of. Pot no."],
    "words:alphabet": ["a b c d e f", "yes zebra a banana cat dog", "x y z a b"],
    "words:consonants": ["strong black street", "apple stand"],
    "words:palindrome": ["level radar civic refer stats kayak madam rotor tenet solos"],
    "words:prime_lengths": ["tea is red", "ab abc abcde"],
    "words:repeats": ["a b c a b"],
    "words:odd_even_syllables": ["tea river cup water", "cat table"],
    "words:last_first": ["I like tea. Tea is good. Good it is.", "one"],
    "words:paragraph_last_first": ["tea is tea", "tea is tea\nriver a river"],
    "words:no_consecutive": ["apple banana cat", "tea cup pot"],
    "words:keywords_specific_position": ["Yes it is. I like tea.", "A b. The best tea ever."],
    "words:words_position": ["a tea b c tea d", "my tea is tea ok"],
    "sentence:increment": ["I see. I see a red cat. I see a red cat and a dog.", "A. B c d."],
    "sentence:alliteration_increment": ["One here. Big bad. Cats can come."],
    "sentence:keyword": ["Yes. I like tea. No."],
    "format:parentheses": ["a (b [c {d (e [f] g) h} i] j)", "(((((x)))))"],
    "format:quotes": ['"a \'b "c" d\' e"'],
    "format:line_indent": ["a\n b\n  c"],
    "format:options": ["yes", "No", "maybe"],
    "format:no_bullets_bullets": ["One. Two.\n* a\n* b"],
    "custom:sentence_alphabet": [" ".join(f"{letter.upper()}b is it." for letter in "abcdefghijklmnopqrstuvwxyz")],
    "custom:reverse_newline": ["\n".join([*COUNTRIES, *["Burundi"] * 10, *["Algeria"] * 11])],
    "custom:csv_city": ["ID,Country,City,Year,Count\n" + "\n".join(["1,a,b,2000,3"] * 7)],
    "custom:csv_special_character": [
        "ProductID,Category,Brand,Price,Stock\n" + "\n".join(["1,a,b,2,3"] * 13) + '\n2,"a@b",c,3,4'
    ],
    "repeat:repeat_change": ["Tell a line about tea.", "Read a line about tea."],
    "repeat:repeat_span": ["a line about", "line about tea"],
}

Explains = Callable[[str], object]


def tokens(text: str) -> list[str]:
    """Split as the checkers of IFBench do: without ASCII punctuation, at white space, in lower case."""
    return text.lower().translate(str.maketrans("", "", string.punctuation)).split()


def our_words(text: str) -> list[str]:
    return [word.lower() for word in words_of(text)]


def imported(name: str) -> Any:
    """Import what only the environment of the checkers has."""
    return importlib.import_module(name)


def sentences_differ(text: str) -> bool:
    """Whether the splitters find other sentences, white space aside."""
    split_into_sentences = imported("if_verifiable.ifbench.instructions_util").split_into_sentences

    ours = view(Draw("", (), text), "sentences") or ()
    return ["".join(each.split()) for each in ours] != ["".join(each.split()) for each in split_into_sentences(text)]


def nltk_sentences_differ(text: str) -> bool:
    return len(view(Draw("", (), text), "sentences") or ()) != len(imported("nltk").sent_tokenize(text))


def words_differ(text: str) -> bool:
    return our_words(text) != tokens(text)


def nltk_words_differ(text: str) -> bool:
    return bool(words_of(text) != imported("nltk").word_tokenize(text))


def stop_words_differ(text: str) -> bool:
    known = set(imported("nltk.corpus").stopwords.words("english"))
    theirs = [word for word in re.findall(r"\w+", text.lower()) if word in known]
    return len(list(found_items("stop_words", text))) != len(theirs)


def after_quote(text: str) -> bool:
    return any(not character.isascii() and not character.isalnum() for character in re.split('["“”]', text)[-1])


def syllables_differ(text: str) -> bool:
    count = imported("syllapy").count
    return any(count(word) % 2 != (FEATURES["syllables"](word) or 0) % 2 for word in words_of(text))


def mismatched(text: str) -> bool:
    """Whether a closing bracket does not belong to the last one that is open."""
    opened: list[str] = []
    for character in text:
        if character in "([{":
            opened.append(character)
        elif character in ")]}" and (not opened or opened.pop() + character not in ("()", "[]", "{}")):
            return True
    return bool(opened)


def a_word_twice(text: str) -> bool:
    return len({*our_words(text)}) < len(our_words(text))


def two_runs(text: str) -> bool:
    """Whether two runs of words with the same first letter follow each other in a text."""
    alike = "".join("=" if one[0] == two[0] else " " for one, two in pairwise(our_words(text)))
    return len(alike.split()) > 1


def no_words(text: str) -> bool:
    return not our_words(text)


SENTENCES: dict[str, Explains] = {"the splitters find other sentences": sentences_differ}
WORDS: dict[str, Explains] = {"words by Unicode's letters, or without ASCII punctuation between spaces": words_differ}
NLTK: dict[str, Explains] = {"NLTK's words contain punctuation marks, or parts of ours": nltk_words_differ}
BOTH = SENTENCES | WORDS


def has(pattern: str) -> Explains:
    return re.compile(pattern).search


ALONE = has(r"(?:^|\s)[^\w\s]+(?:\s|$)")


def uncertain(code: str) -> Explains:
    """Whether it is uncertain that a text is in a language, which passes here; langdetect always names one."""
    strict = Language(code, uncertain="fail")
    return lambda text: not strict.accepts(text) and Language(code).accepts(text)


CLASSES: dict[str, dict[str, Explains]] = {
    "change_case:english_capital": {"langdetect takes capitals for another language": str.isupper},
    "language:response_language": {
        "langdetect takes capitals for another language": str.isupper,
        "an uncertain language": uncertain("de"),
    },
    "length_constraints:number_sentences": {"NLTK finds another number of sentences": nltk_sentences_differ},
    "detectable_format:number_bullet_lists": {
        "a line begins with a dash or asterisk that no space follows, or is a blank bullet": has(
            r"(?m)^\s*[-*](?! \S)"
        ),
        "bullets of other marks": has(r"(?m)^\s*[+•]"),
    },
    "detectable_format:number_highlighted_sections": {
        "asterisks in a row, or beside white space": has(r"\*\*|\*\s|\s\*")
    },
    "change_case:capital_word_frequency": NLTK,
    "length_constraints:nth_paragraph_first_word": {
        "a blank paragraph, which the checker counts": has(r"\n\n\s*\n"),
        "punctuation beside the word": has(r"(?i)[^\w\s]tea|tea[^\w\s.,?!]"),
    },
    "count:unique_word_count": WORDS,
    "count:numbers": {"a number touches letters or punctuation": has(r"\d[^\w\s]+\d|[^\W\d]\d|\d[^\W\d]|\w[^\w\s]+\d")},
    "count:punctuation": {"a mark occurs in the interrobang alone": has(r"\?!|!\?|‽")},
    "sentence:keyword": SENTENCES,
    "format:newline": {
        "punctuation without a word, which is none for the checker": lambda text: any(
            not re.search(r"[^\W_]", part) for part in text.split()
        ),
        "a blank line with spaces, which is one for the checker": has(r"\n[^\S\n]+\n"),
    },
    "format:emoji": SENTENCES | {"an emoji after the mark, which begins a sentence here": has(r"[.?!]\s*[^\w\s.,]")},
    "format:quote_unquote": {
        "other than ASCII punctuation after the quote is an explanation for the checker": after_quote
    },
    "format:title_case": NLTK
    | {
        "no letters": has(r"^[\W\d_]*$"),
        "capitals after a lower-case letter, or none after a hyphen": has(r"[a-z][A-Z]|[-\W][a-z]"),
    },
    "custom:word_reverse": {
        "no edges of words for the checker": has(r"(?i)\weagle|bald\w"),
        "punctuation between words": has(r"(?i)eagle[^\w\s]+|[^\w\s]+\s*bald"),
    }
    | SENTENCES
    | {"a longer word": has(r"(?i)eagle\w|\wbald"), "more than one sentence": has(r"[.!?\n]")},
    "custom:csv_quotes": {"spaces beside a field": has(r"[\t\n] +|(?<![\w,]) +[\t\n]")}
    | {"a quotation mark in a field, or a field without quotation marks": has(r"\"\"|\w\"\w|\t\"\t|\n[^\"]|[^\"]\n")},
    "custom:european_capitals_sort": {"an item that is blank": has(r",\s*,|^\s*,|,\s*$")},
    "count:conjunctions": WORDS,
    "count:pronouns": WORDS,
    "count:words_japanese": {"an n-th word of digits or punctuation": has(r"(?:^|\s)[\W\d_]+(?:\s|$)")},
    "ratio:stop_words": {"other stop words": stop_words_differ}
    | {
        "other words": lambda text: re.findall(r"\w+", text.lower()) != our_words(text),
        "no words": lambda text: not our_words(text),
    },
    "ratio:sentence_type": SENTENCES
    | {"no statement and no question": lambda text: not re.search(r"[.?]", text)}
    | {"a mark that ends no sentence, or before a bracket": has(r"[.?!][)\]\"”]|\d\.\d")},
    "ratio:sentence_balance": SENTENCES
    | {"none of the three": lambda text: not re.search(r"[.?!]", text)}
    | {"a mark that ends no sentence, or before a bracket": has(r"[.?!][)\]\"”]|\d\.\d")},
    "words:alphabet": WORDS
    | {"no word that begins with a to z": lambda text: not re.match("[a-z]", (our_words(text) or ["-"])[0])},
    "words:consonants": {"other words": lambda text: our_words(text) != text.lower().split()},
    "words:palindrome": WORDS,
    "words:prime_lengths": WORDS | {"no words": no_words},
    "words:repeats": WORDS,
    "words:odd_even_syllables": WORDS | {"other numbers of syllables": syllables_differ, "digits": has(r"\d")},
    "words:last_first": BOTH
    | {
        "a sentence of one word, which keeps its mark in the checker": has(r"(?:^|[.?!]\s+)\W*\S+[.?!]"),
        "punctuation without a word": ALONE,
    },
    "words:paragraph_last_first": WORDS | {"punctuation beside a word": has(r"[^\w\s]")},
    "words:no_consecutive": WORDS,
    "words:keywords_specific_position": SENTENCES | NLTK,
    "words:words_position": NLTK,
    "sentence:increment": BOTH | {"punctuation without a word": ALONE},
    "sentence:alliteration_increment": BOTH,
    "format:parentheses": {"a closing bracket that does not match, or one that is left open": mismatched},
    "ratio:sentence_words": SENTENCES | {"a word twice": a_word_twice},
    "format:quotes": {
        "two quotes with no word between them": has(r"[\"'][^\w]*[\"']"),
        "an apostrophe or a typographic quote": has(r"\w'\w|[“”‘’]"),
    },
    "format:line_indent": {"blank lines, or a space that is none of ASCII": has(r"\n\s*\n|\xa0")},
    "format:options": {"punctuation or space around the option": has(r"^[\W_]|[\W_]$")},
    "format:no_bullets_bullets": SENTENCES | {"a blank line": has(r"\n\s*\n")},
    "custom:sentence_alphabet": SENTENCES | {"a sentence that begins with a symbol": has(r"[.?!]\s+[^\w\s]")},
    "custom:reverse_newline": {
        "case, which does not matter for the order here": has(r"(?m)^[^A-Z\n]|[a-z][A-Z]|^.[A-Z]")
    },
    "custom:csv_special_character": {"a quotation mark that RFC 4180 wants doubled": has(r'""\w')},
}


MORE: dict[str, dict[str, Explains]] = {
    "length_constraints:nth_paragraph_first_word": {"marks before the word": has(r"(?i)\n[\W_]+tea")},
    "count:unique_word_count": {
        "punctuation without a word": ALONE,
        "a slash joins words for the checker": has(r"\w[^\w\s]+"),
    },
    "format:newline": {"a Han character is a word here": has(r"[\u4e00-\u9fff]")},
    "format:title_case": {"the checker lets words of one letter be in lower case": has(r"\b[a-z]\b")},
    "custom:word_reverse": {
        "punctuation beside the words": has(r"(?i)[^\w\s]+\s*ea?g?l?e?|e[^\w\s]+agle|ea[^\w\s]gle|\u200b|bald[^\w\s]")
    },
    "custom:csv_quotes": {"a quotation mark that is not closed on its line": has(r"\n\"\n")},
    "custom:european_capitals_sort": {"the checker removes what is not ASCII": has(r"[^\x00-\x7f]")},
    "ratio:sentence_type": {"an abbreviation or initial": has(r"(?:\b\w|Dr)\.")},
    "ratio:sentence_balance": {
        "an abbreviation or initial": has(r"(?:\b\w|Dr)\."),
        "a mark of another script": has("[。؟]"),
    },
    "sentence:alliteration_increment": {
        "punctuation without a word": ALONE,
        "two runs in a sentence, which the checker adds up": two_runs,
    },
    "format:quotes": {
        "quotation marks other than those of three closed levels": lambda text: (
            re.sub("[^'\"]", "", text) not in ('"\'""\'"', "'\"''\"'")
        )
    },
    "format:line_indent": {"a tab": has(r"\t")},
    "custom:reverse_newline": {
        "the checker removes what is not ASCII, and sorts spaces otherwise": has(r"[^\x00-\x7f]|[^\w\n]")
    },
}


def explanation(row: dict[str, Any], text: str, ours: bool, theirs: bool | str) -> str | None:
    """Return the first class of disagreements that explains the text, if one does."""
    if isinstance(theirs, str):
        return f"the checker crashes ({theirs})"
    for name, explains in (CLASSES.get(row["id"], {}) | MORE.get(row["id"], {})).items():
        if explains(text):
            return name
    return None
