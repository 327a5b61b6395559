"""Executable skills: Python functions that the agent wrote, kept when their block ran without error (SAGE, section 3).

The four operations of the paper: *generate* (define and call in one block), *use* (call a stored one), *update* (after
an error, define it again), *save* (`SkillLibrary.save`, overwriting by name). One library belongs to one copy of a chain.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings

PROTECTED = frozenset(dir(builtins)) | {"apis", "get_ipython", "In", "Out", "requester"}
MAX_SKILL_CHARS = 4000
_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(?:\n)?```", re.DOTALL)


def extract_code(text: str) -> str | None:
    """The first fenced Python block of a reply, or None. An unclosed fence is no block (it may be cut off)."""
    for language, code in _BLOCK.findall(text):  # blocks of other languages too: no closing fence is read as an opening
        if language.strip().lower() in ("", "python", "py"):
            return code if code.strip() else None
    return None


def _parse(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "1if x": the agent's matter, not the user's
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parse_skills(code: str) -> dict[str, str]:
    """Top-level ``def``s of a block as {name: source}, in order, each with the top-level imports in front.

    Left out: names that would shadow builtins or the engine (`PROTECTED`), private names, coroutines, decorated
    functions (the decorator may not exist in the next world) and functions over `MAX_SKILL_CHARS`. Nested functions
    belong to their parent. A block that does not parse has no skills.
    """
    tree = _parse(code)
    if tree is None:
        return {}
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    skills: dict[str, str] = {}
    for node in tree.body:
        if (
            not isinstance(node, ast.FunctionDef)
            or node.decorator_list
            or node.name in PROTECTED
            or node.name.startswith("_")
        ):
            continue
        source = "\n".join([*imports, ast.get_source_segment(code, node) or ast.unparse(node)])
        if len(source) <= MAX_SKILL_CHARS:
            skills.pop(node.name, None)
            skills[node.name] = source
    return skills


def bound_names(code: str) -> set[str]:
    """Names that a block binds anywhere (def, class, import, assignment): calling one of them is not using a skill."""
    tree = _parse(code)
    if tree is None:
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
    return names


def called_skills(code: str, stored: set[str]) -> set[str]:
    """Stored skills that the block calls by name (``ast.Call`` of a plain name), and does not bind itself.

    Stricter than the released code's text match: a name in a comment, a string, an attribute (``x.login()``) or a mere
    mention does not count. Calls inside a function that is only defined do count as code of the block.
    """
    tree = _parse(code)
    if tree is None:
        return set()
    calls = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    return (calls & stored) - bound_names(code)


def named_skills(code: str, stored: set[str]) -> set[str]:
    """Stored skills whose name stands anywhere in the text of the block, and that the block does not bind itself.

    SAGE's own detector, as reviews of its code describe it: a mention in a comment or a string counts as use.
    """
    return (set(re.findall(r"\w+", code)) & stored) - bound_names(code)


DETECTORS = {"strict": called_skills, "name_match": named_skills}


class SkillLibrary:
    """Skills of one copy of a chain: name -> source, in order of first definition (a caller follows its callees)."""

    def __init__(self, skills: dict[str, str] | None = None) -> None:
        self._skills: dict[str, str] = dict(skills or {})

    def save(self, code: str) -> tuple[str, ...]:
        """Add or overwrite the skills of a block that ran without error. Returns their names."""
        new = parse_skills(code)
        self._skills.update(new)
        return tuple(new)

    def snapshot(self) -> dict[str, str]:
        return dict(self._skills)

    def __len__(self) -> int:
        return len(self._skills)

    def __contains__(self, name: str) -> bool:
        return name in self._skills

    def __iter__(self):
        return iter(self._skills.items())
