"""`medfedvqa privacy report` and what checks it, as a data protection officer and an auditor type it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_trees import with_row

from medfedvqa.library.site_report import RunEvidence
from privacy.report import read_report

Command = Callable[..., Any]
SITES = ("abdomen", "chest", "head")
MARKS = ("complies", "complian")


def site_of(run: Path, name: str) -> str:
    return str(run / "sites" / name / "site.yml")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reports of this file's tests are, by site; filled by the first test that needs one."""
    return tmp_path_factory.mktemp("reports")


@pytest.fixture
def reports(medfedvqa: Command, private_run: Path, made: Path) -> dict[str, Path]:
    """A report of each site of the run, made by one command."""
    if not list(made.iterdir()):
        assert medfedvqa("privacy", "report", "--run", str(private_run), "--out", str(made)).returncode == 0
    return {name: made / name for name in SITES}


@pytest.fixture
def keys(medfedvqa: Command, private_run: Path) -> dict[str, str]:
    """As `medfedvqa audit key` shows them."""
    return {name: medfedvqa("audit", "key", "--site", site_of(private_run, name)).stdout.strip() for name in SITES}


def test_a_report_verifies_with_the_sites_key_and_without_it_is_not_shown_whose_it_is(
    medfedvqa: Command, reports: dict[str, Path], keys: dict[str, str], private_run: Path
) -> None:
    """Exit codes 0 and 2, with each part and what was found."""
    folder, log = str(reports["chest"]), str(private_run / "sites" / "chest" / "audit")
    whole = medfedvqa("privacy", "verify-report", folder, "--key", keys["chest"], "--log", log)
    assert whole.returncode == 0 and "pages: shown" in whole.stdout and ": not shown" not in whole.stdout
    told = medfedvqa("privacy", "verify-report", folder, "--json")
    assert told.returncode == 2
    assert [part["name"] for part in json.loads(told.stdout)["parts"] if part["state"] != "shown"] == ["key"]
    assert medfedvqa("privacy", "verify-report", folder, "--key", keys["head"]).returncode == 1


def test_the_page_for_patients_is_signed_with_the_same_report(
    medfedvqa: Command, private_run: Path, keys: dict[str, str], tmp_path: Path
) -> None:
    """In German, with what the site adds; another language for officers is refused."""
    site, told = private_run / "sites" / "chest" / "site.yml", tmp_path / "chest" / "site.yml"
    told.parent.mkdir()
    settings = yaml.safe_load(site.read_text("utf-8")) | {"governance": {"contact": "datenschutz@example.org"}}
    paths = ("state", "audit", "ledger", "identity", "audit_key")
    told.write_text(yaml.safe_dump(settings | {name: str(site.parent / settings[name]) for name in paths}), "utf-8")
    command = ("privacy", "report", "--site", str(told), "--language", "de", "--no-network")
    refused = medfedvqa(*command, "--out", str(tmp_path / "none"))
    assert refused.returncode != 0 and "add --audience patients" in refused.stderr
    out = tmp_path / "patients"
    assert medfedvqa(*command, "--audience", "patients", "--out", str(out)).returncode == 0
    page = (out / "report.html").read_text("utf-8")
    assert 'lang="de"' in page and "datenschutz@example.org" in page and "von 100" in page
    checked = medfedvqa("privacy", "verify-report", str(out), "--key", keys["chest"])
    assert checked.returncode != 1 and "signature: shown" in checked.stdout and "pages: shown" in checked.stdout


def open_rules(folder: Path) -> set[str]:
    """The rules that the report in a folder does not show to be kept."""
    rules = read_report((folder / "report.json").read_bytes()).sections.verdicts.rules
    return {rule.rule for rule in rules if rule.state != "shown"}


