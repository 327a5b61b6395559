"""Build the base world: the people and everything they own before any task starts.

    python sagelib/engine/world.py --out data/mini --seed 7 [--profile smoke]

Runs in the AppWorld environment. Afterwards ``<out>/judge/data`` holds ``base_dbs/`` and
``api_docs/`` as the engine reads them. The same seed and profile give the same rows.
Rows are written with the engine's own models, so its hooks (search text, like counters) run.
"""

import argparse
import gc
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Profile:
    """How much of everything there is; ``rows`` scales the collections of a person."""

    people: int = 24
    artists: int = 64
    products: int = 60
    rows: float = 1.0


PROFILES = {"full": Profile(), "smoke": Profile(people=6, artists=16, products=24, rows=0.6)}
LOGIN_APPS = ["amazon", "phone", "file_system", "spotify", "venmo", "gmail", "splitwise", "simple_note", "todoist"]
ADJECTIVES = (
    "silent golden broken electric velvet distant crimson hollow paper winter neon gentle amber lonely "
    "bitter copper frozen hidden little midnight northern open pale quiet rapid secret tender wild"
).split()
NOUNS = (
    "river mirror harbor signal garden empire letter skyline thunder lantern ocean compass bridge canyon desert "
    "engine feather glacier island jungle ladder meadow orchard planet shadow temple valley window"
).split()
PURPOSES = ["groceries", "utilities", "dinner", "movie tickets", "gas", "rent", "coffee", "birthday gift"]
TAGS = ["home", "work", "travel", "health", "recipes", "ideas", "family", "money"]
TOPICS = [
    "Weekend plans",
    "Lease renewal",
    "Recipe swap",
    "Book club",
    "Team lunch",
    "Garden party",
    "Road trip",
    "Tax papers",
]
LABELS = ["family", "bills", "travel", "work", "school"]
ALARMS = ["gym", "work", "medicine", "school run", "yoga", "piano", "meeting"]
CHORES = ["plants", "kitchen", "bike", "passport", "garage", "dentist", "laundry", "windows"]
CHORE_VERBS = ["Check the", "Sort out the", "Plan the", "Look after the", "Ask about the", "Fix the"]
CHAT = [
    "Are we still on for dinner?",
    "Running ten minutes late, sorry!",
    "Happy to help with the move.",
    "The package arrived today.",
    "Did you feed the cat?",
    "Let us plan the trip.",
    "Thanks for the photos.",
]
EXTENSIONS = ["pdf", "txt", "csv", "jpg", "docx", "mp3"]
KINDS = ["kettle", "lamp", "backpack", "headphones", "bottle", "notebook", "blanket", "clock"]


