"""The shop as a text world: its pool of server processes, and what the notebooks of SkillRise need of it (`rise_worlds`)."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from sagelib import rise_worlds, shop_exercises, shop_expert, shop_server, shop_world, text_files
from sagelib.text_pool import TextPool


class ShopPool(TextPool):
    """``workers`` server processes of one shop. WorldMissing when it is not built."""

    def __init__(self, directory: Path, workers: int = 1) -> None:
        directory = text_files.made(directory, "sagelib.shop_world.build")
        super().__init__([sys.executable, "-m", shop_server.__name__, str(directory)], workers)


def world(name: str) -> rise_worlds.TextWorld:
    """The shop of this name, for the notebooks."""
    return rise_worlds.TextWorld(
        name=name, directory=partial(shop_world.ensure, name), cards=shop_world.load_cards, pool=ShopPool,
        reply_to=shop_expert.reply_to, copying_pairs=shop_exercises.copying_pairs,
        plan={"difficulty": "none", "order": "random"},   # tasks of a family are equally hard
        about="Stores generated here under WebShop's rules; scores are not WebShop scores.",
    )
