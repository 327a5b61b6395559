"""Phone: alarms, contacts and text messages."""

from scenario import Action, App, Filter, Question, Source

APP = App(
    "phone",
    sources=[
        Source(
            "alarms",
            "alarms on my phone",
            "pages(apis.phone.show_alarms, access_token=token)",
            "SELECT id, label, time, snooze_minutes, enabled FROM alarms WHERE user_id = :me ORDER BY id",
            "alarm",
        ),
        Source(
            "active_alarms",
            "active alarms on my phone",
            '[row for row in pages(apis.phone.show_alarms, access_token=token) if row["enabled"]]',
            """SELECT id, label, time, snooze_minutes, enabled FROM alarms
               WHERE user_id = :me AND enabled = 1 ORDER BY id""",
            "alarm",
        ),
        Source(
            "contacts",
            "contacts on my phone",
            "pages(apis.phone.search_contacts, access_token=token)",
            "SELECT id, relationships FROM contacts WHERE user_id = :me ORDER BY id",
            "contact",
        ),
        Source(
            "texts",
            "text messages on my phone",
            "pages(apis.phone.search_text_messages, access_token=token)",
            """SELECT t.id, s.first_name || ' ' || s.last_name AS sender FROM user_text_messages t
               JOIN global_text_messages g ON g.id = t.global_text_message_id JOIN users s ON s.id = g.sender_id
               WHERE t.user_id = :me ORDER BY t.id""",
            "text_message",
        ),
    ],
    filters=[
        Filter("labelled", "labelled {value}", "label", 'row["label"] == value', "label", "is"),
        Filter("before", "before {value}", "time", 'row["time"] < value', "time", "under"),
        Filter(
            "snoozed",
            "with a snooze of {value} minutes",
            "snooze",
            'row["snooze_minutes"] == value',
            "snooze_minutes",
            "is",
        ),
        Filter("related", "related as {value}", "relation", 'value in row["relationships"]', "relationships", "has"),
        Filter("from_person", "from {value}", "person", 'row["sender"]["name"] == value', "sender", "is"),
    ],
    actions=[
        Action(
            "delete",
            "Delete",
            'apis.phone.delete_{item}({item}_id=row["{item}_id"], access_token=token)',
            "phone.{Item}",
            "removed",
        ),
        Action(
            "disable",
            "Disable",
            'apis.phone.update_alarm(alarm_id=row["alarm_id"], enabled=False, access_token=token)',
            "phone.Alarm",
            "updated",
            sets=(("enabled", False),),
            needs=(("enabled", 1),),
        ),
    ],
    questions=[
        Question("count", "How many {rows} are there?", "return len(rows)", len),
        Question(
            "total",
            "What is the total snooze in minutes of all {rows}?",
            'return sum(row["snooze_minutes"] for row in rows)',
            lambda rows: sum(row["snooze_minutes"] for row in rows),
        ),
    ],
    families="""
        demos        delete   alarms         labelled     direct
        train        delete   active_alarms  before       direct
        demos        delete   contacts       related      note
        demos        delete   texts          from_person  direct
        train        disable  alarms         labelled     note
        demos        disable  alarms         snoozed      direct
        demos        disable  active_alarms  before       text
        train        count    active_alarms  snoozed      note
        train        count    alarms         before       direct
        demos        count    active_alarms  labelled     direct
        train        count    contacts       related      direct
        train        count    texts          from_person  note
        demos        total    alarms         before       note
        train        total    alarms         labelled     direct
        train        delete   active_alarms  snoozed      direct
        train        total    alarms         snoozed      direct
        train        delete   alarms         labelled     note
        train        delete   contacts       related      direct
        train        delete   texts          from_person  note
        train        disable  alarms         snoozed      note
        train        disable  active_alarms  before       direct
        train        total    alarms         before       direct
        dev          disable  alarms         before       direct
        dev          disable  active_alarms  labelled     direct
        test_normal  delete   alarms         snoozed      direct
        test_normal  count    alarms         labelled     note
        test_normal  delete   alarms         before       direct
        test_normal  disable  active_alarms  snoozed      direct
        test_normal  count    alarms         snoozed      direct
        test_normal  count    active_alarms  before       note
        test_normal  delete   active_alarms  labelled     direct
    """,
)
