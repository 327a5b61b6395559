"""Reads of one table without SQLAlchemy's query machinery, which costs the engine ten times what SQLite does.

Most queries of the apps ask for the rows whose fields equal plain numbers or words (`by_id`, `find_one`, `find_all`). The
first of a kind goes SQLAlchemy's way and shows what a record looks like; for the next ones the same SQL text is run on the
same connection, and the records are put together as SQLAlchemy's loader does. Anything unusual goes SQLAlchemy's way.
"""

import sqlite3
from dataclasses import dataclass
from typing import Any

from appworld.apps.model_lib import SQLModel
from sqlalchemy import inspect
from sqlalchemy.orm.base import instance_state
from sqlmodel import select

PLANS: dict[tuple, "Plan | None"] = {}  # by model and the names of the fields; None: this kind always goes the slow way
MOST = 400  # values of one IN
OWN = ("class_", "manager", "obj", "committed_state", "expired_attributes", "key")  # each record's state has its own


@dataclass(frozen=True)
class Plan:
    """How to read one kind of query."""

    sql: str
    columns: tuple  # (attribute, position in the row, conversion or None), in the order of a loaded record's __dict__
    id_position: int
    identity: type
    manager: Any
    state: dict  # what the loader leaves on every record's state


def patch() -> None:
    """Replace the three finders of every model."""
    by_id, find_one, find_all = (getattr(SQLModel, name).__func__ for name in ("by_id", "find_one", "find_all"))

    def quick_by_id(cls, id):
        records = read(cls, {"id": id}, one=True)
        if records is None:
            return learn(cls, {"id": id}, by_id(cls, id))
        return records[0] if records else None

    def quick_find_one(cls, from_records=None, **kwargs):
        records = read(cls, kwargs, one=True) if from_records is None else None
        if records is None:
            record = find_one(cls, from_records, **kwargs)
            return learn(cls, kwargs, record) if from_records is None else record
        return records[0] if records else None

    def quick_find_all(cls, from_records=None, **kwargs):
        records = read(cls, kwargs) if from_records is None else None
        if records is None:
            records = find_all(cls, from_records, **kwargs)
            if from_records is None and records:
                learn(cls, kwargs, records[0])
        return records

    SQLModel.by_id = classmethod(quick_by_id)
    SQLModel.find_one = classmethod(quick_find_one)
    SQLModel.find_all = classmethod(quick_find_all)


def plain(value: Any) -> bool:
    """A value that SQLite takes as it is."""
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    return type(value) is str and value.isascii()


def read(cls: type, kwargs: dict, one: bool = False) -> list | None:
    """The records whose fields have these values (only the first when `one`); None when the slow way has to decide."""
    plan = PLANS.get((cls, *kwargs))
    if plan is None or cls.db.storage_type != "memory":
        return None
    values, sql = [], plan.sql
    for name, value in kwargs.items():
        if name != "id__in":
            values.append(value)
        elif type(value) in (list, set, tuple) and 0 < len(value) <= MOST:
            values += value
            sql = sql.replace("IN (?)", f"IN ({', '.join('?' * len(value))})")
        else:
            return None
    if not all(map(plain, values)):
        return None
    try:
        cursor = cls.db.connection.execute(sql, values)
        rows = ([row] if (row := cursor.fetchone()) else []) if one else cursor.fetchall()
        cursor.close()
        cls.db.connection.rollback()  # as the end of a session does
    except sqlite3.Error:
        return None  # the slow way fails in its own words
    return [record(plan, row) for row in rows]


def record(plan: Plan, row: tuple) -> SQLModel:
    """The record of a row, as SQLAlchemy's `loading._instance` leaves it when its session has been closed."""
    instance = plan.manager.new_instance()
    state = instance_state(instance)
    state.key = (plan.identity, (row[plan.id_position],), None)
    vars(state).update(plan.state)
    values = instance.__dict__
    for name, position, convert in plan.columns:
        values[name] = row[position] if convert is None else convert(row[position])
    instance.set_db_home_path()
    return instance


def learn(cls: type, kwargs: dict, loaded: SQLModel | None) -> SQLModel | None:
    """Make the plan of this kind of query from a record that SQLAlchemy has loaded; returns the record."""
    kind = (cls, *kwargs)
    if loaded is not None and kind not in PLANS and cls.db.storage_type == "memory":
        PLANS[kind] = _plan(cls, tuple(kwargs), loaded)
    return loaded


def _plan(cls: type, names: tuple[str, ...], loaded: SQLModel) -> Plan | None:
    mapper, dialect, table = inspect(cls), cls.db.engine.dialect, cls.__table__
    stored = {"id", *cls.field_names(keep_computed=False, keep_relations=False)}
    fields = ["id" if name == "id__in" else name for name in names]
    if not names or not all(f in stored and f in table.columns for f in fields) or mapper.class_manager.dispatch.load:
        return None
    if any(table.columns[field].type._cached_bind_processor(dialect) for field in fields):
        return None  # values would have to be converted
    statement = select(cls)
    for name, field in zip(names, fields, strict=True):
        column = getattr(cls, field)
        statement = statement.where(column.in_([0]) if name == "id__in" else column == 0)
    sql = str(statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True}))
    order = [column.name for column in table.columns]
    attributes = [name for name in loaded.__dict__ if name != "_sa_instance_state"]
    if sorted(attributes) != sorted(order) or sql.count("?") != len(names):
        return None
    columns = tuple(
        (name, order.index(name), table.columns[name].type._cached_result_processor(dialect, None)) for name in attributes
    )
    state = instance_state(loaded)
    kept = {name: value for name, value in vars(state).items() if name not in OWN}
    return Plan(sql, columns, order.index("id"), mapper._identity_class, mapper.class_manager, kept)
