"""Simple Note: all notes or the pinned ones."""

from scenario import Action, App, Filter, Question, Source

NOTE = "SELECT id, title, tags, pinned, tags = '[\"done\"]' AS done FROM notes WHERE user_id = :me {where} ORDER BY id"
NOTE_ID = 'note_id=row["note_id"], '

APP = App(
    "simple_note",
    sources=[
        Source(
            "notes",
            "notes in Simple Note",
            "pages(apis.simple_note.search_notes, access_token=token)",
            NOTE.format(where=""),
        ),
        Source(
            "pinned_notes",
            "pinned notes in Simple Note",
            "pages(apis.simple_note.search_notes, pinned=True, access_token=token)",
            NOTE.format(where="AND pinned"),
        ),
    ],
    filters=[
        Filter("tagged", "tagged {value}", "tag", 'value in row["tags"]', "tags", "has"),
        Filter("with_word", "whose title has {value}", "word", 'value in row["title"]', "title", "has"),
    ],
    actions=[
        Action(
            "delete",
            "Delete",
            f"apis.simple_note.delete_note({NOTE_ID}access_token=token)",
            "simple_note.Note",
            "removed",
        ),
        Action(
            "pin",
            "Pin",
            f"apis.simple_note.update_note({NOTE_ID}pinned=True, access_token=token)",
            "simple_note.Note",
            "updated",
            sets=(("pinned", True),),
            needs=(("pinned", 0),),
        ),
        Action(
            "unpin",
            "Unpin",
            f"apis.simple_note.update_note({NOTE_ID}pinned=False, access_token=token)",
            "simple_note.Note",
            "updated",
            sets=(("pinned", False),),
            needs=(("pinned", 1),),
        ),
        Action(
            "mark",
            "Mark",
            f'apis.simple_note.update_note({NOTE_ID}tags=["done"], access_token=token)',
            "simple_note.Note",
            "updated",
            sets=(("tags", ["done"]),),
            needs=(("done", 0),),
            tail="as done",
        ),
    ],
    questions=[Question("count", "How many {rows} are there?", "return len(rows)", len)],
    families="""
        demos        delete  notes         tagged     direct
        train        delete  pinned_notes  with_word  direct
        train        pin     notes         with_word  text
        demos        pin     notes         tagged     direct
        train        unpin   pinned_notes  tagged     direct
        demos        mark    notes         with_word  direct
        demos        mark    pinned_notes  tagged     text
        train        count   notes         with_word  direct
        demos        count   pinned_notes  tagged     direct
        train        unpin   pinned_notes  with_word  direct
        train        delete  notes         tagged     note
        train        pin     notes         tagged     text
        train        mark    notes         with_word  note
        train        mark    pinned_notes  tagged     direct
        train        count   pinned_notes  tagged     note
        dev          mark    pinned_notes  with_word  text
        test_normal  delete  notes         with_word  text
        test_normal  mark    notes         tagged     direct
        test_normal  count   notes         tagged     text
        test_normal  delete  pinned_notes  tagged     direct
        test_normal  count   pinned_notes  with_word  direct
    """,
)
