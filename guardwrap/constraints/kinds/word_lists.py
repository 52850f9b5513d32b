"""Short lists of function words, by language: personal pronouns, coordinating conjunctions, stop words.

They were written for this package, from grammars' closed classes. A word that also has other uses, such as "that", is
listed by its most frequent one.
"""

from __future__ import annotations

from functools import cache

_PRONOUNS = {
    "en": "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her "
    "hers herself it its itself they them their theirs themselves",
    "de": "ich mir mich mein meine meiner meinem meinen meines du dir dich dein deine deiner deinem deinen deines er "
    "ihm ihn sein seine seiner seinem seinen seines sie ihr ihre ihrer ihrem ihren ihres es wir uns unser unsere "
    "unserer unserem unseren unseres euch euer eure eurer eurem euren eures ihnen sich",
    "fr": "je j me m moi tu te t toi il elle on le la l lui nous vous ils elles les leur leurs se s soi eux mon ma mes "
    "ton ta tes son sa ses notre nos votre vos mien mienne tien tienne sien sienne",
    "es": "yo me mí mi mis mío mía míos mías tú te ti tu tus tuyo tuya tuyos tuyas él ella ello lo la le se sí su sus "
    "suyo suya suyos suyas nosotros nosotras nos nuestro nuestra nuestros nuestras vosotros vosotras os vuestro "
    "vuestra vuestros vuestras usted ustedes ellos ellas los las les conmigo contigo consigo",
    "pt": "eu me mim meu minha meus minhas tu te ti teu tua teus tuas você vocês ele ela o a lhe se si seu sua seus "
    "suas nós nos nosso nossa nossos nossas vós vos vosso vossa vossos vossas eles elas os as lhes comigo contigo "
    "consigo conosco",
    "pl": "ja mnie mi mną mój moja moje ty ciebie cię tobie ci tobą twój twoja twoje on ona ono jego go jemu mu nim "
    "jej ją nią my nas nam nami nasz nasza nasze wy was wam wami wasz wasza wasze oni one ich im nimi się siebie "
    "sobie sobą swój swoja swoje",
    "ru": "я меня мне мной мой моя моё мои ты тебя тебе тобой твой твоя твоё твои он она оно его ему им нём её ей ней "
    "мы нас нам нами наш наша наше наши вы вас вам вами ваш ваша ваше ваши они их ими них себя себе собой свой "
    "своя своё свои",
    "tr": "ben beni bana benim bende benden sen seni sana senin sende senden o onu ona onun onda ondan biz bizi bize "
    "bizim bizde bizden siz sizi size sizin sizde sizden onlar onları onlara onların kendi kendim kendisi",
}
_CONJUNCTIONS = {
    "en": "and but nor for or so yet",
    "de": "und oder aber denn sondern doch sowie",
    "fr": "mais ou et donc or ni car",
    "es": "y e o u pero ni sino mas",
    "pt": "e ou mas nem porém pois logo",
    "pl": "i oraz lub albo ale lecz ani więc",
    "ru": "и а но или да либо однако",
    "tr": "ve veya ya ama fakat ancak ile",
}
_STOP_WORDS = {
    "en": "a about above after again against all am an and any are aren't as at be because been before being below "
    "between both but by can couldn't did didn't do does doesn't doing don't down during each few for from "
    "further had hadn't has hasn't have haven't having how if in into is isn't just more most no nor not now of "
    "off on once only or other out over own same shan't should shouldn't so some such than that the then there "
    "these this those through to too under until up very was wasn't were weren't what when where which while who "
    "whom why will with won't wouldn't s t d ll m o re ve y ain don aren couldn didn doesn hadn hasn haven isn ma "
    "mightn mustn needn shan shouldn wasn weren won wouldn",
    "de": "aber als am an auch auf aus bei bin bis bist da damit dann das dass dem den der des die dies diese diesem "
    "diesen dieser dieses doch dort durch ein eine einem einen einer eines für hab habe haben hat hatte hatten "
    "hier hin hinter im in ist ja kann kein keine keinem keinen keiner können mit muss nach nicht nichts noch nun "
    "nur ob oder ohne sehr sind so um und unter vom von vor war waren was weil wenn werden wie wieder will wird "
    "wo zu zum zur zwischen über",
    "fr": "à au aux avec ce ces cette cet c d dans de des du en est et eu être ont a avait étaient était mais même ne "
    "n ni non ou où par pas plus pour qu que qui quand sans si sont sous sur tout tous très un une y comme donc car "
    "alors",
    "es": "a al algo ante antes aquí así aunque cada como con contra cual cuando de del desde donde durante e el en "
    "entre era es esa ese eso esta este esto está están fue ha hay hasta la las los más muy no o otra otro para "
    "pero poco por porque que qué quien se ser si sin sobre son también tan tanto todo todos u un una uno unos y "
    "ya",
    "pt": "a ao aos as até com como da das de dela dele do dos e é em entre era essa esse esta este está foi há isso "
    "isto já mais mas mesmo muito na nas nem no nos não o os ou para pela pelas pelo pelos por qual quando que "
    "quem se sem ser são só também um uma à às",
}
LISTED = {"pronouns": _PRONOUNS, "conjunctions": _CONJUNCTIONS, "stop_words": _STOP_WORDS}
"""The lists by the name of their item and by language (ISO 639-1), each with white space between the words."""


def languages_of(item: str) -> tuple[str, ...]:
    """Return the languages in which a list exists."""
    return tuple(sorted(LISTED[item]))


@cache
def listed_words(item: str, language: str) -> frozenset[str]:
    """Return the words of a list, in lower case. Stop words include the pronouns."""
    words = LISTED[item][language].split()
    if item == "stop_words":
        words += _PRONOUNS[language].split()
    return frozenset(words)
