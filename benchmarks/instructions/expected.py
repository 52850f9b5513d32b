"""Where a rule and a checker differ: texts that satisfy a rule, and classes of disagreements with what explains them."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any

CAPITALS = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw London "
    "Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb"
).split()
COUNTRIES = (
    "Zimbabwe Zambia Uganda Tunisia Togo Tanzania Sudan Somalia Senegal Rwanda Nigeria Niger Namibia Morocco Mali Malawi "
    "Libya Liberia Lesotho Kenya Guinea Ghana Gambia Gabon Ethiopia Eswatini Eritrea Egypt Djibouti Congo Chad Cameroon"
).split()

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
    "format:quotes": ["\"a 'b \"c\" d' e\""],
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

Explains = Callable[[dict[str, Any], str, bool, bool | str], Any]
CLASSES: dict[str, dict[str, Explains]] = {}


def explanation(row: dict[str, Any], text: str, ours: bool, theirs: bool | str) -> str | None:
    """Return the first class of disagreements that explains the text, if one does."""
    if isinstance(theirs, str):
        return f"the checker crashes ({theirs})"
    for name, explains in CLASSES.get(row["id"], {}).items():
        if explains(row, text, ours, theirs):
            return name
    return None
