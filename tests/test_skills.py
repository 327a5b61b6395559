"""Skills: what is parsed, what is saved, and what counts as using one (sage.md section 10, complaint C59)."""
import ast
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagelib import skills
from sagelib.prompts import reply
from sagelib.skills import SkillLibrary, bound_names, called_skills, extract_code, named_skills, parse_skills

STORED = {"login", "pages"}


# ---- extract_code

@pytest.mark.parametrize("text, code", [
    ("I do it.\n```python\nx = 1\n```", "x = 1"),
    ("```py\nx = 1\n```", "x = 1"),
    ("```\nx = 1\n```", "x = 1"),
    ("```python  \nx = 1\n\n```", "x = 1\n"),
    ("```python\nx = 1\n```\nand\n```python\ny = 2\n```", "x = 1"),
    ("```json\n{}\n```\nThen:\n```python\nx = 1\n```", "x = 1"),          # not the prose between two fences
    ("```json\n{}\n```", None),
    ("no code at all", None),
    ("```python\n```", None),
    ("```python\n  \n```", None),
    ("```python\nx = 1", None),                                        # never closed: perhaps cut off
    ("", None),
])
def test_extract_code(text, code):
    assert extract_code(text) == code


NO_FENCE = st.text(max_size=200).filter(lambda text: "`" not in text)


@given(NO_FENCE, NO_FENCE.filter(str.strip))
@settings(max_examples=200)
def test_code_survives_a_reply(thought, code):
    assert extract_code(reply(thought, code)) == code


# ---- parse_skills

def test_a_skill_is_its_source_with_the_imports_in_front():
    code = "import re\nfrom json import loads as l\nx = 1\ndef f(a):\n    # why\n    return re.sub('é', 'e', a)\nf('é')"
    head = "import re\nfrom json import loads as l\n"
    assert parse_skills(code) == {"f": head + "def f(a):\n    # why\n    return re.sub('é', 'e', a)"}


@pytest.mark.parametrize("code, names", [
    ("import os\nfrom re import sub", []),                                  # imports only
    ("async def f():\n    pass", []),
    ("@cached\ndef f():\n    pass", []),
    ("class A:\n    def f(self):\n        pass", []),
    ("if True:\n    def f():\n        pass", []),
    ("def f():\n    def g():\n        pass\n    return g", ["f"]),            # a nested function belongs to its parent
    ("def f():\n    pass\ndef g():\n    pass", ["f", "g"]),
    ("def print(x):\n    pass", []),
    ("def apis():\n    pass", []),
    ("def get_ipython():\n    pass", []),
    ("def __init__():\n    pass", []),
    ("def f(:\n    pass", []),                                              # does not parse
    ("f = lambda: 1", []),
    ("x = 1\x00", []),
    ("(" * 5000 + ")" * 5000, []),                                         # too deep for the parser
    ("-" * 100_000 + "1", []),
    ("exec('def f(): pass')", []),
    ("", []),
])
def test_what_is_a_skill(code, names):
    assert list(parse_skills(code)) == names


def test_a_huge_skill_is_left_out_and_its_neighbour_kept():
    huge = "def huge():\n" + "    x = 1\n" * 2000
    assert list(parse_skills(huge + "def small():\n    return 1")) == ["small"]
    edge = "def f():\n    return '" + "x" * (skills.MAX_SKILL_CHARS - 22) + "'"
    assert len(edge) == skills.MAX_SKILL_CHARS and list(parse_skills(edge)) == ["f"]
    assert parse_skills(edge.replace("xx'", "xxx'")) == {}


def test_the_last_of_two_definitions_wins():
    assert parse_skills("def f():\n    return 1\ndef g():\n    return f()\ndef f():\n    return 2") == {
        "g": "def g():\n    return f()", "f": "def f():\n    return 2"}


PYTHON_LIKE = st.lists(st.sampled_from(
    ["def ", "f", "login", "(", ")", ":", "\n", "    ", "\t", "return ", "import ", "from ", "async ", "@", "class ",
     "'", '"""', "\\", "#", "1", "=", ",", "é", "\x0c", "\r", "\u2028", "\x00", "lambda ", "match ", "case ", "f'",
     "{", "}", "```", "python"]),
    max_size=40).map("".join)


