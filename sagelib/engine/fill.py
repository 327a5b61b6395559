"""What each app of the base world holds; one function per app, called by world.py in this order.

Every collection is drawn so that a person's rows repeat a few values (artists, senders, tags, ...):
a filter then finds two to eight rows and never all of them.
"""

from world import (
    ADJECTIVES,
    ALARMS,
    CHAT,
    CHORE_VERBS,
    CHORES,
    EXTENSIONS,
    KINDS,
    LABELS,
    NOUNS,
    PURPOSES,
    TAGS,
    TOPICS,
    World,
)


def spotify(w: World) -> None:
    """Artists with two albums of five songs each; per person a library, likes, downloads and followed artists."""
    m, taken = w.models["spotify"], set()
    genres = ["pop", "rock", "jazz", "indie", "folk", "classical"]
    by_artist, albums = {}, {}
    for _ in range(w.profile.artists):
        artist = m.Artist.create_save(
            name=w.fake.unique.name(), genre=w.rng.choice(genres), created_at=w.ago(900, 1500)
        )
        by_artist[artist.id], albums[artist.id] = [], []
        for _ in range(2):
            album = m.Album.create_save(
                title=w.title(taken), artist_ids=[artist.id], genre=artist.genre, release_date=w.ago(60, 1800)
            )
            albums[artist.id].append(album.id)
            by_artist[artist.id] += [
                m.Song.create_save(
                    title=w.title(taken),
                    artist_ids=[artist.id],
                    album_id=album.id,
                    duration=w.rng.randint(12, 32) * 10,
                    release_date=album.release_date,
                    genre=artist.genre,
                    play_count=w.rng.randint(0, 999),
                ).id
                for _ in range(5)
            ]
    for person in w.people:
        me = w.accounts["spotify", person.id].id
        loved = w.rng.sample(sorted(by_artist), min(12, w.profile.artists))
        pool = [song for artist in loved for song in by_artist[artist]]
        for artist in loved[: w.some(10)]:
            m.UserArtistFollowing.create_save(user_id=me, artist_id=artist)
        for album in w.rng.sample([a for artist in loved for a in albums[artist]], min(16, w.some(14))):
            m.UserLibraryAlbum.create_save(user_id=me, album_id=album, created_at=w.ago(1, 300))
        liked_pool = [song for artist in loved[:6] for song in by_artist[artist]]
        likes = w.rng.sample(liked_pool, min(len(liked_pool), w.some(22)))
        library = w.rng.sample(pool, min(len(pool), w.some(34)))
        downloads = w.rng.sample(pool, min(len(pool), w.some(20)))
        for song in likes:
            m.SongLike.create_save(user_id=me, song_id=song, liked_at=w.ago(1, 300))
        for song in library:
            m.UserLibrarySong.create_save(user_id=me, song_id=song, created_at=w.ago(1, 300))
        for song in downloads:
            m.UserDownloadedSong.create_save(user_id=me, song_id=song, downloaded_at=w.ago(1, 300))


def phone(w: World) -> None:
    """Contacts with relationships, text messages between them, and alarms with labels."""
    m = w.models["phone"]
    for person in w.people:
        me = w.accounts["phone", person.id].id
        strangers = [p for p in w.people if p.id != person.id and p not in w.near[person.id]]
        known = w.near[person.id] + w.rng.sample(strangers, min(len(strangers), w.some(8)))
        for i, other in enumerate(known):
            kind = (
                "roommate"
                if i < 2
                else "friend"
                if i < len(w.near[person.id])
                else w.rng.choice(["coworker", "neighbor", "cousin"])
            )
            m.Contact.create_save(
                user_id=me,
                first_name=other.first_name,
                last_name=other.last_name,
                email=other.email,
                phone_number=other.phone_number,
                relationships=[kind],
                birthday=other.birthday,
                created_at=w.ago(30, 200),
            )
        clock = [f"{hour:02d}:{minute}" for hour in range(5, 23) for minute in ("00", "15", "30", "45")]
        for moment in w.rng.sample(clock, w.some(13)):
            m.Alarm.create_save(
                user_id=me,
                time=moment,
                repeat_days=[],
                label=w.rng.choice(ALARMS[:5]),
                enabled=w.rng.random() < 0.8,
                snooze_minutes=w.rng.choice([5, 10, 15, 20]),
                vibration=True,
                created_at=w.ago(5, 100),
            )
        for other in w.near[person.id]:
            for _ in range(w.rng.randint(1, 3)):
                sent = w.ago(2, 90)
                message = m.GlobalTextMessage.create_save(
                    sender_id=w.accounts["phone", other.id].id,
                    receiver_id=me,
                    message=w.rng.choice(CHAT),
                    created_at=sent,
                )
                for owner in (message.sender_id, message.receiver_id):
                    m.UserTextMessage.create_save(global_text_message_id=message.id, user_id=owner, created_at=sent)


