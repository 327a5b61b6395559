"""The shop: replays the official WebShop engine's episodes exactly; the generated stores can be solved, but not by chance."""
import gzip
import hashlib
import json
import random
from pathlib import Path

import pytest

from sagelib import shop_world, text_files
from sagelib.rise_sequences import CheckedWorld, ManifestError, SequencePlan, build, check_disjoint
from sagelib.shop import ShopPool
from sagelib.shop_goals import draw_prices, goal_id, load_products, make_goals, token_set_ratio, type_reward
from sagelib.shop_pages import Shop, Visit
from sagelib.shop_search import Index, analyze, stem, stored_length
from sagelib.shop_server import full, short
from sagelib.shop_world import build as build_shop
from sagelib.shop_world import load_cards, open_store, oracle
from sagelib.text_files import WorldMissing

PARITY = Path(__file__).parent / "webshop_parity"
GOALS = "eae7135bb9ac767be6bd9d63b314de7dc00c1eda2899b5900a8fc41e36758a2c"


@pytest.fixture(scope="session")
def official(tmp_path_factory):
    """(shop, goals in the official order) of the recorded catalogue."""
    folder = tmp_path_factory.mktemp("catalogue")
    for name in ("items_shuffle_1000.json", "items_ins_v2_1000.json"):
        (folder / name).write_bytes(gzip.decompress((PARITY / f"{name}.gz").read_bytes()))
    products, rng = load_products(folder), random.Random(0)
    draw_prices(products, rng)
    goals = make_goals(products, rng)
    random.Random(233).shuffle(goals)
    return Shop(products), goals


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    build_shop(folder, "smoke", seed=7)
    return folder


def goals_of(folder):
    return {row["task_id"]: row["goal"] for row in map(json.loads, (folder / "tasks.jsonl").read_text().splitlines())}


# ---- the official engine

def test_goals_are_the_official_ones(official):
    _, goals = official
    rows = [[g["asin"], g["instruction_text"], g["price_upper"], g["goal_options"], g["attributes"]] for g in goals]
    assert len(rows) == 4950 and hashlib.sha256(json.dumps(rows).encode()).hexdigest() == GOALS
    assert len({goal_id(goal) for goal in goals}) == len(goals)


def test_every_recorded_step_of_the_official_engine_is_replayed(official):
    shop, goals = official
    lines = gzip.decompress((PARITY / "episodes.jsonl.gz").read_bytes()).decode().splitlines()
    steps = 0
    for line in lines:
        episode = json.loads(line)
        visit = Visit(shop, goals[episode["goal_index"]])
        assert visit.observation() == episode["start"] and visit.clickables() == episode["available"]["clickables"]
        for step in episode["steps"]:
            visit.step(step["action"])
            steps += 1
            assert visit.observation() == step["observation"], step["action"]
            assert (visit.reward, visit.done) == (pytest.approx(step["reward"]), step["done"])
            assert visit.clickables() == (step["available"]["clickables"] if step["available"] else [])
    assert (len(lines), steps) == (40, 305)


# ---- its parts

STEMS = """caresses caress ponies poni
cats cat agreed agre plastered plaster motoring motor sing sing hopping hop
falling fall filing file
happy happi sky sky relational relat vietnamization vietnam hopefulness hope electrical electr adjustment adjust adoption adopt
rate rate controlling control archaeology archaeolog is is""".split()


@pytest.mark.parametrize("word, expected", list(zip(STEMS[::2], STEMS[1::2], strict=True)))
def test_porters_stems(word, expected):
    assert stem(word) == expected


def test_words():
    words = ["men", "6.1", "inch", "non", "slip", "case", "1,000", "them"]
    assert analyze("The men's 6.1 inch Non-Slip cases, 1,000 of them") == words


def test_lengths_in_one_byte():
    assert [stored_length(n) for n in (0, 23, 39, 40, 41, 42, 55, 56, 63, 64)] == [0, 23, 39, 40, 40, 42, 54, 56, 60, 64]


