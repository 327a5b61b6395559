"""The generated shop: stores in WebShop's file shapes, and the tasks in them. Not WebShop's catalogue: scores are not comparable.

A *family* is one kind of product in one store. In every store each brand stands for one property of each kind of product
("in this store Fennway's protein bars are the soy free ones"), drawn anew for each store. The property is written on the
"Features" page only, which the search does not read: whoever has looked it up once for a family can choose the right brand
in the next task at once. That is what a skill document can carry from task to task, and weights cannot know for a new store.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sagelib import text_files
from sagelib.rise_sequences import TaskCard, fingerprint
from sagelib.runs import content_hash
from sagelib.shop_goals import Goal, draw_prices, goal_id, load_products, make_goals

BRANDS = ("Alderwick", "Brisca", "Calvora", "Denholt", "Fennway", "Gatrick", "Holmby", "Ironleaf", "Juniper", "Lumora")
# query, noun, WebShop category, product category, properties, options
KINDS: tuple[tuple[str, str, str, str, tuple[str, ...], dict[str, tuple[str, ...]]], ...] = (
    ("phone cases", "phone case", "electronics", "Cell Phones › Cases",
     ("heavy duty", "wireless charging", "easy install", "water resistant"),
     {"Color": ("black", "navy", "green"), "Size": ("5.4 inch", "6.1 inch")}),
    ("headphones", "headphones", "electronics", "Electronics › Headphones",
     ("noise cancelling", "fast charging", "hands free", "long lasting"),
     {"Color": ("black", "white", "red")}),
    ("table lamps", "table lamp", "garden", "Home › Lamps", ("energy efficient", "wood frame", "glass shade", "easy assemble"),
     {"Color": ("brass", "black", "white"), "Size": ("small", "large")}),
    ("throw pillows", "throw pillow", "garden", "Home › Pillows",
     ("machine washable", "super soft", "double sided", "water proof"),
     {"Color": ("rust", "navy", "green"), "Size": ("16 inch", "18 inch")}),
    ("protein bars", "protein bar", "grocery", "Grocery › Bars", ("soy free", "gluten free", "low sugar", "plant based"),
     {"Flavor": ("cocoa", "lemon", "peanut"), "Size": ("6 count", "12 count")}),
    ("face creams", "face cream", "beauty", "Beauty › Creams",
     ("fragrance free", "cruelty free", "oil free", "paraben free"),
     {"Scent": ("rose", "mint"), "Size": ("1 ounce", "2 ounce")}),
    ("shirts", "shirt", "fashion", "Clothing › Shirts", ("long sleeve", "slim fit", "moisture wicking", "button down"),
     {"Color": ("blue", "olive", "white"), "Size": ("small", "medium", "large")}),
    ("sandals", "sandals", "fashion", "Clothing › Sandals", ("arch support", "rubber sole", "open toe", "memory foam"),
     {"Color": ("black", "brown", "tan"), "Size": ("6", "7", "8")}),
)
# Stores per split; a store belongs to one split. demos: imitation, train: reinforcement learning.
SIZES = {"mini": {"demos": 32, "train": 16, "dev": 2, "test": 8}, "smoke": {"demos": 1, "train": 1, "dev": 1, "test": 1}}
VERSION = 2   # of what `build` writes; another number makes `ensure` build again


def make_store(rng: random.Random) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, list[str]]]:
    """(products, notes, nouns) of one store, in the shapes of WebShop's files; all kinds, one product for each brand and kind."""
    items, notes, nouns = [], {}, {}
    codes = rng.sample(range(10, 100), 90)
    for query, noun, category, path, properties, options in KINDS:
        names = _names(codes, len(properties))
        for brand, own in zip(rng.sample(BRANDS, len(properties)), rng.sample(properties, len(properties)), strict=True):
            asin = names.pop()
            items.append({
                "asin": asin, "name": f"{brand} {noun}", "category": category, "query": query, "product_category": path,
                "full_description": f"A {noun} by {brand}, made for everyday use.",
                "small_description": [f"By {brand}.", f"This {noun} is {own}."],
                "pricing": f"${rng.randrange(500, 8000) / 100:.2f}",
                "customization_options": {name: [{"value": v, "image": None} for v in rng.sample(values, len(values))]
                                          for name, values in options.items()},
                "images": [""],
            })
            notes[asin] = {"attributes": [own], "instruction": f"Find me {own} {query}", "instruction_attributes": [own]}
            nouns[asin] = [brand.lower(), *noun.split()]
    rng.shuffle(items)
    return items, notes, nouns