def venmo(w: World) -> None:
    """Payments of whole dollars between acquainted people, likes on some, and open payment requests."""
    m = w.models["venmo"]
    for person in w.people:
        me, near = w.accounts["venmo", person.id].id, [w.accounts["venmo", p.id].id for p in w.near[person.id]]
        for other in near:
            if not m.Friendship.exists(user_id=me, friend_id=other):
                m.Friendship.create_save(user_id=me, friend_id=other)
                m.Friendship.create_save(user_id=other, friend_id=me)
        for other in w.weighted(near, w.some(18)):
            moment = w.ago(1, 120)
            payment = m.Transaction.create_save(
                sender_id=me,
                receiver_id=other,
                amount=float(w.rng.randint(3, 80)),
                private=False,
                description=w.rng.choice(PURPOSES),
                created_at=moment,
                updated_at=moment,
            )
            for owner in (me, other):
                if w.rng.random() < 0.12:
                    m.TransactionLike.create_save(transaction_id=payment.id, user_id=owner)
        for other in w.weighted(near, w.some(14)):
            moment = w.ago(1, 60)
            m.PaymentRequest.create_save(
                sender_id=other,
                receiver_id=me,
                amount=float(w.rng.randint(3, 80)),
                description=w.rng.choice(PURPOSES[:6]),
                created_at=moment,
                updated_at=moment,
            )


def simple_note(w: World) -> None:
    """Notes with one or two tags, some pinned; titles share words."""
    m = w.models["simple_note"]
    for person in w.people:
        me, taken = w.accounts["simple_note", person.id].id, set()
        words = w.rng.sample(NOUNS, 6)
        for _ in range(w.some(20)):
            title = next(
                t
                for t in iter(
                    lambda words=words: f"{w.rng.choice(ADJECTIVES)} {w.rng.choice(words)}".capitalize(), None
                )
                if t not in taken
            )
            taken.add(title)
            moment = w.ago(2, 300)
            m.Note.create_save(
                user_id=me,
                title=title,
                content=w.fake.sentence(),
                tags=w.rng.sample(TAGS[:6], w.rng.randint(1, 2)),
                pinned=w.rng.random() < 0.35,
                created_at=moment,
                updated_at=moment,
            )


def gmail(w: World) -> None:
    """Mail threads of one mail between acquainted people; labels, stars and archive marks are the receiver's."""
    m = w.models["gmail"]
    for person in w.people:
        me, near = w.accounts["gmail", person.id].id, [w.accounts["gmail", p.id].id for p in w.near[person.id]]
        for sender in w.weighted(near, w.some(22)):
            moment = w.ago(1, 120)
            mail = m.Email.create_save(
                sender_id=sender,
                recipient_ids=[me],
                subject=w.rng.choice(TOPICS),
                body=w.fake.sentence(),
                created_at=moment,
            )
            thread = m.GlobalEmailThread.create_save(email_ids=[mail.id], created_at=moment, updated_at=moment)
            for owner in (sender, me):
                mine = owner == me
                m.UserEmailThread.create_save(
                    global_email_thread_id=thread.id,
                    user_id=owner,
                    email_ids=[mail.id],
                    incoming=mine,
                    outgoing=not mine,
                    read=not mine or w.rng.random() < 0.4,
                    label=w.rng.choice(LABELS) if mine else None,
                    starred=mine and w.rng.random() < 0.2,
                    archived=mine and w.rng.random() < 0.3,
                    sender_email_addresses=[],
                    sender_names=[],
                    recipient_email_addresses=[],
                    recipient_names=[],
                    created_at=moment,
                    updated_at=moment,
                )


def todoist(w: World) -> None:
    """An inbox and two projects of tasks with priorities, due dates and durations in whole minutes."""
    m = w.models["todoist"]
    for person in w.people:
        me = w.accounts["todoist", person.id].id
        names = w.rng.sample(["Home", "Errands", "Office", "Club", "Studies"], 2)
        projects = [
            m.Project.create_save(user_id=me, name=name, is_inbox=name == "Inbox", created_at=w.ago(60, 120))
            for name in ["Inbox", *names]
        ]
        for project in projects:
            m.ProjectCollaboratorLink.create_save(project_id=project.id, user_id=me)
        for project, number in zip(projects, (w.some(14), w.some(8), w.some(8)), strict=True):
            for order in range(number):
                m.Task.create_save(
                    project_id=project.id,
                    user_id=me,
                    title=f"{w.rng.choice(CHORE_VERBS)} {w.rng.choice(CHORES)}",
                    description="",
                    due_date=w.now.add(days=w.rng.randint(1, 9)).start_of("day"),
                    order_index=order,
                    priority=w.rng.choice(["high", "medium", "low"]),
                    is_completed=w.rng.random() < 0.25,
                    duration=float(w.rng.randint(1, 12) * 5),
                    duration_unit="minutes",
                    created_at=w.ago(5, 50),
                )


