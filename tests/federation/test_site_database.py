"""A site's databases: what a killed process, an older copy and version 0.2.0 leave."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from golden_files import GOLDEN

import medfedvqa
from audits import make_secret
from audits.database import Database
from medfedvqa.errors import SiteDatabaseError
from medfedvqa.federation.site_database import LAYOUT, SITE_DATABASE, add_lost_rows, copy_for_backup, site_database

ADA = b"ada, of golden files, 32 bytes!!"
"""The key of the approver in the golden site."""


def killed(work: str, site: Path, *arguments: str) -> dict[str, int]:
    """What `kill_databases.py` counted."""
    make_secret(site.parent / "ada.key", ADA)
    environment = os.environ | {"PYTHONPATH": str(Path(medfedvqa.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("kill_databases.py")), work, str(site), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("kills", [30, pytest.param(500, marks=pytest.mark.release)])
def test_a_killed_process_leaves_what_it_acknowledged_in_every_table_and_nothing_by_half(
    tmp_path: Path, kills: int
) -> None:
    """Processes in turn log a nonce, charge, log the release, register, keep a job waiting, decide on it, and count a
    refusal, until SIGKILL. After each the charge that the log names is in the ledger, and whatever any process said is
    in its place."""
    site = tmp_path / "chest"
    site.mkdir()
    shutil.copy(GOLDEN / "site-0.2.0" / "chest" / "site.yml", site)
    said = killed("write", site, str(kills))
    assert min(said.values()) > kills / 5


def test_a_migration_that_is_killed_at_any_step_is_finished_by_the_next_process(tmp_path: Path) -> None:
    """Of a site of 0.2.0: its charge, its register, its no and the job that waits are there after each kill, once."""
    site = Path(shutil.copytree(GOLDEN / "site-0.2.0" / "chest", tmp_path / "chest"))
    (site / "ledger" / "cohort.key").chmod(0o600)
    assert killed("migrate", site)["steps"] > 60


def decisions(database: Database) -> list[tuple[str, str]]:
    with database.reading() as connection:
        return connection.execute("SELECT permit, answer FROM decision").fetchall()


def test_a_backup_gives_back_a_no_that_the_site_lost_and_takes_nothing(tmp_path: Path) -> None:
    """The copy is of one moment, while the database is in use. A yes is not in it: an older log may not know that it
    was used."""
    with site_database(tmp_path) as database:
        with database.writing() as connection:
            connection.execute("INSERT INTO decision VALUES ('a', 'no', 'note'), ('c', 'yes', 'SECRET')")
        copy = copy_for_backup(tmp_path)
        assert copy is not None and b"SECRET" not in copy
        (tmp_path / "copy").write_bytes(copy)
        with database.writing() as connection:
            connection.execute("UPDATE decision SET permit = 'b' WHERE permit = 'a'")
        add_lost_rows(tmp_path, tmp_path / "copy")
        assert sorted(decisions(database)) == [("a", "no"), ("b", "no"), ("c", "yes")]
    with closing(Database(tmp_path / "copy", LAYOUT)) as older:
        assert decisions(older) == [("a", "no")]
    assert copy_for_backup(tmp_path / "none") is None


def test_a_damaged_database_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """No path and no value is in the sentence."""
    for content in (b"no database" * 1000, b""):
        (tmp_path / SITE_DATABASE).write_bytes(content)
        with (
            pytest.raises(SiteDatabaseError, match=r"damaged.*move `site.db`.* aside, and restore") as caught,
            site_database(tmp_path),
        ):
            pass
        assert str(tmp_path) not in str(caught.value)
