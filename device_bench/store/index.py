"""The index beside the results: SQLite, a cache and never the truth. A broken or foreign one is made anew.

It knows each file by a stamp (size, times, inode; or an object's tag): only what is new or changed is read again; and
each folder by a digest of its files' stamps: only where that differs are the files' own compared. Two
processes may fill it at once: each transaction is whole, and both would write the same rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from build.errors import RejectedResultError, StorageError
from build.log import say
from device_bench import measurement
from device_bench.store import check, columns
from device_bench.store.files import Files, FolderFiles, Listing, kind_of
from device_bench.store.rows import Problem
from device_bench.store.text import plain

_T = TypeVar("_T")
NAME = ".index.sqlite"
_APPLICATION = 0x45647270  # "Edrp"
#: of the tables below, and of how a file becomes a row: raise it when either changes.
_VERSION = 4
_BATCH = 500
_BUSY_SECONDS = 60.0
_TABLES = (
    "CREATE TABLE place (identity TEXT NOT NULL, checked_by TEXT NOT NULL)",
    "CREATE TABLE folders (path TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE files (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, problem TEXT) WITHOUT ROWID",
    "CREATE TABLE facts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "CREATE TABLE runs (path TEXT PRIMARY KEY, name TEXT NOT NULL, started TEXT NOT NULL, text TEXT NOT NULL)",
    "CREATE TABLE manifests (path TEXT PRIMARY KEY, model TEXT NOT NULL, target TEXT NOT NULL, "
    "precision TEXT NOT NULL, key TEXT NOT NULL)",
    "CREATE TABLE measurements (path TEXT PRIMARY KEY, "
    + ", ".join(f"{name} {kind}" for name, kind in columns.COLUMNS.items())
    + ", facts INTEGER NOT NULL, twin TEXT)",
    "CREATE INDEX by_what ON measurements (model, target, precision, device)",
    "CREATE INDEX by_device ON measurements (device, target)",
    "CREATE INDEX by_run ON measurements (run)",
)
_OWNED = ("measurements", "runs", "manifests", "files")


def _rules() -> str:
    """Hash of the schemas that files are checked against: with another one, every file is checked again."""
    schemas = (measurement.SCHEMA, check.RUN_SCHEMA, check.SUMMARY_SCHEMA, check.MANIFEST_SCHEMA)
    return hashlib.sha256(b"".join(p.read_bytes() for p in schemas)).hexdigest()


def _home(files: Files) -> Path:
    """Where the index of a place lies: beside the results, or in the user's cache where nothing may be written."""
    if isinstance(files, FolderFiles) and os.access(files.root, os.W_OK):
        return files.root / NAME
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "edgeport" / "results" / f"{hashlib.sha256(files.place.encode()).hexdigest()[:20]}.sqlite"


