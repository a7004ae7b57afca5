"""The lines of `results.jsonl`: whole, comparable, and enough for a table with its p values and gains."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from medfedvqa.atomic_files import locked
from medfedvqa.cli import main
from medfedvqa.errors import ConfigError
from medfedvqa.research.benchmark.benchmark_table import gains, markdown
from medfedvqa.research.benchmark.results_file import FORMAT, RESULTS, Result, append, read
from medfedvqa.research.benchmark.statistics import PERSONAL, compared


def result(system: str = "local (DT)", seed: int = 0, right: str = "10" * 30, **changes: Any) -> Result:
    """A result of one site with two rows a patient."""
    record: dict[str, Any] = {
        "version": "0.2.0",
        "data": "slake",
        "split": {"kind": "official"},
        "backbone": "medclip2-vqarad",
        "budget": {"rounds": 2},
        "job": {},
        "system": system,
        "method": "local",
        "options": {"rounds": 2},
        "baseline": True,
        "alone": "",
        "without_picture": f"{system} without the picture",
        "seed": seed,
        "cohort": 0,
        "sites": {"lung": {"right": right, "patients": [row // 2 for row in range(len(right))]}},
        "validated": {"lung": [0.25, 0.5]},
        "bytes_up": 10.0,
        "bytes_down": 0.0,
        "seconds": 1.5,
        "parameters": 7,
    }
    return Result.model_validate(record | changes)


def test_what_is_appended_is_read_again_and_no_line_stands_twice(tmp_path: Path) -> None:
    """A resumed benchmark appends the same results again: the file does not grow."""
    path, both = tmp_path / RESULTS, [result(seed=seed) for seed in range(2)]
    append(path, both)
    append(path, [*both, result("SAN")])
    assert read([path]) == ([*both, result("SAN")], [])
    assert len(path.read_text().splitlines()) == 3


def test_runs_that_end_together_all_have_their_line(tmp_path: Path) -> None:
    """Eight at a time append results of their own and one that all have: each stands there once, and is whole."""
    path = tmp_path / RESULTS
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: append(path, [result("SAN"), result(seed=seed)]), range(64)))
    results, remarks = read([path])
    assert {each.seed for each in results} == set(range(64)) and not remarks
    assert len(path.read_text().splitlines()) == 65


def test_a_run_waits_for_the_lock_of_another_one(tmp_path: Path) -> None:
    """Nothing is written while somebody else holds the file's lock; afterwards the line is there."""
    path = tmp_path / RESULTS
    waiting = Thread(target=append, args=(path, [result()]))
    with locked(path, ConfigError("the lock cannot be held")):
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive() and not path.read_bytes()
    waiting.join(30)
    assert read([path]) == ([result()], [])


def test_lines_that_cannot_stand_in_one_table_are_named_and_not_mixed(tmp_path: Path) -> None:
    """Another format, budget, set or meaning of a label, a damaged line and a torn one: each is named with its line."""
    path = tmp_path / RESULTS
    append(path, [result(), result("SAN", data="vqa-rad"), result("SAN", budget={"rounds": 3}, options={"rounds": 3})])
    append(path, [result(seed=1, options={"rounds": 2, "hidden": 9}), result(right="01" * 30)])
    newer = json.loads(result("SAN").model_dump_json()) | {"format": FORMAT + 1}
    damaged = json.loads(result("SAN").model_dump_json()) | {"parameters": -1}
    with path.open("a") as file:
        file.write("\n".join([json.dumps(newer), json.dumps(damaged), '{"secret question', ""]))
        file.write(result("SAN").model_dump_json()[:50])
    append(path, [result("MEVF-style")])
    results, remarks = read([path])
    assert results == [result(right="01" * 30), result("MEVF-style")]
    expected = ["line 2: left out: other data", "line 3: left out: other budget", "line 4: left out: other options"]
    expected += ["line 5: made again", f"line 6: left out: format {FORMAT + 1}", "line 7: left out: damaged"]
    expected += ["line 8, 9: left out: no JSON"]
    assert len(remarks) == len(expected)
    assert all(part in remark for part, remark in zip(expected, remarks, strict=True))
    assert "secret" not in "".join(remarks)


