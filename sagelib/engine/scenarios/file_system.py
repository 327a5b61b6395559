"""File system: files of three folders; rows are paths."""

from scenario import Action, App, Filter, Question, Source

FILE = """SELECT f.id, f.path, d.path || 'backup/' || replace(f.path, d.path || '{folder}/', '') AS backup
    FROM files f JOIN users u ON u.id = f.user_id JOIN directories d ON d.user_id = u.id AND d.path = '/home/' || lower(u.first_name) || '/'
    WHERE f.user_id = :me AND f.path LIKE d.path || '{folder}/%' ORDER BY f.id"""


def _folder(name: str) -> Source:
    """The files of one folder of the home directory."""
    return Source(
        name,
        f"files in my {name} folder",
        f'apis.file_system.show_directory(directory_path="~/{name}", access_token=token)',
        FILE.format(folder=name),
    )


APP = App(
    "file_system",
    sources=[_folder("documents"), _folder("downloads"), _folder("photos")],
    filters=[
        Filter("ending_in", "ending in {value}", "ending", "row.endswith(value)", "path", "ends"),
        Filter("with_word", "whose name has {value}", "word", "value in row", "path", "has"),
    ],
    actions=[
        Action(
            "delete",
            "Delete",
            "apis.file_system.delete_file(file_path=row, access_token=token)",
            "file_system.File",
            "removed",
            also=(("file_system.Directory", "updated", "some"),),
        ),
        Action(
            "copy",
            "Copy",
            'apis.file_system.copy_file(source_file_path=row, destination_file_path="~/backup/" + row.split("/")[-1], access_token=token)',
            "file_system.File",
            "added",
            "path",
            "backup",
            also=(("file_system.Directory", "updated", "some"),),
            tail="to my backup folder",
        ),
    ],
    questions=[Question("count", "How many {rows} are there?", "return len(rows)", len)],
    families="""
        demos        delete  documents  ending_in  direct
        demos        delete  downloads  with_word  note
        train        delete  photos     ending_in  text
        train        copy    documents  with_word  direct
        demos        copy    photos     ending_in  direct
        train        copy    downloads  ending_in  note
        demos        count   downloads  ending_in  direct
        train        count   photos     with_word  direct
        train        count   documents  with_word  direct
        train        delete  downloads  with_word  direct
        train        count   downloads  ending_in  note
        dev          count   downloads  with_word  note
        dev          delete  photos     with_word  note
        test_normal  delete  documents  with_word  direct
        test_normal  copy    photos     with_word  note
        test_normal  count   documents  ending_in  direct
        test_normal  copy    documents  ending_in  note
        test_normal  copy    downloads  with_word  direct
        test_normal  delete  downloads  ending_in  note
        test_normal  count   photos     ending_in  direct
    """,
)