class Index:
    """The index of one place."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._path = _home(files)
        self._listing = Listing(folders={})
        self._connection: sqlite3.Connection | None = None

    def refresh(self) -> None:
        """Take in what is new or changed, forget what is gone.

        Raises:
            StorageError: the index cannot be written.
        """
        self._listing = self._files.listing()
        self._sure(self._update)

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query; made anew first when the index turns out to be broken."""

        def run(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(statement, parameters).fetchall()

        return self._sure(run)

    def problems(self) -> list[Problem]:
        """Every file that was skipped."""
        rows = self.select(
            "SELECT path, problem FROM files WHERE problem IS NOT NULL "
            "UNION ALL SELECT path, 'it is the same measurement as ' || twin FROM measurements WHERE twin IS NOT NULL"
        )
        found = [Problem(path=plain(path), reason=plain(reason, 400)) for path, reason in rows]
        return sorted({*found, *self._listing.problems})

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _sure(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            try:
                return work(self._open())
            except sqlite3.OperationalError:
                raise  # busy, full, not writable: a new file would not help
            except (sqlite3.DatabaseError, UnicodeDecodeError):
                self._start_anew()
                connection = self._open()
                self._update(connection)
                return work(connection)
        except sqlite3.Error as error:
            raise StorageError(
                f"the index '{plain(self._path)}' cannot be used: {plain(error)}",
                remedy="Free some space, or make the results folder writable.",
            ) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"cannot write '{plain(self._path)}': {error.strerror or error}") from error
            connection = self._connect()
            if not self._is_ours(connection):
                self._start_anew()
                connection = self._connect()
            with _transaction(connection):
                if not _tables(connection):  # another process may have been faster
                    for statement in _TABLES:
                        connection.execute(statement)
                    connection.execute("INSERT INTO place VALUES (?, ?)", (self._files.identity, _rules()))
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {_VERSION}")
            self._connection = connection
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        self.close()
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        self._connection = connection
        # A file from elsewhere must not run what its schema says.
        connection.execute("PRAGMA trusted_schema = OFF")
        # A cache needs no fsync: what a power cut leaves is found to be broken, and made anew.
        connection.execute("PRAGMA synchronous = OFF")
        self._connection = None
        return connection

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Whether this very code made it for this very place; an empty file is."""
        try:
            found = _tables(connection)
            if not found:
                return True
            marks = [connection.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version")]
            if found != sorted(_TABLES) or marks != [_APPLICATION, _VERSION]:
                return False
            place = connection.execute("SELECT identity, checked_by FROM place").fetchall()
            return place == [(self._files.identity, _rules())]
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise
            return False
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return False

    def _start_anew(self) -> None:
        self.close()
        for suffix in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(self._path.name + suffix).unlink()

    def _update(self, connection: sqlite3.Connection) -> None:
        digests = self._listing.digests()
        before = dict(connection.execute("SELECT path, digest FROM folders"))
        new: dict[str, str] = {}
        gone: list[str] = []
        changed = [f for f in {**digests, **before} if digests.get(f) != before.get(f)]
        if not changed:
            return
        with _transaction(connection):  # without a digest until all is done: killed before, it is looked at again
            connection.executemany("INSERT OR REPLACE INTO folders VALUES (?, '')", [(f,) for f in changed])
        for folder in changed:
            names = self._listing.folders.get(folder, {})
            stamps = {f"{folder}/{name}": " ".join(map(str, stamp)) for name, stamp in names.items()}
            known = _files_in(connection, folder)
            new |= {path: stamp for path, stamp in stamps.items() if known.get(path) != stamp}
            # Listed by nobody, and really not there: another process may have found it a moment after we looked.
            gone += [path for path in known if path not in stamps and not self._files.is_there(path)]
        if len(new) > 10 * _BATCH:
            say(f"indexing {len(new)} files of '{plain(self._files.place)}'")
        for at in range(0, len(gone), _BATCH):
            with _transaction(connection):
                _forget(connection, gone[at : at + _BATCH])
        order = list(new)
        for at in range(0, len(order), _BATCH):
            paths = order[at : at + _BATCH]
            found = [(path, *self._examine(path)) for path in paths]
            with _transaction(connection):
                _forget(connection, paths)
                for path, problem, insert in found:
                    connection.execute("INSERT INTO files VALUES (?, ?, ?)", (path, new[path], problem))
                    if insert is not None:
                        insert(connection)
        with _transaction(connection):
            for folder in changed:
                if folder in digests:
                    connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?)", (folder, digests[folder]))
                elif not _files_in(connection, folder):
                    connection.execute("DELETE FROM folders WHERE path = ?", (folder,))
            _mark_twins(connection)

    def _examine(self, path: str) -> tuple[str | None, Callable[[sqlite3.Connection], None] | None]:
        """What is wrong with a file, or how its content goes into the index."""
        content = self._files.read(path)
        if content is None:
            return "it cannot be read", None
        kind = kind_of(path)
        run = path.partition("/")[0]
        try:
            if kind == "measurement":
                value = check.measurement(content, folder=path.split("/")[1])
                return None, lambda c: _put_measurement(c, path, columns.to_row(run, value), columns.facts_of(value))
            if kind == "run":
                record = check.run(content)
                row = (path, run, record["started"], content.decode())
                return None, lambda c: _put(c, "runs", row)
            if kind == "manifest":
                found = check.manifest(content)
                named = (path, *(found[k] for k in ("model", "target", "precision", "key")))
                return None, lambda c: _put(c, "manifests", named)
            check.summary(content)
        except RejectedResultError as error:
            return error.message, None
        return None, None


def _files_in(connection: sqlite3.Connection, folder: str) -> dict[str, str]:
    """Path -> stamp of the files that lie in a folder itself; "0" is the character after "/"."""
    rows = connection.execute("SELECT path, stamp FROM files WHERE path > ? AND path < ?", (f"{folder}/", f"{folder}0"))
    return {path: stamp for path, stamp in rows if path.rpartition("/")[0] == folder}


def _tables(connection: sqlite3.Connection) -> list[str]:
    return sorted(sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _put(connection: sqlite3.Connection, table: str, row: Sequence[Any]) -> None:
    connection.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)


def _put_measurement(connection: sqlite3.Connection, path: str, row: Sequence[Any], facts: str) -> None:
    connection.execute("INSERT OR IGNORE INTO facts (text) VALUES (?)", (facts,))
    (number,) = connection.execute("SELECT id FROM facts WHERE text = ?", (facts,)).fetchone()
    _put(connection, "measurements", (path, *row, number, None))


def _forget(connection: sqlite3.Connection, paths: Iterable[str]) -> None:
    one = [(path,) for path in paths]
    for table in _OWNED:
        connection.executemany(f"DELETE FROM {table} WHERE path = ?", one)


def _mark_twins(connection: sqlite3.Connection) -> None:
    """A copied file would count twice: of those with one identity in one run, the first path counts."""
    connection.execute("UPDATE measurements SET twin = NULL WHERE twin IS NOT NULL")
    names = "run, device, model, target, precision, threads, batch, variant, repeat"
    twice = connection.execute(f"SELECT min(path), {names} FROM measurements GROUP BY {names} HAVING count(*) > 1")
    for first, *identity in twice.fetchall():
        where = " AND ".join(f"{name} IS ?" for name in names.split(", "))
        connection.execute(f"UPDATE measurements SET twin = ? WHERE path <> ? AND {where}", (first, first, *identity))