def test_a_system_with_options_of_its_own_stands_beside_another_budget(tmp_path: Path) -> None:
    """It ran alike under either budget; one that took what differs from its budget is left out, as is one without."""
    path = tmp_path / RESULTS
    own = result("SAN", budget={"rounds": 3}, options={"rounds": 200})
    append(path, [result(), own, result("MEVF-style", budget={"rounds": 3}, options={"rounds": 3})])
    append(
        path, [result("majority", budget={"rounds": 3}, options={}), result("x", budget={"rounds": 2, "keep": "best"})]
    )
    results, remarks = read([path])
    assert results == [result(), own]
    assert [remark.split(": left out: ")[1] for remark in remarks] == ["other budget than in the first line"]
    assert "line 3, 4, 5" in remarks[0]


def test_files_without_any_result_are_refused(tmp_path: Path) -> None:
    """The error says what the lines are instead."""
    path = tmp_path / "other.jsonl"
    path.write_text('{"format": 9}\n')
    with pytest.raises(ConfigError, match=f"no results; 'other.jsonl', line 1: left out: format 9.*reads {FORMAT}"):
        read([path])
    with pytest.raises(ConfigError, match="cannot be read"):
        read([tmp_path / "nothing"])


def test_a_site_without_a_bit_and_a_patient_for_each_row_is_damaged() -> None:
    """Bits, personal bits and patients have one entry for each row, and there is a row."""
    for site in ({"right": "10", "patients": [0]}, {"right": "", "patients": []}, {"right": "12", "patients": [0, 0]}):
        with pytest.raises(ValueError):
            result(sites={"lung": site})
    with pytest.raises(ValueError):
        result(sites={"lung": {"right": "10", "patients": [0, 0], "personal": "1"}})


def test_the_golden_file_is_read() -> None:
    """Every later version reads what this format's first version wrote."""
    results, remarks = read([Path(__file__).parents[1] / "golden" / "formats-1" / "benchmark.jsonl"])
    assert not remarks and [each.system for each in results] == ["FedAvg adapter", "local (DT)"]
    first = results[0].outcome
    assert first.right == {"lung": [True, True, False, True, True, False]} and first.patients == {
        "lung": [0, 0, 1, 1, 2, 2]
    }
    assert sum(first.personal["lung"]) == 5 and first.validated == {"lung": [0.25, 0.5]}


