"""Full-text search that ranks as Lucene does with WebShop's settings: BM25, k1 = 0.9, b = 0.4, English analyzer.

What makes the ranking exact and is easy to forget: document lengths are stored in one byte (4 significant bits beyond 40),
the score has no factor (k1 + 1), a repeated query word counts as often as it is repeated, and ties are in the
order of the documents' names (Anserini's rule). Standard library only.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

K1, B = 0.9, 0.4
STOP = frozenset("a an and are as at be but by for if in into is it no not of on or such that the their then there these "
                 "they this to was will with".split())
# Word boundaries of Unicode's standard annex 29, as far as shop texts need them: a point or an apostrophe between letters,
# a point or a comma between digits stay inside a word.
WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d_])['’.](?=[^\W\d_])|(?<=\d)[.,'](?=\d))\w+)*")


def analyze(text: str) -> list[str]:
    """Stemmed words of a text, without stop words, in order."""
    words = (re.sub(r"['’]s$", "", word) for word in WORD.findall(text.lower()))
    return [stem(word) for word in words if word not in STOP]


def stored_length(length: int) -> int:
    """The length as it comes back from one byte: exact below 40, then rounded down to four significant bits."""
    if length < 40:
        return length
    bits = max(0, (length - 24).bit_length() - 4)
    return ((length - 24) >> bits << bits) + 24


class Index:
    """Documents by name. ``search`` returns at most ``limit`` numbers (their places in ``texts``), best first."""

    def __init__(self, names: Sequence[str], texts: Sequence[str]) -> None:
        self.names = list(names)
        self.postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths = []
        for number, text in enumerate(texts):
            counts = Counter(analyze(text))
            lengths.append(sum(counts.values()))
            for word, times in counts.items():
                self.postings[word].append((number, times))
        self.size = sum(length > 0 for length in lengths)
        mean = sum(lengths) / self.size if self.size else 1.0
        self.norms = [K1 * (1 - B + B * stored_length(length) / mean) for length in lengths]

    def search(self, query: str, limit: int = 50) -> list[int]:
        scores: dict[int, float] = defaultdict(float)
        for word, repeated in Counter(analyze(query)).items():
            found = self.postings.get(word, [])
            rarity = math.log(1 + (self.size - len(found) + 0.5) / (len(found) + 0.5))
            for number, times in found:
                scores[number] += repeated * rarity * times / (times + self.norms[number])
        # Lucene adds in single precision: what differs only behind its digits is a tie.
        return sorted(scores, key=lambda number: (-float(f"{scores[number]:.6g}"), self.names[number]))[:limit]


# ---- Porter's stemmer (1980), with his later additions "logi" -> "log" and "bli" -> "ble"

_STEP2 = [("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
          ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"), ("ator", "ate"),
          ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"),
          ("biliti", "ble"), ("logi", "log")]
_STEP3 = [("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")]
_STEP4 = ["al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
          "ous", "ive", "ize"]


def _shape(word: str) -> str:
    """c for consonants, v for vowels; y is a vowel after a consonant."""
    shape = ""
    for i, letter in enumerate(word):
        vowel = letter in "aeiou" or (letter == "y" and i > 0 and shape[-1] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    return len(re.findall("v+c+", _shape(word)))


def _ends_short(word: str) -> bool:
    """consonant, vowel, consonant that is not w, x or y."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"


def _replace(word: str, rules: Sequence[tuple[str, str]], least: int) -> str:
    """The longest suffix that matches is replaced, if what precedes it is long enough."""
    for suffix, other in sorted(rules, key=lambda rule: -len(rule[0])):
        if word.endswith(suffix):
            before = word[: -len(suffix)]
            return before + other if _measure(before) >= least else word
    return word


def _step1(word: str) -> str:
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    else:
        for suffix in ("ed", "ing"):
            before = word[: -len(suffix)]
            if word.endswith(suffix) and "v" in _shape(before):
                word = _mend(before)
                break
    return word[:-1] + "i" if word.endswith("y") and "v" in _shape(word[:-1]) else word


def _mend(word: str) -> str:
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c":
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_short(word) else word


def stem(word: str) -> str:
    """Porter's stem; words of one or two letters stay."""
    if len(word) <= 2:
        return word
    word = _replace(_replace(_step1(word), _STEP2, 1), _STEP3, 1)
    for suffix in sorted(_STEP4, key=len, reverse=True):
        if word.endswith(suffix):
            before = word[: -len(suffix)]
            if _measure(before) > 1 and (suffix != "ion" or before.endswith(("s", "t"))):
                word = before
            break
    if word.endswith("e"):
        before = word[:-1]
        if _measure(before) > 1 or (_measure(before) == 1 and not _ends_short(before)):
            word = before
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