def test_ties_go_by_name_and_rare_words_count_more():
    index = Index(["b", "a", "c"], ["red lamp", "red lamp", "red red shade"])
    assert index.search("lamp") == [1, 0] and index.search("red shade")[0] == 2 and index.search("nothing") == []


@pytest.mark.parametrize("a, b, expected", [
    ("soy free", "free soy", 100), ("free", "soy free", 100), ("soy free", "gluten free", 67), ("", "a", 0), ("abc", "xyz", 0),
    ("6", "('size', '6')", 100), ("10", "('size', '6')", 0)])
def test_token_set_ratio(a, b, expected):
    assert token_set_ratio(a, b) == expected


def test_reward_of_the_wrong_kind_of_product():
    lamp = {"nouns": ["calvora", "table", "lamp"], "query": "lamps", "kinds": {"home", "lamps"}}
    assert type_reward(lamp, lamp) == 1.0
    assert type_reward({"nouns": ["desk"], "query": "lamps", "kinds": set()}, lamp) == 0.0     # no noun in common: nothing counts
    assert type_reward({"nouns": ["table"], "query": "tables", "kinds": {"home"}}, lamp) == 1.0  # a third of the nouns
    long = lamp | {"nouns": ["calvora", "a", "b", "c", "d", "e"]}
    assert type_reward({"nouns": ["calvora"], "query": "x", "kinds": set()}, long) == 0.5


# ---- the generated stores

def test_equal_seeds_build_equal_shops(built, tmp_path):
    counts = build_shop(tmp_path, "smoke", seed=7)
    assert (tmp_path / "tasks.jsonl").read_bytes() == (built / "tasks.jsonl").read_bytes()
    assert counts == {"demos": 196, "train": 196, "dev": 196, "test": 196}
    assert (tmp_path / "world.json").read_bytes() == (built / "world.json").read_bytes()
    assert build_shop(tmp_path / "other", "smoke", seed=8) and (tmp_path / "other" / "tasks.jsonl").read_bytes() != (
        built / "tasks.jsonl").read_bytes()


def test_a_family_s_products_can_be_told_by_the_first_digit_of_their_name(built):
    for store in ("demos0", "test0"):
        products = open_store(built / "stores" / store, 7)[0]
        assert len({p["asin"] for p in products}) == len(products) == 32
        for query in {p["query"] for p in products}:
            assert len({p["asin"][:2] for p in products if p["query"] == query}) == 4


def test_the_short_view_shows_what_the_page_is_about(built):
    goal = goals_of(built)[load_cards(built, "test")[0].task_id]
    shop = Shop(open_store(built / "stores" / "test0", 7)[0])
    visit, wanted = Visit(shop, goal), shop.by_asin[goal["asin"]]
    assert short(visit) == "Search" and full(visit) == "WebShop [SEP] Search"
    visit.step(f"search[{wanted['query']}]")
    assert short(visit).splitlines()[0] == "Results:" and f"{wanted['title']} {goal['asin']}" in short(visit).splitlines()
    visit.step(f"click[{goal['asin']}]")
    assert short(visit) == wanted["title"]
    visit.step("click[features]")
    assert short(visit).splitlines() == wanted["bullets"] and goal["attributes"][0] in wanted["bullets"][1]
    visit.step("click[< prev]")
    for value in goal["goal_options"].values():
        visit.step(f"click[{value}]")
    assert short(visit) == f"{wanted['title']}\nchosen: {', '.join(goal['goal_options'].values())}"
    visit.step("click[buy now]")
    assert short(visit) == full(visit) == "Thank you for shopping with us!" and visit.reward == 1.0


def test_a_shop_is_built_once_and_again_for_another_version(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "ROOT", tmp_path)
    (tmp_path / "data").mkdir()
    place = shop_world.ensure("shop-smoke")
    made = (place / "world.json").stat().st_mtime_ns
    assert shop_world.ensure("shop-smoke") == place and (place / "world.json").stat().st_mtime_ns == made
    monkeypatch.setattr(shop_world, "VERSION", 99)
    shop_world.ensure("shop-smoke")
    assert json.loads((place / "world.json").read_text())["version"] == 99 and len(list((tmp_path / "data").iterdir())) == 1
    with pytest.raises(KeyError, match="no shop 'shop-large'; there are: shop-mini, shop-smoke"):
        shop_world.ensure("shop-large")


