"""A site's database, `site.db` in its folder `state`: what its people decided, and how many jobs it refused today.

Separate files hold the log, keys, and the ledger, which may belong to a store with several sites; what others read
(figures of a task, what a witness knows about others' logs); and a job's state, which may be larger than a row.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from audits.database import Database, Tables
from medfedvqa.errors import SiteDatabaseError

SITE_DATABASE = "site.db"
LAYOUT = Tables(
    name="the site's database",
    until="no job runs here until it can",
    remedy="stop the site, move `site.db` in its folder `state` aside, and restore the site's backup",
    error=SiteDatabaseError,
    application=0x4D465344,
    schema=(
        "CREATE TABLE decision (permit TEXT PRIMARY KEY, answer TEXT NOT NULL, note TEXT NOT NULL) STRICT",
        "CREATE TABLE waiting_job (definition TEXT, submitter TEXT, job TEXT NOT NULL, "
        "PRIMARY KEY (definition, submitter)) STRICT, WITHOUT ROWID",
        "CREATE TABLE refusals (day TEXT PRIMARY KEY, count INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    ),
)


@contextmanager
def site_database(state: Path) -> Iterator[Database]:
    """The database in a site's folder `state`. Raises `SiteDatabaseError`."""
    with LAYOUT.errors("opened"):
        state.mkdir(parents=True, exist_ok=True)
    with closing(Database(state / SITE_DATABASE, LAYOUT)) as database:
        yield database


def copy_for_backup(state: Path) -> bytes | None:
    """A copy of the database without approvals, which a restored site could use twice; None without a database."""
    if not (state / SITE_DATABASE).exists():
        return None
    with site_database(state) as database:
        return database.copy("DELETE FROM decision WHERE answer = 'yes'")


def add_lost_rows(state: Path, saved: Path) -> None:
    """Adds decisions and waiting jobs that only an older copy of the database has. Raises `SiteDatabaseError`."""
    with closing(Database(saved, LAYOUT)) as older, older.reading() as connection:
        rows = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("decision", "waiting_job")}
    with site_database(state) as database, database.writing() as connection:
        connection.executemany("INSERT OR IGNORE INTO decision VALUES (?, ?, ?)", rows["decision"])
        connection.executemany("INSERT OR IGNORE INTO waiting_job VALUES (?, ?, ?)", rows["waiting_job"])
