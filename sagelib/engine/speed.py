"""The engine made cheaper at run time, without changing what an episode or a judge sees.

`patch()` replaces functions of the installed package in this process only; each replacement says why it is exact. Used by
the server (episodes and judge) and by the generator; tests/test_speed.py plays tasks with and without it and compares
outputs, API calls, saved states and verdicts.
"""

import ast
import contextvars
import functools
import io
import signal
import sys
from urllib.parse import unquote

SIMPLE = frozenset(
    """Module Expr Assign AugAssign AnnAssign For While If With withitem Raise Try ExceptHandler Assert Import ImportFrom
    alias Pass Break Continue FunctionDef arguments arg keyword Return Delete Lambda IfExp BoolOp NamedExpr BinOp UnaryOp
    Dict Set List Tuple ListComp SetComp DictComp GeneratorExp comprehension Compare Call FormattedValue JoinedStr
    Constant Attribute Subscript Starred Name Slice Load Store Del And Or Add Sub Mult Div Mod Pow FloorDiv Not USub UAdd
    Eq NotEq Lt LtE Gt GtE Is IsNot In NotIn""".split()
)  # what agents write; the engine's own check decides about code with anything else in it
DEPTH = 40  # levels of syntax; the engine's check recurses, and must not be replaced where it would run out of stack
QUOTES = 40  # in one string constant: adjacent literals are one constant for us, one level each for the engine's check


def patch() -> None:
    """Apply every patch to this process; twice is once."""
    import rows
    from appworld import requester

    if hasattr(requester, "_sagelib_speed"):
        return
    requester._sagelib_speed = True
    rows.patch()
    _remember_engines()
    _share_statements()
    _keep_main_app()
    _serve_inline()
    _check_syntax_quickly()
    _open_databases_once()


# ---------------------------------------------------------------- databases


def _remember_engines() -> None:
    """Make switching between two open databases cheap: the engine renders a URL for every switch, hundreds a task.

    What is remembered sits on the SQLAlchemy engine itself and so goes away with it.
    """
    from appworld.apps.model_lib import Database

    slow = Database._get_engine_to_details

    def details(engine) -> tuple:
        if not hasattr(engine, "_details"):
            engine._details = slow(engine)
        return engine._details

    Database._get_engine_to_details = staticmethod(details)


class _Statements(dict):
    """Compiled SQL by statement, for all databases: SQLAlchemy's keys start with the dialect, one object per database.

    All our dialects are the same SQLite in the same configuration, so their compiled statements are interchangeable.
    """

    def get(self, key: tuple):
        return super().get(key[1:])

    def __setitem__(self, key: tuple, compiled) -> None:
        if len(self) >= 5000:  # far above what the apps can ask for: an agent must not fill the memory with statements
            self.clear()
        super().__setitem__(key[1:], compiled)


def _share_statements() -> None:
    """Every opened world has new SQLAlchemy engines, which would compile the same statements again."""
    from appworld.apps import model_lib

    slow, statements = model_lib.get_db_engine, _Statements()

    def engine_of(path: str):
        engine = slow(path)
        engine._compiled_cache = statements
        return engine

    model_lib.get_db_engine = engine_of


def _open_databases_once() -> None:
    """AppWorld() opens the task's databases, start and end, then closes all, and opens the end state again: skip the first.

    Nothing reads them in between. Whoever uses the start state later (evaluation) opens it by `reset_db_home_path`.
    """
    from appworld import AppWorld
    from appworld.collections.models import ModelCollection

    start, initialize, opened = AppWorld.__init__, AppWorld.initialize, ModelCollection.reset_db_home_path
    skip = []

    def init(self, *args, **kwargs) -> None:
        skip.append(True)
        try:
            start(self, *args, **kwargs)
        finally:
            skip.clear()

    def initialized(self) -> None:
        skip.clear()
        initialize(self)

    def reset(self, create_db: bool = False) -> None:
        if not skip:
            opened(self, create_db)

    AppWorld.__init__, AppWorld.initialize, ModelCollection.reset_db_home_path = init, initialized, reset


# ---------------------------------------------------------------- what a fork can find ready


def freeze_clock() -> None:
    """Freeze this process's clock for good, so that a world's own freezing finds every module patched already.

    freezegun looks through all modules when the first of nested freezings starts; the innermost one tells the time.
    """
    from appworld.apps.api_lib import set_local_date_and_time
    from appworld.common.constants import DEFAULT_SYSTEM_DATETIME

    set_local_date_and_time(DEFAULT_SYSTEM_DATETIME)


def keep_shell() -> None:
    """Make the IPython shell of the next world now: the next one that this process or a fork of it opens gets it, unused."""
    from appworld import environment
    from traitlets.config.loader import Config

    make, config, hook = environment.InteractiveShellEmbed, Config(), sys.excepthook
    config.HistoryManager.enabled = False  # as AppWorld.__init__ has it
    spare = [make(config=config)]
    sys.excepthook = hook  # the same there
    environment.InteractiveShellEmbed = lambda config: spare.pop() if spare else make(config=config)


# ---------------------------------------------------------------- API calls