def test_splits_are_disjoint_and_a_store_belongs_to_one(built):
    plan = {"world": "shop", "difficulty": "attributes_and_options", "distinct": None}
    train, test = (build(load_cards(built, split), SequencePlan(split=split, **plan)) for split in ("train", "test"))
    check_disjoint(train, test)
    assert {s.family.split("/")[0] for s in test.sequences} == {"test0"}
    assert len(train.sequences) == (8 + 4 + 8 + 8 + 8 + 5 + 12 + 12)


def play_out(world, cards, actions_of, turns=12):
    """Rewards of scripted players, 64 at a time."""
    rewards = []
    for first in range(0, len(cards), 64):
        part = cards[first:first + 64]
        visits = [visit for group in world.open([(card.task_id, 1) for card in part]) for visit in group]
        for turn in range(turns):
            world.step([(v, a) for v, card in zip(visits, part, strict=True) if (a := actions_of(card, turn))])
        rewards += [outcome.fraction for outcome in world.judge(visits)]
        world.close(visits)
    return rewards


def test_the_oracle_earns_everything_and_chance_does_not(built):
    goals, cards, rng = goals_of(built), load_cards(built, "test"), random.Random(0)

    def expert(card, turn):
        actions = oracle(goals[card.task_id], card.family.split("/")[1])
        return actions[turn] if turn < len(actions) else None

    with ShopPool(built, workers=2) as world:
        solved = play_out(world, cards, expert)
    assert [r == 1.0 for r in solved].count(True) >= 0.95 * len(cards)
    shop, lucky = Shop(open_store(built / "stores" / "test0", 7)[0]), 0
    for card in cards:
        visit = Visit(shop, goals[card.task_id])
        visit.step(f"search[{card.family.split('/')[1]}]")                 # even a good search does not make chance succeed
        for _ in range(11):
            visit.step(f"click[{rng.choice(visit.clickables() or ['-'])}]")
        lucky += visit.reward == 1.0
    assert lucky <= 0.1 * len(cards)


def test_a_world_with_other_prices_or_products_is_refused(built, tmp_path):
    cards = load_cards(built, "dev")
    manifest = build(cards, SequencePlan(world="shop", split="dev", difficulty="none"))
    build_shop(tmp_path, "smoke", seed=8)
    (tmp_path / "tasks.jsonl").write_bytes((built / "tasks.jsonl").read_bytes())     # same task names, another catalogue
    task = manifest.sequences[0].task_ids[0]
    with ShopPool(tmp_path) as world, pytest.raises(ManifestError, match="another task as"):
        CheckedWorld(world, manifest).open([(task, 1)])
    with ShopPool(built) as world:
        assert len(CheckedWorld(world, manifest).open([(task, 2)])[0]) == 2


def test_a_process_that_dies_makes_environment_failures_and_is_replaced(built):
    task = load_cards(built, "dev")[0].task_id
    with ShopPool(built) as world:
        [[visit]] = world.open([(task, 1)])
        assert world.step([(visit, "search[lamps]")])[0].status == "ok"
        world.workers[0].process.kill()
        world.workers[0].process.wait()
        assert world.step([(visit, "search[lamps]")])[0].status == "env_failure" and visit.failure
        assert world.judge([visit])[0].status == "env_failure"
        world.close([visit])
        [[again]] = world.open([(task, 1)])
        assert world.step([(again, "search[lamps]")])[0].status == "ok"


def test_unknown_tasks_and_missing_shops_are_named(built, tmp_path):
    with ShopPool(built) as world, pytest.raises(RuntimeError, match="no task 'x/y'"):
        world.open([("x/y", 1)])
    with pytest.raises(WorldMissing, match="shop_world.build"):
        ShopPool(tmp_path)