def file_system(w: World) -> None:
    """A home folder with documents, downloads, photos and an empty backup folder."""
    m = w.models["file_system"]
    for person in w.people:
        me, taken = w.accounts["file_system", person.id].id, set()
        past = w.ago(210, 300)
        home = f"/home/{person.first_name.lower()}/"
        for path in ("/", "/home/", home, home + "backup/"):
            m.Directory.create_save(user_id=me, path=path, created_at=past, updated_at=past)
        for folder in ("documents", "downloads", "photos"):
            m.Directory.create_save(user_id=me, path=f"{home}{folder}/", created_at=past, updated_at=past)
            words = w.rng.sample(NOUNS, 5)
            for _ in range(w.some(18)):
                name = next(
                    n
                    for n in iter(lambda words=words: f"{w.rng.choice(ADJECTIVES)}_{w.rng.choice(words)}", None)
                    if n not in taken
                )
                taken.add(name)
                moment = w.ago(2, 200)
                m.File.create_save(
                    user_id=me,
                    path=f"{home}{folder}/{name}.{w.rng.choice(EXTENSIONS[:5])}",
                    content=w.fake.sentence(),
                    created_at=moment,
                    updated_at=moment,
                )


def amazon(w: World) -> None:
    """Products of whole-dollar prices; a wish list and a cart per person."""
    m = w.models["amazon"]
    for name in ("UPS", "USPS", "FedEx"):
        m.Deliverer.create_save(name=name)
    sellers = [m.Seller.create_save(name=w.fake.unique.company()) for _ in range(6)]
    products = []
    for i in range(w.profile.products):
        kind = KINDS[i % len(KINDS)]
        products.append(
            m.Product.create_save(
                product_type=kind,
                name=f"{w.fake.color_name()} {w.rng.choice(NOUNS)} {kind}",
                description=w.fake.sentence(),
                seller_id=w.rng.choice(sellers).id,
                price=float(w.rng.randint(8, 120)),
                delivery_days=w.rng.randint(1, 6),
                inventory_quantity=w.rng.randint(20, 80),
                weight=1.0,
                length=5.0,
                width=5.0,
                height=5.0,
                color=w.rng.choice(["black", "white", "red"]),
            ).id
        )
    for person in w.people:
        me = w.accounts["amazon", person.id].id
        for address in person.user_addresses:
            place = address.global_address
            m.Address.create_save(
                user_id=me,
                name=address.name,
                **{k: getattr(place, k) for k in ("street_address", "city", "state", "country", "zip_code")},
            )
        mixed = w.rng.sample(products, min(len(products), w.some(32)))
        half = len(mixed) // 2  # no product is in both: moving one then always adds a new row
        for product in mixed[:half]:
            m.WishListEntry.create_save(user_id=me, product_id=product, quantity=1)
        for product in mixed[half:]:
            m.CartEntry.create_save(user_id=me, product_id=product, quantity=1)


def splitwise(w: World) -> None:
    """A household group; expenses in the group and outside of it, amounts that split into whole dollars."""
    m = w.models["splitwise"]
    for i in range(0, len(w.people), 3):
        house = [w.accounts["splitwise", p.id].id for p in w.people[i : i + 3]]
        group = m.Group.create_save(user_id=house[0], name="Apartment", created_at=w.ago(150, 200))
        for member in house:
            m.GroupMember.create_save(group_id=group.id, user_id=member)
        for _ in range(w.some(18)):
            _expense(w, house, w.rng.choice(house), group.id)
    for person in w.people:
        near = [w.accounts["splitwise", p.id].id for p in w.near[person.id]]
        for other in w.weighted(near, w.some(12)):
            _expense(
                w,
                [w.accounts["splitwise", person.id].id, other],
                other if w.rng.random() < 0.5 else w.accounts["splitwise", person.id].id,
                None,
            )
            if w.rng.random() < 0.9:
                me = w.accounts["splitwise", person.id]
                m.Payment.create_save(
                    user_id=me.id,
                    payer_id=me.id,
                    receiver_id=other,
                    amount=float(w.rng.randint(3, 60)),
                    description=w.rng.choice(PURPOSES),
                    created_at=w.ago(1, 100),
                )


def _expense(w: World, members: list[int], payer: int, group: int | None) -> None:
    """One expense paid by ``payer`` and owed by the other members in equal shares of whole dollars."""
    m, debtors, moment = w.models["splitwise"], [p for p in members if p != payer], w.ago(1, 120)
    share = w.rng.randint(2, 30)
    expense = m.Expense.create_save(
        user_id=payer,
        payer_id=payer,
        debtor_ids=debtors,
        group_id=group,
        description=w.rng.choice(PURPOSES),
        amount=float(share * len(debtors)),
        created_at=moment,
    )
    for debtor in debtors:
        m.ExpenseShare.create_save(
            expense_id=expense.id, debtor_id=debtor, share_amount=float(share), created_at=moment
        )