def clock() -> float:
    """Seconds on the real clock: an open world freezes time.time and time.monotonic of its process."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class World:
    """An open, empty in-memory world with its clock frozen, and the helpers that fill it."""

    def __init__(self, seed: int, profile: Profile) -> None:
        from appworld.apps import get_all_apps
        from appworld.collections.apis import ApiCollection
        from appworld.common.constants import DEFAULT_SYSTEM_DATETIME
        from appworld.common.utils import import_models_module
        from faker import Faker

        self.rng, self.profile, self.now = random.Random(seed), profile, DEFAULT_SYSTEM_DATETIME
        random.seed(seed)  # the engine itself draws invitation codes from the global generator
        self.fake = Faker("en_US")
        Faker.seed(seed)
        self.apps, self.home = list(get_all_apps()), ":memory:base"
        self.apis, self.requester = ApiCollection.load(
            to_db_home_path=self.home,
            from_db_home_path=self.home,
            load_apps=self.apps,
            create_db=True,
            date_and_time=self.now,
            raise_on_failure=True,
            allow_datetime_change=True,
            max_num_requests=None,
            munchify_response=True,
            ignore_private_apis=False,
        )
        self.models = {app: import_models_module(app) for app in self.apps}
        self.people: list = []
        self.near: dict[int, list] = {}  # the contacts of a person: roommates first, then friends
        self.accounts: dict[tuple[str, int], object] = {}
        self.cards: dict[int, list] = {}

    def ago(self, low: int, high: int):
        """A moment between low and high days before the world's present."""
        return self.now.subtract(days=self.rng.randint(low, high), minutes=self.rng.randint(0, 1400))

    def some(self, number: int) -> int:
        """``number`` rows in the full profile, scaled in the smaller ones, give or take a tenth."""
        number = max(4, round(number * self.profile.rows))
        return number + self.rng.randint(0, number // 10)

    def title(self, taken: set[str]) -> str:
        """A new two or three word title, added to ``taken``."""
        while True:
            words = [self.rng.choice(ADJECTIVES), self.rng.choice(NOUNS)]
            if self.rng.random() < 0.5:
                words.append(self.rng.choice(NOUNS))
            text = " ".join(words).capitalize()
            if text not in taken:
                taken.add(text)
                return text

    def weighted(self, items: list, number: int) -> list:
        """``number`` draws in which the first items are more likely, so that every filter finds a few rows."""
        return self.rng.choices(items, weights=[1 / (1 + i / 4) for i in range(len(items))], k=number)


def write_api_docs(data: Path) -> dict:
    """Write api_docs/standard/<app>.json and return the documents; the loader insists on the canary key."""
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.common.constants import CANARY_STRING

    apps = tuple(get_all_apps(skip_admin=True))
    docs = ApiDocCollection.build(load_apps=apps)
    folder = data / "api_docs" / "standard"
    folder.mkdir(parents=True, exist_ok=True)
    plain = {app: json.loads(json.dumps(docs[app], default=dict)) for app in apps}
    for app in apps:
        marked = {name: {**doc, "canary_string": CANARY_STRING} for name, doc in plain[app].items()}
        (folder / f"{app}.json").write_text(json.dumps(marked, indent=1))
    return plain


def fill_api_docs(w: World, docs: dict) -> None:
    """Make the documents searchable through the api_docs app."""
    model = w.models["api_docs"].ApiDoc
    for entries in docs.values():
        for doc in entries.values():
            model.create_save(
                app_name_=doc["app_name"],
                **{k: doc[k] for k in ("api_name", "path", "method", "description", "parameters", "response_schemas")},
            )


def fill_people(w: World) -> None:
    """People in households of three, with homes, cards and passwords; everybody knows 6 others."""
    admin, taken = w.models["admin"], set()
    for _ in range(w.profile.people):
        first = next(n for n in iter(w.fake.first_name, None) if n not in taken)
        taken.add(first)
        last = w.fake.last_name()
        person = admin.MainUser.create_save(
            first_name=first,
            last_name=last,
            email=f"{first}.{last}@gmail.com".lower(),
            phone_number="".join(w.rng.choices("23456789", k=10)),
            sex=w.rng.choice(["male", "female"]),
            birthday=w.now.subtract(years=w.rng.randint(20, 60), days=w.rng.randint(0, 364)).to_date_string(),
        )
        w.people.append(person)
        for app in LOGIN_APPS:
            admin.AccountPassword.create_save(
                main_user_id=person.id, account_name=app, password=w.fake.password(length=8, special_chars=False)
            )
        w.cards[person.id] = [
            admin.PaymentCard.create_save(
                main_user_id=person.id,
                owner_name=person.name,
                card_name=name,
                card_number=w.rng.randrange(10**15, 10**16),
                expiry_year=2026,
                expiry_month=w.rng.randint(1, 12),
                cvv_number=w.rng.randint(100, 999),
                balance=float(w.rng.randint(2000, 9000)),
            )
            for name in ("Visa", "MasterCard")
        ]
    n = len(w.people)
    for i in range(0, n, 3):
        group = w.people[i : i + 3]
        residence = admin.Residence.create_save(resident_ids=[p.id for p in group], residence_type="roommates")
        address = admin.GlobalAddress.create_save(
            residence_id=residence.id,
            street_address=w.fake.street_address(),
            city=w.fake.city(),
            state=w.fake.state(),
            country="United States",
            zip_code=w.rng.randint(10000, 99999),
        )
        for p in group:
            admin.UserAddress.create_save(global_address_id=address.id, main_user_id=p.id, name="Home")
    for i, person in enumerate(w.people):
        mates = [p for p in w.people[i // 3 * 3 : i // 3 * 3 + 3] if p.id != person.id]
        friends = [w.people[(i + step) % n] for step in (3, -3, 7, -7)]
        w.near[person.id] = mates + [
            f for k, f in enumerate(friends) if f.id != person.id and f not in mates + friends[:k]
        ]
        for friend in w.near[person.id][2:]:
            admin.Friendship.create_save(main_user_id=person.id, friend_id=friend.id)


def fill_accounts(w: World) -> None:
    """An account of every person in every app, as the apps' sign-up would leave it."""
    from appworld.apps.api_lib import CompanyNotifier

    for app in LOGIN_APPS:
        CompanyNotifier(app).create_accounts(skip_if_exists=True)
    for person in w.people:
        secrets = {a.account_name: a.password for a in person.account_passwords}
        for app in LOGIN_APPS:
            models = w.models[app]
            fields = {
                "first_name": person.first_name,
                "last_name": person.last_name,
                "password": secrets[app],
                "created_at": w.now.subtract(months=6),
                "last_logged_in": w.now.subtract(months=6),
            }
            fields |= {"phone_number": person.phone_number} if app == "phone" else {"email": person.email}
            fields |= {"verified": True} if "verified" in models.User.__fields__ else {}
            fields |= {"venmo_balance": 5000.0} if app == "venmo" else {}
            user = w.accounts[app, person.id] = models.User.create_save(**fields)
            if app in ("amazon", "venmo", "spotify"):
                for card in w.cards[person.id]:
                    models.PaymentCard.create_save(
                        user_id=user.id,
                        **{
                            k: getattr(card, k)
                            for k in (
                                "card_name",
                                "owner_name",
                                "card_number",
                                "expiry_year",
                                "expiry_month",
                                "cvv_number",
                            )
                        },
                    )
        w.models["spotify"].MusicPlayer.create_save(user_id=w.accounts["spotify", person.id].id)


def fingerprint(base: Path) -> str:
    """SHA-256 of all rows of the base world; file bytes would also hash SQLite's own counters."""
    import hashlib
    import sqlite3

    digest = hashlib.sha256()
    for file in sorted(base.glob("*.db")):
        with sqlite3.connect(file) as connection:
            for line in connection.iterdump():
                digest.update(line.encode())
    return digest.hexdigest()


def build(out: Path, seed: int, profile_name: str) -> None:
    """Write the base world under ``out/judge/data`` and ``out/world.json``; a world already there is kept."""
    import fill

    gc.disable()  # a million small objects, nothing to free: the collector would take a third of the time
    data = out / "judge" / "data"
    started = clock()
    w = World(seed, PROFILES[profile_name])
    docs = write_api_docs(data)
    for step in (
        fill_people,
        fill_accounts,
        fill.spotify,
        fill.phone,
        fill.venmo,
        fill.simple_note,
        fill.gmail,
        fill.todoist,
        fill.file_system,
        fill.amazon,
        fill.splitwise,
    ):
        before = clock()
        step(w)
        print(f"  {step.__name__:<14} {clock() - before:5.1f} s", flush=True)
    fill_api_docs(w, docs)
    from appworld.apps.api_lib import save_local_dbs

    save_local_dbs(
        from_db_home_path=w.home,
        to_db_home_path=str(data / "base_dbs"),
        format="full",
        app_names=w.apps,
        delete_if_exists=True,
    )
    import appworld

    record = {
        "world": out.name,
        "seed": seed,
        "profile": profile_name,
        "engine": f"appworld {appworld.__version__}",
        "people": len(w.people),
        "base": fingerprint(data / "base_dbs"),
        "hash": None,
    }
    (out / "world.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"base world: {len(w.people)} people in {clock() - started:.1f} s, {record['base'][:12]}", flush=True)


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--profile", choices=PROFILES, default="full")
    args = parser.parse_args()
    record = args.out / "world.json"
    if record.exists():
        old = json.loads(record.read_text())
        if (old["seed"], old["profile"]) != (args.seed, args.profile):
            sys.exit(
                f"{args.out} holds the world of seed {old['seed']}, profile {old['profile']}: "
                "choose another --out or remove that folder first."
            )
        print(f"base world: already there ({old['base'][:12]})")
        return
    os.environ["APPWORLD_ROOT"] = str((args.out / "judge").resolve())
    sys.path.insert(0, str(Path(__file__).parent))
    build(args.out, args.seed, args.profile)
    sys.stdout.flush()
    os._exit(0)  # the frozen clock makes the engine's own clean-up hang or complain


if __name__ == "__main__":
    main()
