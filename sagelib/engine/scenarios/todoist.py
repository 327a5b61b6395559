"""Todoist: tasks of all projects, of the inbox, or only the open ones."""

from scenario import Action, App, Filter, Question, Source

TASK = """SELECT t.id, t.title, t.priority, substr(t.due_date, 1, 10) AS due, t.duration, t.is_completed, t.priority = 'high' AS high
    FROM tasks t JOIN projects p ON p.id = t.project_id WHERE p.user_id = :me {where} ORDER BY t.id"""
ALL = (
    "[row for p in pages(apis.todoist.show_projects, access_token=token) for row in "
    'apis.todoist.show_tasks(project_id=p["project_id"], {extra}access_token=token)["no_section_tasks"]]'
)
TASK_ID = 'task_id=row["task_id"], '

APP = App(
    "todoist",
    sources=[
        Source("tasks", "tasks in Todoist", ALL.format(extra=""), TASK.format(where="")),
        Source(
            "open_tasks",
            "open tasks in Todoist",
            ALL.format(extra="is_completed=False, "),
            TASK.format(where="AND NOT t.is_completed"),
        ),
        Source(
            "inbox_tasks",
            "tasks in my Todoist inbox",
            'apis.todoist.show_tasks(project_id=0, access_token=token)["no_section_tasks"]',
            TASK.format(where="AND p.is_inbox"),
        ),
    ],
    filters=[
        Filter("with_priority", "with {value} priority", "priority", 'row["priority"] == value', "priority", "is"),
        Filter("due_on", "due on {value}", "date", 'row["due_date"][:10] == value', "due", "is"),
        Filter("with_word", "whose title has {value}", "word", 'value in row["title"]', "title", "has"),
        Filter("longer_than", "longer than {value} minutes", "length", 'row["duration"] > value', "duration", "over"),
    ],
    actions=[
        Action(
            "complete",
            "Complete",
            f"apis.todoist.update_task({TASK_ID}is_completed=True, access_token=token)",
            "todoist.Task",
            "updated",
            sets=(("is_completed", True),),
            needs=(("is_completed", 0),),
        ),
        Action("delete", "Delete", f"apis.todoist.delete_task({TASK_ID}access_token=token)", "todoist.Task", "removed"),
        Action(
            "raise",
            "Raise",
            f'apis.todoist.update_task({TASK_ID}priority="high", access_token=token)',
            "todoist.Task",
            "updated",
            sets=(("priority", "high"),),
            needs=(("high", 0),),
            tail="to high priority",
        ),
    ],
    questions=[
        Question("count", "How many {rows} are there?", "return len(rows)", len),
        Question(
            "total",
            "What is the total length in minutes of all {rows}?",
            'return sum(row["duration"] for row in rows)',
            lambda rows: sum(row["duration"] for row in rows),
        ),
    ],
    families="""
        train        complete  open_tasks   with_priority  note
        train        complete  open_tasks   due_on         direct
        demos        complete  inbox_tasks  with_word      direct
        demos        delete    inbox_tasks  with_priority  direct
        train        delete    tasks        with_word      note
        demos        raise     tasks        due_on         text
        demos        raise     inbox_tasks  with_word      direct
        train        count     tasks        due_on         direct
        demos        count     open_tasks   longer_than    direct
        demos        total     inbox_tasks  with_priority  direct
        train        total     tasks        longer_than    direct
        train        complete  inbox_tasks  due_on         direct
        train        complete  open_tasks   longer_than    direct
        train        count     open_tasks   with_priority  direct
        train        count     open_tasks   with_word      direct
        train        count     tasks        longer_than    direct
        train        delete    tasks        due_on         text
        train        delete    tasks        longer_than    direct
        train        total     inbox_tasks  due_on         note
        train        total     inbox_tasks  with_word      text
        train        total     tasks        with_word      direct
        train        complete  inbox_tasks  with_word      note
        train        delete    inbox_tasks  with_priority  note
        train        raise     tasks        due_on         direct
        train        raise     inbox_tasks  with_word      note
        train        total     inbox_tasks  with_priority  note
        dev          raise     tasks        with_word      direct
        dev          delete    inbox_tasks  with_word      note
        test_normal  complete  open_tasks   with_word      direct
        test_normal  delete    inbox_tasks  due_on         direct
        test_normal  total     tasks        due_on         note
        test_normal  count     tasks        with_word      direct
        test_normal  count     open_tasks   due_on         note
        test_normal  raise     inbox_tasks  due_on         note
        test_normal  complete  inbox_tasks  with_priority  direct
    """,
)