def _names(codes: list[int], count: int) -> list[str]:
    """``count`` names S10..S99 with different first digits, out of ``codes``: short enough to be copied by a small policy."""
    chosen: dict[int, int] = {}
    for code in codes:
        if len(chosen) < count:
            chosen.setdefault(code // 10, code)
    for code in chosen.values():
        codes.remove(code)
    return [f"S{code}" for code in chosen.values()]


def build(directory: Path, size: str = "mini", seed: int = 7) -> dict[str, int]:
    """Writes all stores, ``tasks.jsonl`` and, last, ``world.json`` with the hash of it all; returns the tasks of each split.

    Equal seeds write equal bytes.
    """
    directory, counts = Path(directory), {}
    tasks = []
    for split, stores in SIZES[size].items():
        for n in range(stores):
            store, rng = f"{split}{n}", random.Random(f"{seed} {split} {n}")
            items, notes, nouns = make_store(rng)
            folder = directory / "stores" / store
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in (("items_shuffle_1000", items), ("items_ins_v2_1000", notes), ("nouns", nouns)):
                (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
            mine = list(store_tasks(folder, store, split, seed))
            counts[split] = counts.get(split, 0) + len(mine)
            tasks += mine
    (directory / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    world = {"name": f"shop-{size}", "seed": seed, "tasks": counts, "catalogue": "generated; not WebShop's",
             "view": "short", "version": VERSION}
    world["hash"] = content_hash(directory / "stores")[:32] + content_hash(directory / "tasks.jsonl")[:32]
    (directory / "world.json").write_text(json.dumps(world, indent=1) + "\n")
    return counts


def ensure(name: str) -> Path:
    """data/<name>, built if it is not there or of another version. KeyError for a name that is not shop-mini or shop-smoke."""
    size = name.removeprefix("shop-")
    if size not in SIZES or not name.startswith("shop-"):
        raise KeyError(f"no shop {name!r}; there are: {', '.join('shop-' + s for s in SIZES)}")
    return text_files.ensure(name, VERSION, lambda fresh: build(fresh, size))


def open_store(folder: Path, seed: int) -> tuple[list[dict[str, Any]], list[Goal]]:
    """Products with their prices and all goals. The seed belongs to the store, never to a worker."""
    products, rng = load_products(folder), random.Random(seed)
    draw_prices(products, rng)
    return products, make_goals(products, rng)


def store_tasks(folder: Path, store: str, split: str, seed: int) -> Iterator[dict[str, Any]]:
    """Every goal of a store as a task: {card..., "goal"}."""
    products, goals = open_store(folder, seed)
    by_asin = {product["asin"]: product for product in products}
    for goal in goals:
        product = by_asin[goal["asin"]]
        card = TaskCard(f"{store}/{goal_id(goal)}", f"{store}/{product['query']}", goal_fingerprint(goal, products), {
            "split": split, "attributes": len(goal["attributes"]), "options": len(goal["goal_options"]),
            "property": goal["attributes"][0], "plan_length": 3 + len(goal["goal_options"]),
        })
        yield asdict(card) | {"goal": goal}


def goal_fingerprint(goal: Goal, products: Sequence[dict[str, Any]]) -> str:
    """What makes it this task: the goal (without its price ceiling) and the whole catalogue that it is played in."""
    shelf = sorted([p["asin"], p["title"], *p["bullets"], json.dumps(p["options"], sort_keys=True)] for p in products)
    return fingerprint(goal["asin"], sorted(goal["attributes"]), sorted(goal["goal_options"].items()), shelf)


def load_cards(directory: Path, split: str) -> list[TaskCard]:
    """The tasks of a split, as `rise_sequences.build` takes them."""
    path = Path(directory) / "tasks.jsonl"
    if not path.is_file():
        raise FileNotFoundError(f"the shop is not built (no {path}); build it with sagelib.shop_world.build")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [TaskCard(row["task_id"], row["family"], row["fingerprint"], row["attributes"])
            for row in rows if row["attributes"]["split"] == split]


def oracle(goal: Goal, query: str) -> list[str]:
    """Actions that earn the full reward; they presume what only the catalogue's maker knows: which product it is."""
    options = [f"click[{value}]" for value in goal["goal_options"].values()]
    return [f"search[{query}]", f"click[{goal['asin'].lower()}]", *options, "click[buy now]"]
