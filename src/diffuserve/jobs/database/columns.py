"""Declarations of columns: of the few kinds that the tables have, and of those of a record."""

from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_type_hints

import sqlalchemy as sa

HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}
"""For rows that change all the time: free space for updates in place, early vacuums (PostgreSQL only)."""


def text(name: str, *, null: bool = False, **options: object) -> sa.Column[str]:
    """Declare a column of text."""
    return sa.Column(name, sa.Text, nullable=null, **options)  # type: ignore[arg-type]


def double(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[float]:
    """Declare a column of seconds and other real numbers."""
    return sa.Column(name, sa.Double, nullable=null, server_default=default)


def number(name: str, *, null: bool = False) -> sa.Column[int]:
    """Declare a column of whole numbers."""
    return sa.Column(name, sa.BigInteger, nullable=null)


def count(name: str) -> sa.Column[int]:
    """Declare a column of whole numbers that begin at 0."""
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def flag(name: str) -> sa.Column[bool]:
    """Declare a column of truth values, false by default."""
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> sa.Index:
    """Declare an index of those rows that meet a condition."""
    condition = sa.text(where)
    return sa.Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def columns_of(record: type) -> list[sa.Column[Any]]:
    """Declare a column for each field of a record: `id` is the key, and `X | None` may be null."""
    defaults = {field.name: field.default for field in fields(record)}
    return [_column_of(name, hint, defaults[name]) for name, hint in get_type_hints(record).items()]


def _column_of(name: str, hint: Any, default: object) -> sa.Column[Any]:
    kinds = set(get_args(hint) or (hint,))
    null = NoneType in kinds
    (kind,) = kinds - {NoneType}
    if issubclass(kind, bool):  # before int, of which bool is a subclass
        return flag(name)
    if issubclass(kind, int):
        return number(name, null=True) if null else count(name)
    if issubclass(kind, float):
        return double(name, null=null, default="0" if default == 0.0 else None)
    return text(name, null=null, primary_key=name == "id")
