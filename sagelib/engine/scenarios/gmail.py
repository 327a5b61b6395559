"""Gmail: threads in the inbox, unread ones, archived ones."""

from scenario import Action, App, Filter, Question, Source

THREAD = """SELECT t.id, t.label, t.starred, t.archived, t.read, e.subject, s.first_name || ' ' || s.last_name AS sender
    FROM user_email_threads t JOIN emails e ON e.id = json_extract(t.email_ids, '$[0]') JOIN users s ON s.id = e.sender_id
    WHERE t.user_id = :me AND t.incoming AND {where} ORDER BY t.id"""
THREAD_ID = '(email_thread_id=row["email_thread_id"], access_token=token)'
MODEL = "gmail.UserEmailThread"

APP = App(
    "gmail",
    sources=[
        Source(
            "inbox",
            "emails in my Gmail inbox",
            "pages(apis.gmail.show_inbox_threads, access_token=token)",
            THREAD.format(where="NOT t.archived"),
        ),
        Source(
            "unread",
            "unread emails in my Gmail inbox",
            "pages(apis.gmail.show_inbox_threads, read=False, access_token=token)",
            THREAD.format(where="NOT t.archived AND NOT t.read"),
        ),
        Source(
            "archive",
            "emails in my Gmail archive",
            "pages(apis.gmail.show_archived_threads, access_token=token)",
            THREAD.format(where="t.archived"),
        ),
    ],
    filters=[
        Filter(
            "from_person", "from {value}", "sender", 'value in [p["name"] for p in row["participants"]]', "sender", "is"
        ),
        Filter("about", "about {value}", "subject", 'row["subject"] == value', "subject", "is"),
        Filter("labelled", "labelled {value}", "label", 'row["label"] == value', "label", "is"),
    ],
    actions=[
        Action(
            "star",
            "Star",
            f"apis.gmail.mark_thread_starred{THREAD_ID}",
            MODEL,
            "updated",
            sets=(("starred", True),),
            needs=(("starred", 0),),
        ),
        Action(
            "archive",
            "Archive",
            f"apis.gmail.mark_thread_archived{THREAD_ID}",
            MODEL,
            "updated",
            sets=(("archived", True),),
            needs=(("archived", 0),),
        ),
        Action(
            "read",
            "Mark",
            f"apis.gmail.mark_thread_read{THREAD_ID}",
            MODEL,
            "updated",
            sets=(("read", True),),
            needs=(("read", 0),),
            tail="as read",
        ),
        Action("delete", "Delete", f"apis.gmail.delete_thread{THREAD_ID}", MODEL, "removed"),
    ],
    questions=[Question("count", "How many {rows} are there?", "return len(rows)", len)],
    families="""
        demos        star     inbox    from_person  direct
        train        star     archive  labelled     note
        train        archive  inbox    about        direct
        demos        archive  unread   labelled     direct
        demos        read     unread   from_person  text
        demos        read     unread   about        direct
        demos        delete   archive  about        note
        train        delete   inbox    labelled     direct
        train        count    inbox    labelled     text
        train        count    unread   from_person  direct
        demos        count    archive  about        direct
        train        archive  unread   about        direct
        train        archive  unread   from_person  note
        train        count    inbox    about        text
        train        count    inbox    from_person  direct
        train        delete   inbox    about        direct
        train        delete   inbox    from_person  direct
        train        delete   unread   about        note
        train        read     unread   labelled     direct
        train        star     archive  about        note
        train        star     inbox    labelled     direct
        train        star     inbox    from_person  text
        train        archive  unread   labelled     note
        train        read     unread   from_person  direct
        train        read     unread   about        text
        train        delete   archive  about        direct
        train        count    archive  about        note
        dev          delete   unread   from_person  direct
        dev          count    unread   about        text
        dev          count    unread   labelled     direct
        test_normal  star     inbox    about        direct
        test_normal  archive  inbox    from_person  note
        test_normal  count    archive  labelled     direct
        test_normal  delete   unread   labelled     note
        test_normal  delete   archive  labelled     direct
        test_normal  archive  inbox    labelled     direct
    """,
)