def _keep_main_app() -> None:
    """The FastAPI app over all apps has no state of its own; the engine builds it again for every world."""
    from appworld import requester

    requester.build_main_app = functools.cache(requester.build_main_app)


def _serve_inline() -> None:
    """Answer API calls in the calling thread: no event loop, no worker threads, no hand-over between them.

    The apps' handlers never wait, so their coroutines run to the end in one go. Work that FastAPI would hand to a thread
    runs in a copy of the context, as there. A time-out (SIGALRM) waits until the call has ended: so far it left a thread
    in the middle of the call, now it finds the databases whole. The call has a recursion limit of its own, as a thread has.
    """
    import anyio.to_thread
    import starlette.concurrency
    from starlette.testclient import TestClient, _TestClientTransport

    async def direct(function, *args, **kwargs):
        return contextvars.copy_context().run(function, *args, **kwargs)

    async def run_sync(function, *args, **options):
        return contextvars.copy_context().run(function, *args)

    for slow, fast in ((starlette.concurrency.run_in_threadpool, direct), (anyio.to_thread.run_sync, run_sync)):
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is slow:
                    setattr(module, name, fast)
    TestClient.__enter__ = lambda self: self
    TestClient.__exit__ = lambda self, *_: None
    _TestClientTransport.handle_request = _handle


def _handle(transport, request):
    """starlette's `_TestClientTransport.handle_request` for HTTP, run to its end at once."""
    import httpx

    url = request.url
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "path": unquote(url.path),
        "raw_path": url.raw_path,
        "root_path": transport.root_path,
        "scheme": url.scheme,
        "query_string": url.query,
        "headers": [(key.lower().encode(), value.encode()) for key, value in request.headers.multi_items()],
        "client": ["testclient", 50000],
        "server": [url.netloc.decode(), 80],
        "extensions": {"http.response.debug": {}},
        "state": transport.app_state.copy(),
    }
    answer, body = {}, io.BytesIO()

    async def receive() -> dict:
        return {"type": "http.request", "body": request.read()}

    async def send(message: dict) -> None:
        if message["type"] == "http.response.start":
            answer["status_code"] = message["status"]
            answer["headers"] = [(key.decode(), value.decode()) for key, value in message.get("headers", [])]
        elif message["type"] == "http.response.body":
            body.write(message.get("body", b""))

    run_to_end(transport.app(scope, receive, send))
    return httpx.Response(**answer, stream=httpx.ByteStream(body.getvalue()), request=request)


def run_to_end(coroutine) -> None:
    """Run a coroutine that never waits. The time-out's signal is held back, the recursion limit counts from here."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(2 * limit)
    try:
        coroutine.send(None)
    except StopIteration:
        return
    finally:
        sys.setrecursionlimit(limit)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    raise RuntimeError("an API call waits for something; it cannot be answered in place")


# ---------------------------------------------------------------- the syntax check


def _check_syntax_quickly() -> None:
    """The engine parses code twice with libcst to find forbidden calls; most code cannot hold one, by its names alone.

    Whatever is not plainly harmless goes to the engine's own check, which alone can refuse (and whose errors stay).
    """
    from appworld.common.safety_guard import ALLOWED_MODULE_NAMES, DISALLOWED_FUNCTION_PATHS, SafetyGuard

    slow = SafetyGuard.is_syntax_safe
    forbidden = [frozenset(path.removeprefix("builtins.").split(".")) for path in DISALLOWED_FUNCTION_PATHS]

    def check(self, code: str) -> tuple[bool, str]:
        names = harmless_names(code, ALLOWED_MODULE_NAMES)
        if names is None or any(path <= names for path in forbidden):
            return slow(self, code)
        return True, ""

    SafetyGuard.is_syntax_safe = check


def harmless_names(code: str, modules: set[str]) -> set[str] | None:
    """Every name in simple code; None when it is not simple or imports other modules than these."""
    if "\\\n" in code or not all(mark >= " " or mark == "\n" for mark in code):
        return None
    try:
        level = [ast.parse(code)]
    except Exception:
        return None
    names, lines = set(), code.split("\n")
    for _ in range(DEPTH):
        for node in level:
            kind = type(node).__name__
            if kind not in SIMPLE or not _plain(node, kind, lines, names, modules):
                return None
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return names
    return None


def _plain(node: ast.AST, kind: str, lines: list[str], names: set[str], modules: set[str]) -> bool:
    """Whether one node is harmless; the names it brings are added."""
    if kind == "Name":
        names.add(node.id)
    elif kind == "Attribute":
        names.add(node.attr)
    elif kind in ("Import", "ImportFrom"):
        paths = [node.module or ""] if kind == "ImportFrom" else [alias.name for alias in node.names]
        names.update(part for path in paths for part in path.split("."))
        names.update(part for alias in node.names for part in alias.name.split("."))
        return all(path.split(".")[0] in modules for path in paths) and all(a.name != "*" for a in node.names)
    elif kind in ("Constant", "JoinedStr"):
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        return len(text) < QUOTES or text.count('"') + text.count("'") < QUOTES
    return True