def test_what_lies_beside_a_run_closes_the_rules_that_wait_for_a_path(
    medfedvqa: Command, reports: dict[str, Path], private_run: Path, tmp_path: Path
) -> None:
    """With the run's folder alone a report has what three options give; of a folder without a run there is none."""
    site = ("privacy", "report", "--site", site_of(private_run, "chest"))
    assert medfedvqa(*site, "--out", str(tmp_path / "bare")).returncode == 0
    options = ("--results", str(private_run / "results.json"), "--against", str(private_run), "--no-network")
    assert medfedvqa(*site, *options, "--out", str(tmp_path / "options")).returncode == 0
    assert medfedvqa(*site, "--run", str(private_run), "--out", str(tmp_path / "run")).returncode == 0
    still_open = open_rules(tmp_path / "run")
    assert open_rules(tmp_path / "options") == open_rules(reports["chest"]) == still_open
    assert open_rules(tmp_path / "bare") - still_open == {"whole log", "agreement", "settings"}
    out = str(tmp_path / "none")
    assert "neither results.json nor" in medfedvqa(*site, "--run", str(tmp_path), "--out", out).stderr
    assert "give the report's site: --site" in medfedvqa("privacy", "report", "--out", out).stderr
    (tmp_path / "results.json").write_text("{}")
    assert "is not the results file" in medfedvqa("privacy", "report", "--run", str(tmp_path), "--out", out).stderr
    assert not (tmp_path / "none").exists()


def test_a_run_that_still_trains_has_no_results_yet(private_run: Path, tmp_path: Path) -> None:
    """Its launch tells whether messages cross a network; nothing is guessed where neither file is."""
    (tmp_path / "launch.json").write_bytes((private_run / "launch.json").read_bytes())
    assert RunEvidence.find(tmp_path) == RunEvidence(tmp_path, None, network=False)
    assert not RunEvidence.find(private_run).network and set(RunEvidence.find(private_run).sites) == set(SITES)


@pytest.mark.parametrize("name", ["report.json", "report.html", "report.pdf", "report.dsse.json"])
def test_an_edited_file_of_a_report_is_found(
    medfedvqa: Command, reports: dict[str, Path], keys: dict[str, str], name: str
) -> None:
    """One byte of any of the four."""
    path = reports["chest"] / name
    before = path.read_bytes()
    at = len(before) // 2
    try:
        path.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
        assert medfedvqa("privacy", "verify-report", str(reports["chest"]), "--key", keys["chest"]).returncode == 1
    finally:
        path.write_bytes(before)


def test_neither_page_names_what_no_report_names(reports: dict[str, Path], private_run: Path) -> None:
    """Paths, keys, and any word of a legal conclusion."""
    for folder in reports.values():
        page = (folder / "report.html").read_text("utf-8")
        assert not [word for word in (*MARKS, str(private_run), "cohort.key") if word in page]
        assert (folder / "report.pdf").read_bytes().startswith(b"%PDF-")


def test_sites_reports_are_joined_and_the_joined_one_can_be_made_again(
    medfedvqa: Command, reports: dict[str, Path], keys: dict[str, str], tmp_path: Path
) -> None:
    """Sums add up, epsilon does not; no ledger, cohort or accuracy of a site is in it; an edit is found."""
    folders, given = [str(one) for one in reports.values()], [one for key in keys.values() for one in ("--key", key)]
    done = medfedvqa("privacy", "join-reports", *folders, "--out", str(tmp_path / "joined"), *given)
    assert done.returncode == 0 and "do not add up" in done.stdout
    told = json.loads((tmp_path / "joined" / "joined.json").read_text())
    each = [read_report((one / "report.json").read_bytes()) for one in reports.values()]
    assert told["nbytes"] == sum(one.sections.egress.nbytes for one in each)
    assert told["epsilon"] == max(one.sections.claim.epsilon for one in each) and not told["missing"]
    assert {one["what"]: one["state"] for one in told["agreements"]}["settings"] == "shown"
    rows = [row for one in each for row in one.evidence.ledger]
    secrets = {row.hash for row in rows} | {(row.record or {}).get("cohort", row.hash) for row in rows}
    assert len(secrets) > 3 and not [one for one in secrets if one in json.dumps(told)]
    file = tmp_path / "joined" / "joined.json"
    assert medfedvqa("privacy", "verify-joined", str(file), *folders, *given).returncode == 0
    file.write_text(file.read_text().replace(f'"nbytes": {told["nbytes"]}', '"nbytes": 1'))
    assert medfedvqa("privacy", "verify-joined", str(file), *folders, *given).returncode == 1


