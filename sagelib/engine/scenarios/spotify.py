"""Spotify: songs in the library, liked or downloaded."""

from scenario import Action, App, Filter, Question, Source

SONG = """SELECT s.id, s.title, s.duration, a.name AS artist,
    EXISTS (SELECT 1 FROM song_likes l WHERE l.song_id = s.id AND l.user_id = :me) AS liked,
    EXISTS (SELECT 1 FROM user_downloaded_songs d WHERE d.song_id = s.id AND d.user_id = :me) AS downloaded,
    EXISTS (SELECT 1 FROM user_library_songs y WHERE y.song_id = s.id AND y.user_id = :me) AS saved
    FROM {table} x JOIN songs s ON s.id = x.song_id
    JOIN artists a ON a.id = json_extract(s.artist_ids, '$[0]') WHERE x.user_id = :me ORDER BY x.id"""
SONG_ID = 'song_id=row["song_id"], access_token=token)'
COUNTER = (("spotify.Song", "updated", "some"),)  # the engine keeps Song.like_count up to date

APP = App(
    "spotify",
    sources=[
        Source(
            "library_songs",
            "songs in my Spotify library",
            "pages(apis.spotify.show_song_library, access_token=token)",
            SONG.format(table="user_library_songs"),
        ),
        Source(
            "liked_songs",
            "songs I liked on Spotify",
            "pages(apis.spotify.show_liked_songs, access_token=token)",
            SONG.format(table="song_likes"),
        ),
        Source(
            "downloaded_songs",
            "songs I downloaded on Spotify",
            "pages(apis.spotify.show_downloaded_songs, access_token=token)",
            SONG.format(table="user_downloaded_songs"),
        ),
    ],
    filters=[
        Filter("by_artist", "by {value}", "artist", 'value in [a["name"] for a in row["artists"]]', "artist", "is"),
        Filter("with_word", "whose title has {value}", "word", 'value in row["title"]', "title", "has"),
        Filter("longer_than", "longer than {value} seconds", "length", 'row["duration"] > value', "duration", "over"),
    ],
    actions=[
        Action(
            "like",
            "Like",
            f"apis.spotify.like_song({SONG_ID}",
            "spotify.SongLike",
            "added",
            "song_id",
            needs=(("liked", 0),),
            also=COUNTER,
        ),
        Action(
            "unlike",
            "Unlike",
            f"apis.spotify.unlike_song({SONG_ID}",
            "spotify.SongLike",
            "removed",
            "song_id",
            needs=(("liked", 1),),
            also=COUNTER,
        ),
        Action(
            "save",
            "Save",
            f"apis.spotify.add_song_to_library({SONG_ID}",
            "spotify.UserLibrarySong",
            "added",
            "song_id",
            needs=(("saved", 0),),
            tail="to my library",
        ),
        Action(
            "remove",
            "Remove",
            f"apis.spotify.remove_song_from_library({SONG_ID}",
            "spotify.UserLibrarySong",
            "removed",
            "song_id",
            needs=(("saved", 1),),
        ),
    ],
    questions=[
        Question("count", "How many {rows} are there?", "return len(rows)", len),
        Question(
            "total",
            "What is the total length in seconds of all {rows}?",
            'return sum(row["duration"] for row in rows)',
            lambda rows: sum(row["duration"] for row in rows),
        ),
    ],
    families="""
        demos        like    library_songs     by_artist    direct
        demos        like    library_songs     with_word    note
        train        like    downloaded_songs  with_word    direct
        train        save    liked_songs       by_artist    text
        train        remove  library_songs     by_artist    note
        train        count   liked_songs       with_word    direct
        demos        total   library_songs     by_artist    direct
        train        count   downloaded_songs  longer_than  note
        demos        total   liked_songs       longer_than  direct
        demos        save    downloaded_songs  with_word    direct
        train        count   downloaded_songs  by_artist    direct
        train        count   library_songs     with_word    direct
        train        count   liked_songs       longer_than  direct
        train        like    downloaded_songs  longer_than  note
        train        remove  library_songs     with_word    note
        train        save    liked_songs       longer_than  direct
        train        total   liked_songs       with_word    direct
        train        like    library_songs     with_word    direct
        train        total   library_songs     by_artist    text
        train        save    downloaded_songs  with_word    note
        dev          total   library_songs     with_word    text
        test_normal  like    downloaded_songs  by_artist    note
        test_normal  count   library_songs     by_artist    direct
        test_normal  save    liked_songs       with_word    direct
        test_normal  total   liked_songs       by_artist    direct
        test_normal  count   downloaded_songs  with_word    note
        test_normal  count   liked_songs       by_artist    note
        test_normal  save    downloaded_songs  longer_than  note
        test_normal  save    downloaded_songs  by_artist    text
    """,
)