@given(st.text(max_size=300) | PYTHON_LIKE)
@settings(max_examples=500)
def test_no_text_makes_the_parsers_raise(text):
    for name, source in parse_skills(text).items():
        assert name in {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert called_skills(text, STORED) <= STORED
    assert called_skills(text, set()) == set()
    assert extract_code(text) is None or extract_code(text).strip()
    assert not called_skills(text, STORED) & bound_names(text)


IDENTIFIERS = st.text(string.ascii_lowercase, min_size=3, max_size=8).map("k_".__add__)


@given(st.sets(IDENTIFIERS, max_size=6), st.sets(IDENTIFIERS, max_size=6))
@settings(max_examples=100)
def test_exactly_the_called_and_stored_names_are_used(stored, called):
    code = "\n".join(f"{name}(1)" for name in sorted(called))
    assert called_skills(code, stored) == stored & called


# ---- called_skills

@pytest.mark.parametrize("code, used", [
    ("login('spotify')", {"login"}),
    ("x = [a for a in pages(api, token=login('x'))]", {"login", "pages"}),
    ("print(login)", set()),                                                # mentioned, not called
    ("f = login", set()),
    ("# login('spotify')", set()),
    ("print(\"login('spotify')\")", set()),
    ('"""login(1)"""', set()),
    ("f'{login(1)}'", {"login"}),                                          # an f-string does call
    ("apis.spotify.login(username='a')", set()),                            # an attribute of the same name
    ("x.login.pages()", set()),
    ("def login(app):\n    return 1\nlogin('x')", set()),                     # redefined, then called
    ("login('x')\ndef login(app):\n    return 1", set()),
    ("async def login(app):\n    return 1\nlogin('x')", set()),
    ("class login:\n    pass\nlogin()", set()),
    ("login = print\nlogin('x')", set()),
    ("from auth import login\nlogin('x')", set()),
    ("import x.y as login\nlogin('x')", set()),
    ("for login in fs:\n    login()", set()),
    ("with a as login:\n    login()", set()),
    ("(login := print)(1)", set()),
    ("f = lambda login: login()", set()),
    ("try:\n    x\nexcept E as login:\n    login()", set()),
    ("match x:\n    case login:\n        login()", set()),
    ("match x:\n    case [*login]:\n        login()", set()),
    ("match x:\n    case {**login}:\n        login()", set()),
    ("def login(app):\n    return 1\npages(login)", {"pages"}),               # only the redefined one is out
    ("def like(v):\n    t = login('x')\nlike('v')", {"login"}),
    ("login('x'", set()),                                                  # does not parse
    ("other()", set()),
])
def test_use_is_a_real_call_of_a_stored_function(code, used):
    assert called_skills(code, STORED) == used


# ---- SkillLibrary

def test_save_adds_and_overwrites_by_name_and_keeps_the_order_of_first_definition():
    library = SkillLibrary()
    assert library.save("def a():\n    return 1\ndef b():\n    return a()") == ("a", "b")
    assert library.save("def a():\n    return 2\nx = a()") == ("a",)
    assert library.save("x = b()") == ()
    assert list(library) == [("a", "def a():\n    return 2"), ("b", "def b():\n    return a()")]
    assert len(library) == 2 and "a" in library and "c" not in library
    scope: dict = {}
    for _, source in library:                                              # one by one, as `load_skills` does
        exec(source, scope)
    assert scope["b"]() == 2


def test_snapshots_are_copies():
    library = SkillLibrary({"a": "A", "b": "B"})
    snapshot = library.snapshot()
    library.save("def c():\n    pass")
    assert snapshot == {"a": "A", "b": "B"} and len(library) == 3


# ---- named_skills, the looser detector

@pytest.mark.parametrize("code, used", [
    ("login('x')", {"login"}),
    ("# login and pages", {"login", "pages"}),                             # a mention is enough
    ("print('login()')\nx.pages()", {"login", "pages"}),
    ("def login(app):\n    return 1\nlogin('x')", set()),                    # redefined
    ("login_again()", set()),                                              # part of a longer name
    ("x = ", set()),
])
def test_named_skills(code, used):
    assert named_skills(code, STORED) == used


@given(st.text(max_size=80))
@settings(max_examples=200)
def test_every_call_is_a_mention(text):
    for code in (text, "login()\n" + text):
        assert called_skills(code, STORED) <= named_skills(code, STORED) <= STORED