def test_a_broken_report_is_not_joined(medfedvqa: Command, reports: dict[str, Path], tmp_path: Path) -> None:
    """Nor is one of a single site a report of a federation."""
    broken = tmp_path / "chest"
    broken.mkdir()
    for path in reports["chest"].iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    said = (broken / "report.json").read_bytes()
    (broken / "report.json").write_bytes(with_row(said, "egress.messages", 1000))
    failed = medfedvqa("privacy", "join-reports", str(reports["head"]), str(broken), "--out", str(tmp_path / "out"))
    assert failed.returncode == 1 and "does not hold" in failed.stderr
    alone = medfedvqa("privacy", "join-reports", str(reports["head"]), "--out", str(tmp_path / "out"))
    assert alone.returncode == 1 and "two or more sites" in alone.stderr


def test_an_entry_for_the_registry_has_its_fields_and_leaves_the_curators_empty(
    medfedvqa: Command, reports: dict[str, Path], tmp_path: Path
) -> None:
    """Parameters are the claim's; how many patients there are is not told."""
    out = tmp_path / "entry.yaml"
    assert medfedvqa("privacy", "registry-entry", str(reports["chest"]), "--out", str(out)).returncode == 0
    entry = yaml.safe_load(out.read_text())["deployment"]
    claim = read_report((reports["chest"] / "report.json").read_bytes()).sections.claim
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": claim.epsilon, "delta": claim.delta}
    assert entry["deployment_model"]["model_name"] == "Federated" and entry["basic"]["name"] == ""
    assert set(entry) == {
        "basic", "dp_variant", "privacy_loss", "deployment_model", "implementation", "administrative"
    }  # fmt: skip
    assert "number_of_privacy_units" not in entry["privacy_loss"]


def test_a_file_that_is_not_what_its_option_asks_for_is_refused(
    medfedvqa: Command, private_run: Path, tmp_path: Path
) -> None:
    """With a sentence, and before anything is written."""
    told = ["privacy", "report", "--site", site_of(private_run, "chest"), "--out", str(tmp_path / "out")]
    results = str(private_run / "results.json")
    for option, file in (("--results", site_of(private_run, "chest")), ("--attack", results), ("--results", "no")):
        assert medfedvqa(*told, option, file).returncode == 1
    twice = medfedvqa(*told, "--results", results, "--baseline", results)
    assert twice.returncode == 1 and "without" in twice.stderr
    assert not (tmp_path / "out").exists()


def test_a_wrong_place_is_one_sentence(medfedvqa: Command, reports: dict[str, Path], private_run: Path) -> None:
    """A file or a report in the place of the new one, and a folder without a log where a log is to be compared."""
    report, file = reports["chest"], private_run / "results.json"
    for out in (file, report):
        made = medfedvqa("privacy", "report", "--site", site_of(private_run, "chest"), "--out", str(out))
        assert made.returncode == 1 and "already holds something" in made.stderr
        joined = medfedvqa("privacy", "join-reports", *map(str, reports.values()), "--out", str(out))
        assert joined.returncode == 1 and "already holds something" in joined.stderr
    found = medfedvqa("privacy", "verify-report", str(report), "--log", str(private_run / "plots"))
    assert found.returncode == 1 and "lacks entries" in found.stdout and "Traceback" not in found.stderr


def test_a_report_of_a_withdrawn_version_is_not_shown_to_have_its_epsilon(
    medfedvqa: Command, reports: dict[str, Path], keys: dict[str, str], tmp_path: Path
) -> None:
    """By a list that a site adds; the reason is printed."""
    evidence = json.loads((reports["chest"] / "report.json").read_text())["evidence"]
    entry = {
        "code_digest": evidence["tool"]["code_digest"],
        "reason": "Its noise was too small.",
        "since": "2027-01-02",
    }
    (tmp_path / "more.json").write_text(json.dumps([entry]))
    asked = ("privacy", "verify-report", str(reports["chest"]), "--key", keys["chest"])
    assert medfedvqa(*asked, "--json").stdout.count("withdrawn") == 1  # that none is
    found = medfedvqa(*asked, "--withdrawn", str(tmp_path / "more.json"))
    assert found.returncode == 2 and "Its noise was too small." in found.stdout and "code: not shown" in found.stdout
