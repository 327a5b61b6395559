"""The pages of a shop as text: what is shown and what can be done, exactly as WebShop's text mode has it.

Actions: ``search[words]`` on every page, ``click[x]`` where x (in any case) is among the page's clickables. Anything else
changes nothing. "buy now" ends the episode with its reward. Text parts are joined by " [SEP] ".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from sagelib.shop_goals import Goal, Product, reward
from sagelib.shop_search import Index

HITS, PER_PAGE = 50, 10
BACK, BEFORE, AFTER, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")


class Shop:
    """A catalogue and its search index; many `Visit`s share one."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = list(products)
        self.by_asin = {product["asin"]: product for product in self.products}
        self.index = Index([p["asin"] for p in self.products], [_searchable(p) for p in self.products])


def _searchable(product: Product) -> str:
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product["options"].items())
    return " ".join([product["title"], product["description"], product["bullets"][0], options]).lower()


class Visit:
    """One episode: a goal, the page that is open, and what was chosen on it."""

    def __init__(self, shop: Shop, goal: Goal) -> None:
        self.shop, self.goal = shop, goal
        self.done, self.reward = False, 0.0
        self.found: list[str] = []
        self.page, self.number, self.asin, self.sub = "home", 1, "", ""
        self.chosen: dict[str, str] = {}

    # ---- what is shown

    def observation(self) -> str:
        if self.done:
            return self._receipt()
        head = ["Instruction:", self.goal["instruction_text"]]
        return " [SEP] ".join((["WebShop"] if self.page == "home" else []) + head + self._body())

    def _body(self) -> list[str]:
        if self.page == "home":
            return ["Search"]
        if self.page == "results":
            parts = [BACK, f"Page {self.number} (Total results: {len(self.found)})"]
            parts += [BEFORE] * (self.number > 1) + [AFTER]
            for asin in self.listed():
                product = self.shop.by_asin[asin]
                parts += [asin, product["title"], product["price_tag"]]
            return parts
        product = self.shop.by_asin[self.asin]
        if self.sub:
            text = {"Description": [product["description"]], "Features": product["bullets"], "Reviews": []}[self.sub]
            return [BACK, BEFORE, *text]
        options = [part for name, values in product["options"].items() for part in (name, *values)]
        return [BACK, BEFORE, *options, product["title"], f"Price: {product['price_tag']}", "Rating: N.A.", *SUB_PAGES, BUY]

    def listed(self) -> list[str]:
        """Products on this page of the results."""
        return self.found[(self.number - 1) * PER_PAGE : self.number * PER_PAGE]

    def _receipt(self) -> str:
        """WebShop's last page in text mode; most of it is a form that is never filled."""
        parts = ["Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)", "Purchased",
                 "asin", self.asin, "options", json.dumps(self.chosen), "attrs", "None", "category", "None", "query", "None",
                 "product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text", "category",
                 "product category", "query", "Goal", "None", "Reward", "Your score (min 0.0, max 1.0)", str(self.reward),
                 "Reward Details", "None"]
        return " [SEP] ".join(parts)

    # ---- what can be done

    def clickables(self) -> list[str]:
        """In the order in which the page shows them; empty when the episode is over."""
        if self.done:
            return []
        if self.page == "home":
            return ["search"]
        if self.page == "results":
            turn = [BEFORE] * (self.number > 1) + [AFTER]
            return [name.lower() for name in (BACK, *turn, *self.listed())]
        if self.sub:
            return [BACK.lower(), BEFORE.lower()]
        values = [value for values in self.shop.by_asin[self.asin]["options"].values() for value in values]
        return list(dict.fromkeys([name.lower() for name in (BACK, BEFORE, *SUB_PAGES, BUY)] + values))

    def step(self, action: str) -> None:
        """Afterwards the page is the next one, or the same when the action means nothing here."""
        match = re.match(r"(.+)\[(.+)\]", action)
        name, what = (match[1], match[2].lower()) if match else (action, "")
        if self.done:
            return
        if name == "search" and what:
            self.found = [self.shop.products[i]["asin"] for i in self.shop.index.search(what, HITS)]
            self.page, self.number, self.chosen = "results", 1, {}
        elif name == "click" and what != "search" and what in self.clickables():
            self._click(what)

    def _click(self, what: str) -> None:
        if what == BACK.lower():
            self.page, self.number, self.sub, self.chosen = "home", 1, "", {}
        elif self.page == "results":
            if what in (AFTER.lower(), BEFORE.lower()):
                self.number += 1 if what == AFTER.lower() else -1
            else:
                self.page, self.asin, self.sub = "item", what.upper(), ""
        elif what == BEFORE.lower():
            if self.sub:
                self.sub = ""
            else:
                self.page, self.chosen = "results", {}
        elif what == BUY.lower():
            self._buy()
        elif what in [name.lower() for name in SUB_PAGES]:
            self.sub = what.capitalize()
        else:
            for option, values in self.shop.by_asin[self.asin]["options"].items():
                if what in values:   # the same value under two names belongs to the later one
                    name = option
            self.chosen[name] = what

    def _buy(self) -> None:
        bought, wanted = (self.shop.by_asin[asin] for asin in (self.asin, self.goal["asin"]))
        self.reward = reward(bought, wanted, self.goal, self.chosen)
        self.done = True