def test_gains_are_over_the_paired_rows_of_common_seeds() -> None:
    """By hand: 60 of 60 rows right, 30 without the picture, 45 alone; a seed that only one has does not count."""
    sites = {"lung": {"right": "1" * 60, "personal": "0" * 60, "patients": [row // 2 for row in range(60)]}}
    worse = {"lung": sites["lung"] | {"right": "0" * 60}}
    comparison = compared(
        [
            result("FedAvg adapter", 1, alone="local (DT)", sites=sites, method="fedavg"),
            result("FedAvg adapter", 0, alone="local (DT)", sites=worse, method="fedavg"),
            result("FedAvg adapter without the picture", 1, right="10" * 30, without_picture=""),
            result("local (DT)", 1, right="1110" * 15),
        ]
    )
    pictures, federation = gains(comparison, "FedAvg adapter")
    assert pictures is not None and pictures.mean == 0.5 and pictures.interval is None and pictures.p == 1
    assert federation is not None and federation.mean == 0.25 and federation.interval is not None
    assert federation.interval[0] < 0.25 < federation.interval[1] < 0.35
    assert gains(comparison, "local (DT)") == (None, None)
    assert gains(comparison, "FedAvg adapter" + PERSONAL)[0] is None
    personal = gains(comparison, "FedAvg adapter" + PERSONAL)[1]
    assert personal is not None and personal.mean == -0.75
    assert "| +50.0 | +25.0 [" in markdown(comparison)


def test_a_table_says_what_the_last_rounds_gained_and_what_all_runs_cost() -> None:
    """In the last of three rounds two sites rise by 10 and 30 points with one seed, by none with another: 10 points."""
    sites = dict.fromkeys(("lung", "brain"), {"right": "10", "patients": [0, 1]})
    long = {"data": "phantom", "sites": sites, "options": {"rounds": 3}, "seconds": 2400.0}
    rising = {"lung": [0.25, 0.5, 0.6], "brain": [0.25, 0.5, 0.8]}
    runs = [result(validated=rising, **long), result(seed=1, validated=dict.fromkeys(sites, [0.5, 0.5, 0.5]), **long)]
    prior = result("majority", **long | {"validated": {}, "options": {}, "seconds": 0.0, "parameters": 0})
    page = markdown(compared([*runs, prior]))
    heading, _, trained, untrained = (line.split(" | ") for line in page.splitlines() if line.startswith("| "))
    late = heading.index("late")
    assert (trained[late], untrained[late]) == ("10.0", "")
    assert "All runs together: 4.0 processor hours." in page


def test_results_of_one_cohort_test_the_same_patients() -> None:
    """Two files about other rows, with the same name of the data, are not compared."""
    other = {"lung": {"right": "10" * 30, "patients": list(range(60))}}
    with pytest.raises(ConfigError, match="test different rows"):
        compared([result(), result("SAN", sites=other)])


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs `medfedvqa benchmark` with these arguments and returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["medfedvqa", "benchmark", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_table_is_made_of_files_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--from` needs no data, reads several files, names what it leaves out, and takes no option of a run."""
    first, second, out = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "table"
    append(first, [result(seed=seed) for seed in range(3)])
    append(second, [result("SAN", seed, "1" * 58 + "01") for seed in range(3)] + [result("SAN", 4, backbone="other")])
    assert command(monkeypatch, "--from", f"{first},{second}", "--out", str(out), "--json") == 0
    printed = capsys.readouterr()
    assert "'b.jsonl', line 4: left out: other backbone" in printed.err
    record = json.loads(printed.out)
    assert record["SAN"]["average"] == 59 / 60 and record["SAN"]["runs"] == 3 and record["local (DT)"]["p"] < 0.001
    assert (out / "benchmark.md").read_text() == markdown(compared(read([first, second])[0]))
    assert command(monkeypatch, "--from", str(first), "--methods", "SAN", "--out", str(out)) != 0
    assert "leave out --methods" in capsys.readouterr().err


SERVER = {
    "questions": 200, "correct": 130, "pictures": 10, "captions": 5, "image_to_text": (1, 5, 10),
    "text_to_image": (1, 2, 5),
}  # fmt: skip


def test_a_servers_own_model_has_a_table_of_its_own(tmp_path: Path) -> None:
    """Recalls and rsum as means over seeds; other systems are not in it, and their lines are as before."""
    append(path := tmp_path / RESULTS, [result("CreamFL", server=SERVER), result("SAN")])
    lines = path.read_text().splitlines()
    assert [("server" in json.loads(line)) for line in lines] == [True, False]
    results, _ = read([path])
    page = markdown(compared(results)).split("## The server's own model")
    assert (
        len(page) == 2 and "| CreamFL | 1 | 10.0 | 50.0 | 100.0 | 20.0 | 40.0 | 100.0 | 320.0 | 65.0 ± 0.0" in page[1]
    )
    assert "| SAN" not in page[1] and "server's own" not in markdown(compared([result("SAN")]))


def test_a_server_that_finds_no_pictures_has_dashes() -> None:
    """A model of answers alone, such as FedGEMS's."""
    alone = SERVER | {"pictures": 0, "captions": 0, "image_to_text": (), "text_to_image": ()}
    assert "| X | 1 | – | – | – | – | – | – | – | 65.0" in markdown(compared([result("X", server=alone)]))


@pytest.mark.parametrize(
    "changes",
    [{"correct": 201}, {"image_to_text": (1, 5, 11)}, {"text_to_image": (1, 2)}, {"pictures": 0}, {"questions": 0}],
)
def test_impossible_counts_of_a_server_are_no_result(changes: dict[str, Any]) -> None:
    """More right than asked, more found than there are, or other places than three."""
    with pytest.raises(ValueError, match="server"):
        result(server=SERVER | changes)
