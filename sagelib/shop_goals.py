"""Catalogue and goals in WebShop's file shapes, and its reward.

Files of a catalogue's directory: ``items_shuffle_1000.json`` (products), ``items_ins_v2_1000.json`` (attributes and
instructions), optionally ``nouns.json`` (asin -> nouns of its title). WebShop finds nouns with a spaCy model; generated
catalogues know theirs, elsewhere all words of the title before the first comma stand in (r_type differs then at times).

Goals are named by content, never by their place in a shuffled list: `goal_id`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

PRICES = [10.0 * i for i in range(1, 100)]
COLORS = ("beige", "black", "blue", "blush", "brass", "bronze", "brown", "charcoal", "copper", "coral", "cream", "gold", "gray",
          "green", "ivory", "khaki", "light", "navy", "natural", "olive", "orange", "pink", "purple", "red", "rose", "rust",
          "silver", "tan", "teal", "white", "yellow")   # a bought colour counts as the first of these that it contains
Product = dict[str, Any]
Goal = dict[str, Any]


def load_products(directory: Path) -> list[Product]:
    """The catalogue in file order, in the shape that pages and rewards read."""
    directory = Path(directory)
    raw = json.loads((directory / "items_shuffle_1000.json").read_text())
    notes = json.loads((directory / "items_ins_v2_1000.json").read_text())
    nouns = json.loads(path.read_text()) if (path := directory / "nouns.json").is_file() else {}
    products, seen = [], set()
    for item in raw:
        asin = item["asin"]
        if asin == "nan" or len(asin) > 10 or asin in seen:
            continue
        seen.add(asin)
        bullets = item["small_description"]
        prices = _prices(item.get("pricing"))
        note = notes.get(asin, {})
        products.append({
            "asin": asin, "title": item["name"], "description": item["full_description"],
            "bullets": bullets if isinstance(bullets, list) else [bullets],
            "prices": prices, "price_tag": " to ".join(f"${p}" for p in prices),
            "category": item["category"], "query": item["query"].lower().strip(),
            "kinds": {part.strip() for part in item["product_category"].split("›")},
            "options": {name.lower(): [c["value"].strip().replace("/", " | ").lower() for c in values]
                        for name, values in (item.get("customization_options") or {}).items() if values},
            "attributes": note.get("attributes") or ["DUMMY_ATTR"],
            "instruction": note.get("instruction"), "wanted": note.get("instruction_attributes"),
            "nouns": nouns.get(asin) or re.findall(r"[a-z]+", item["name"].split(",")[0].lower()),
        })
    return products


def _prices(text: str | None) -> list[float]:
    if not text:
        return [100.0]
    return [float(Decimal(re.sub(r"[^\d.]", "", part))) for part in text.split("$")[1:]][:2]


def draw_prices(products: Sequence[Product], rng: random.Random) -> None:
    """Each product's price; of a range a random value, in catalogue order."""
    for product in products:
        low, high = product["prices"][0], product["prices"][-1]
        product["price"] = low if len(product["prices"]) == 1 else rng.uniform(low, high)


def make_goals(products: Sequence[Product], rng: random.Random) -> list[Goal]:
    """One goal for each combination of options of each product that has an instruction, in catalogue order."""
    return [goal for product in products if product["instruction"] is not None for goal in _goals_of(product, rng)]


def _goals_of(product: Product, rng: random.Random) -> Iterator[Goal]:
    ceilings = [p for p in PRICES if p > product["price"]][:4]
    upper, text = 1000000, ""
    if len(ceilings) >= 2:
        upper = max(rng.sample(ceilings, 2))
        text = f", and price lower than {upper:.2f} dollars"
    names = sorted(product["options"])
    for values in itertools.product(*(product["options"][name] for name in names)):
        options = dict(zip(names, values, strict=True))
        wanted = ", and ".join(f"{k}: {v}" for k, v in options.items())
        yield {"asin": product["asin"], "attributes": product["wanted"], "price_upper": upper, "goal_options": options,
               "instruction_text": f"{product['instruction']}{' with ' + wanted if wanted else ''}{text}"}


def goal_id(goal: Goal) -> str:
    """The same for the same product, attributes and options, whatever price ceiling was drawn and wherever it is listed."""
    parts = [goal["asin"], sorted(goal["attributes"]), sorted(goal["goal_options"].items())]
    return f"{goal['asin']}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]}"


# ---- reward

def reward(bought: Product, wanted: Product, goal: Goal, chosen: dict[str, str]) -> float:
    """r_type * (attributes + options + [price is low enough]) / (what was asked for), in [0, 1]."""
    have = sum(_has_attribute(bought, attribute) for attribute in goal["attributes"])
    options = [_color(value) for value in chosen.values()]
    asked = [next((c for c in COLORS if c in pair), str(pair)) for pair in goal["goal_options"].items()]
    have += sum(any(token_set_ratio(value, want) > 85 for value in options) for want in asked)
    have += bought["price"] <= goal["price_upper"]
    return type_reward(bought, wanted) * have / (len(goal["attributes"]) + len(asked) + 1)


def type_reward(bought: Product, wanted: Product) -> float:
    """1 for the right kind of product, 0.5, 0.1 or 0 the less their titles' nouns agree."""
    share = len(set(bought["nouns"]) & set(wanted["nouns"])) / len(wanted["nouns"]) if wanted["nouns"] else 0.2
    if share < 0.1:
        return 0.1 if share else 0.0
    same = bought["query"] == wanted["query"] or len(bought["kinds"] & wanted["kinds"]) >= 2 or share > 0.2
    return 1.0 if same else 0.5


def _has_attribute(product: Product, attribute: str) -> bool:
    text = "\n".join([product["title"], " ".join(product["bullets"]), product["description"]]).lower()
    return any(token_set_ratio(own, attribute) > 85 for own in product["attributes"]) or attribute in text


def _color(value: str) -> str:
    return next((color for color in COLORS if color in value), value)


def token_set_ratio(a: str, b: str) -> int:
    """0..100, as the fuzzy matchers define it: 100 when the words of one are among the words of the other."""
    words_a, words_b = (set(re.sub(r"\W|_", " ", text.lower()).split()) for text in (a, b))
    if not words_a or not words_b:
        return 0
    both, only_a, only_b = words_a & words_b, words_a - words_b, words_b - words_a
    if both and not (only_a and only_b):
        return 100
    joined = " ".join(sorted(both))
    full_a, full_b = (" ".join(filter(None, [joined, " ".join(sorted(rest))])) for rest in (only_a, only_b))
    pairs = [(full_a, full_b)] + ([(joined, full_a), (joined, full_b)] if joined else [])
    return round(max(100 * 2 * _common(x, y) / (len(x) + len(y)) for x, y in pairs))


def _common(a: str, b: str) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, 1):
            row[j], before = (before + 1 if x == y else max(row[j], row[j - 1])), row[j]
    return row[-1]
