"""The library: what `import medfedvqa` offers, and what a stranger does with it."""

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib.figure
import pytest
from tiny_clip import TINY

import medfedvqa as mv
from medfedvqa.cli import main
from medfedvqa.core import method_type
from medfedvqa.data import Row, VQAData, phantom, readers
from medfedvqa.errors import ConfigError
from medfedvqa.library import run_job

ROOT = Path(__file__).parents[1]
SITES = ("site-001", "site-002")
SMALL: dict[str, Any] = {
    "rounds": 2,
    "local_epochs": 1,
    "local_unit": "batches",
    "batch_rows": 16,
    "blocks": 2,
    "hidden": 16,
    "local_baseline": False,
}


def train(backbone: Path, out: Path, sites: tuple[str, ...] = SITES, **settings: Any) -> mv.Results:
    """A run on small phantom sites, with a backbone of random weights."""
    job = mv.Job("prompt_pfl", backbone=TINY, **SMALL, **settings)
    return mv.run(job, mv.load("phantom"), sites=sites, out=out, backbone_files={TINY: backbone})


@pytest.fixture(scope="module")
def results(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> mv.Results:
    """A finished run under differential privacy whose sites release their accuracies."""
    out = tmp_path_factory.mktemp("library") / "run"
    return train(tiny_backbone, out, answers="closed", dp={"noise": 1.5, "count_noise": 10.0})


class TestSurface:
    """What the package exports."""

    def test_every_export_is_there_and_documented(self) -> None:
        """Each public name resolves, and each class and function has a docstring, as have its public members."""
        for name in mv.__all__:
            value = getattr(mv, name)
            if not isinstance(value, type) and not inspect.isfunction(value):
                continue
            assert inspect.getdoc(value), name
            for member, inner in vars(value).items() if isinstance(value, type) else ():
                if not member.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, property)):
                    assert inspect.getdoc(inner), f"{name}.{member}"

    def test_exports_are_sorted_and_hold_no_private_name(self) -> None:
        """`dir` lists the curated names alone; the only one with an underscore is the version."""
        assert dir(mv) == mv.__all__ == sorted(mv.__all__)
        assert [name for name in mv.__all__ if name.startswith("_")] == ["__version__"]

    def test_no_export_is_hidden_by_a_package_of_the_same_name(self) -> None:
        """`import medfedvqa.NAME` would put the package in the place of the function."""
        modules = {path.stem for path in (ROOT / "medfedvqa").iterdir()}
        assert not modules & set(mv.__all__)

    def test_every_class_that_a_public_signature_names_is_public(self) -> None:
        """What a public function takes or returns of the library's own classes is exported too."""
        for name in mv.__all__:
            for annotation in getattr(getattr(mv, name), "__annotations__", {}).values():
                home = getattr(annotation, "__module__", "")
                assert not home.startswith("medfedvqa.library") or annotation.__name__ in mv.__all__, name

    def test_the_version_is_that_of_the_code(self) -> None:
        """`__version__` stands in the file from which packaging takes the version."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        assert project["project"]["dynamic"] == ["version"]
        source = ROOT / project["tool"]["hatch"]["version"]["path"]
        assert f'VERSION = "{mv.__version__}"\n' in source.read_text(encoding="utf-8")

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        """The lazy import invents no name."""
        with pytest.raises(AttributeError, match="no attribute 'train'"):
            mv.train  # noqa: B018

    def test_importing_the_package_imports_nothing_heavy(self) -> None:
        """`import medfedvqa` and `dir` bring neither torch, NumPy, pydantic nor a part of the project."""
        code = (
            "import sys, medfedvqa\ndir(medfedvqa), medfedvqa.__version__\n"
            "heavy = {'torch', 'numpy', 'nvflare', 'pydantic', 'pandas', 'matplotlib', 'medfedvqa.library'}\n"
            "print(sorted(heavy & sys.modules.keys()))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout == "[]\n"

    def test_no_option_of_a_method_has_the_name_of_a_setting_of_jobs(self) -> None:
        """Otherwise a keyword of `Job` would mean two things."""
        settings = set(inspect.signature(mv.Job).parameters) - {"options"}
        for name in mv.method_names():
            assert not settings & {option.name for option in mv.options(name)}, name

    def test_options_are_those_that_a_job_takes(self) -> None:
        """Names, defaults and meanings, from the method's own declaration."""
        rounds = next(option for option in mv.options("prompt_pfl") if option.name == "rounds")
        assert (rounds.default, rounds.meaning) == (30, "exchanges of prompts (paper: 30)")
        assert {option.name for option in mv.options("fedavg")} == set(method_type("fedavg").config_type.model_fields)


class TestData:
    """Data sets."""

    def test_a_data_set_knows_its_organs_and_counts(self) -> None:
        """The phantom set's three sites, with counts of each part, and the same as a frame."""
        data = mv.load("phantom")
        assert data.organs == phantom.ORGANS
        counts = data.counts()
        assert counts["chest"].patients == phantom.SITES["chest"].patients and counts["chest"].test > 0
        frame = data.frame()
        assert list(frame["site"]) == list(data.organs) and list(frame["train"]) == [c.train for c in counts.values()]

    def test_published_data_is_found_in_its_folder_and_in_the_one_above(self, data_folder: Path) -> None:
        """VQA-RAD with its published number of questions to test on."""
        inside, above = mv.load("vqa-rad", data_folder / "vqa-rad"), mv.load("vqa-rad", data_folder)
        assert inside == above and sum(site.test for site in inside.counts().values()) == 272

    def test_your_own_function_reads_your_own_folder(self, own_data: mv.Data, tiny_backbone: Path) -> None:
        """The set trains under its own name, which the log and the results tell."""
        job = mv.Job("fedavg", tuning="bias", rounds=1, local_epochs=1, hidden=8, backbone=TINY, split="patient")
        assert own_data.counts(split="patient")["chest"].train > 0
        out = own_data.root and own_data.root / "run"
        results = mv.run(job, own_data, out=out, backbone_files={TINY: tiny_backbone})
        assert results.document["data"] == "tiny" and results.sites["chest"].verdicts()["integrity"] == "shown"


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mv.Data:
    """A data set that a function of this module reads; the process forgets it after the test."""
    monkeypatch.setattr(readers, "_REGISTERED", {})
    return mv.load(read_tiny, tmp_path)


def read_tiny(folder: Path) -> VQAData:
    """Twenty patients with one question each."""
    drawn = phantom.read(("chest",))
    chosen = list({row.patient: row for row in drawn.rows}.values())[:20]
    answers = ("yes", "no")
    rows = [
        Row(number, "chest", "train", True, "is it bright", answers[number % 2], row.patient, row.image)
        for number, row in enumerate(chosen)
    ]
    return VQAData("tiny", ("chest",), rows, drawn.load)


class TestResults:
    """A run, and what it returns."""

    def test_tables_say_what_the_file_says(self, results: mv.Results) -> None:
        """Text and Markdown have the method, the free baselines, and an interval for each site."""
        text, markdown = results.table(), results.table("markdown")
        assert all("question-only prior" in table and "prompt_pfl" in table for table in (text, markdown))
        assert markdown == (results.folder / "table.md").read_text(encoding="utf-8") == results._repr_markdown_()
        assert "|" not in text and len(text.splitlines()) == 4

    def test_the_frame_has_each_accuracy_of_the_file(self, results: mv.Results) -> None:
        """One row per system and site, and the average; figures as in results.json."""
        frame = results.frame()
        for site, entry in results.document["sites"].items():
            row = frame[(frame["system"] == "prompt_pfl") & (frame["site"] == site)].iloc[0]
            assert (row["accuracy"], row["low"], row["high"]) == (entry["accuracy"], *entry["interval"])
        assert set(frame["site"]) == {*SITES, "average"}

    def test_rounds_have_bytes_and_epsilon_by_site(self, results: mv.Results) -> None:
        """As many rows as rounds times sites; epsilon grows from round to round."""
        rounds = results.rounds()
        assert len(rounds) == SMALL["rounds"] * len(SITES)
        first, last = (rounds[rounds["round"] == number]["epsilon"].max() for number in (1, 2))
        assert 0 < first < last and (rounds["bytes_up"] > 0).all()

    @pytest.mark.parametrize("kind", ["final", "rounds", "prompts"])
    def test_plots_are_figures(self, results: mv.Results, kind: Any) -> None:
        """Each kind is a matplotlib figure with something drawn."""
        figure = results.plot(kind)
        assert isinstance(figure, matplotlib.figure.Figure) and figure.axes[0].has_data()

    def test_a_site_has_a_log_verdicts_and_an_account(self, results: mv.Results) -> None:
        """The log opens and closes, others agree with it, and the ledger's epsilon is the results'."""
        site = results.sites[SITES[0]]
        events = [str(entry.event) for entry in site.log()]
        assert events[0] == "open" and "release" in events
        assert site.verdicts() == dict.fromkeys(("integrity", "completeness", "consistency"), "shown")
        (account,) = site.spent()
        assert site.epsilon is not None and account.spent.epsilon == pytest.approx(site.epsilon)
        assert site.totals().bytes_out > 0 and str(results.folder) not in repr(site)

    def test_a_changed_log_is_broken(self, tiny_backbone: Path, tmp_path: Path) -> None:
        """The verdicts are those of the file as it is now."""
        site = train(tiny_backbone, tmp_path / "run").sites[SITES[1]]
        assert site.epsilon is None and site.spent() == ()
        log = site.folder / "audit" / "log.jsonl"
        log.write_text(log.read_text().replace('"round":1', '"round":7', 1))
        assert site.verdicts()["integrity"] == "broken"

    def test_a_report_is_written_and_signed(self, results: mv.Results, tmp_path: Path) -> None:
        """The four files of `medfedvqa privacy report`, and the claim as an object; a second one needs a new folder."""
        site = results.sites[SITES[0]]
        claim = site.report(tmp_path / "report").sections.claim
        assert "epsilon" in claim.sentence
        names = sorted(path.name for path in (tmp_path / "report").iterdir())
        assert names == ["report.dsse.json", "report.html", "report.json", "report.pdf"]
        with pytest.raises(mv.MedfedvqaError, match="already holds"):
            site.report(tmp_path / "report")

    def test_results_are_read_again_from_their_folder(self, results: mv.Results) -> None:
        """A later program sees the same results."""
        again = mv.Results.read(results.folder)
        assert again.document == results.document and again.table() == results.table()
        assert repr(again).startswith("<Results of prompt_pfl, finished: accuracy ")

    def test_what_a_job_costs_is_known_before_it_runs(self, results: mv.Results) -> None:
        """The epsilon of the settings is the one that the sites' ledgers charge."""
        job = mv.Job("prompt_pfl", answers="closed", dp={"noise": 1.5, "count_noise": 10.0}, **SMALL)
        assert job.cost is not None and job.cost.epsilon == pytest.approx(results.sites[SITES[0]].epsilon)

    def test_progress_is_a_line_per_round(
        self, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """And one for the evaluation; without `progress` nothing is printed."""
        job = mv.Job("prompt_pfl", backbone=TINY, **SMALL)
        places: dict[str, Any] = {"sites": SITES, "backbone_files": {TINY: tiny_backbone}}
        mv.run(job, mv.load("phantom"), out=tmp_path / "loud", progress=True, **places)
        assert capsys.readouterr().out.splitlines() == ["round 1 of 2", "round 2 of 2", "evaluation"]
        mv.run(job, mv.load("phantom"), out=tmp_path / "quiet", **places)
        assert capsys.readouterr().out == ""

    @pytest.mark.slow
    def test_the_first_lines_of_the_library_s_page_train_and_plot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """They run as they stand there, in a folder of their own."""
        monkeypatch.chdir(tmp_path)
        page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
        code = page.partition("```python\n")[2].partition("```")[0]
        assert 5 <= len(code.splitlines()) <= 10
        exec(compile(code, "library.md", "exec"), {})
        assert "question-only prior" in capsys.readouterr().out and (tmp_path / "rounds.png").stat().st_size > 0


MISTAKES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "method": (lambda out: mv.Job("prompt_pfi"), "did you mean 'prompt_pfl'?"),
    "option": (lambda out: mv.Job("prompt_pfl", round=3), "did you mean 'rounds'?"),
    "value": (lambda out: mv.Job("prompt_pfl", rounds=0), "'rounds'"),
    "epsilon": (lambda out: mv.Job("prompt_pfl", epsilon=-1, answers="closed"), "'epsilon'"),
    "private answers": (lambda out: mv.Job("prompt_pfl", epsilon=1), "the answer space is public"),
    "split": (lambda out: mv.Job("prompt_pfl", split="random"), "'official' or 'patient'"),
    "committee": (lambda out: mv.Job("prompt_pfl", committee=3), "ask for secure aggregation as well"),
    "options of": (lambda out: mv.options("prompt"), "unknown method"),
    "data": (lambda out: mv.load("mri"), "unknown data 'mri'"),
    "root": (lambda out: mv.load("slake", "/nowhere"), "there is no folder '/nowhere'"),
    "empty root": (lambda out: mv.load("slake", out), "that holds 'train.json'"),
    "phantom root": (lambda out: mv.load("phantom", out), "leave out 'root'"),
    "own without root": (lambda out: mv.load(read_tiny), "give 'root'"),
    "own without a set": (lambda out: mv.load(lambda folder: 3, out), "VQAData"),  # type: ignore[arg-type, return-value]
    "own built-in name": (lambda out: mv.load(lambda folder: phantom.read(), out), "built-in"),
    "engine": (lambda out: started(out, engine="cloud"), "unknown engine 'cloud'"),
    "one site": (lambda out: started(out, sites="chest"), r"write sites=\['chest'\]"),
    "site twice": (lambda out: started(out, sites=["chest", "chest"]), "named twice"),
    "unknown site": (lambda out: started(out, sites=["foot", "hand"]), "unknown organ"),
    "device": (lambda out: started(out, device="tpu"), "cannot train on 'tpu'"),
    "out": (lambda out: started(out.parent), "already holds a run"),
    "results": (lambda out: mv.Results.read(out), "give the folder of a run"),
}


def started(out: Path, **settings: Any) -> mv.Results:
    """A run that is refused before it begins."""
    return mv.run(mv.Job("prompt_pfl"), mv.load("phantom"), out=out, **settings)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to do, and nothing is written."""
    monkeypatch.delenv("MEDFEDVQA_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "given"
    out.mkdir()
    call, sentence = MISTAKES[mistake]
    with pytest.raises(mv.MedfedvqaError, match=sentence) as error:
        call(out)
    assert "\n" not in str(error.value)
    assert not list(out.iterdir()) and sorted(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("engine", ["simulator", "provisioned"])
def test_what_one_process_defines_runs_in_that_process(
    own_data: mv.Data, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites of FLARE are other processes: they have neither the reader nor the method of a notebook."""
    with pytest.raises(mv.MedfedvqaError, match="the data 'tiny' is read by a function of this program alone"):
        mv.run(mv.Job("prompt_pfl"), own_data, engine=engine)
    monkeypatch.setattr(method_type("prompt_pfl"), "__module__", "__main__")
    with pytest.raises(mv.MedfedvqaError, match="the method 'prompt_pfl' is defined in this program alone"):
        mv.run(mv.Job("prompt_pfl"), mv.load("phantom"), engine=engine)


def test_without_pandas_a_frame_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the package to install."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mv.MedfedvqaError, match="pip install pandas"):
        mv.load("phantom").frame()


def test_two_runs_in_one_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second gets a number."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_job.time, "strftime", lambda form: "now")
    first = run_job.new_folder("fedavg", "phantom")
    first.mkdir(parents=True)
    assert re.fullmatch("runs/fedavg-phantom-now", str(first))
    assert run_job.new_folder("fedavg", "phantom") == Path("runs/fedavg-phantom-now-2")


def test_the_command_line_takes_the_same_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`medfedvqa run` begins its run with the library's own function."""

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise ConfigError("the library is asked")

    monkeypatch.setattr(run_job, "launch_of", refuse)
    monkeypatch.setattr(import_module("medfedvqa.cli.run"), "launch_of", refuse, raising=False)
    monkeypatch.setattr(sys, "argv", ["medfedvqa", "run", "prompt_pfl", "--data", "phantom"])
    with pytest.raises(SystemExit):
        main()
    assert "the library is asked" in capsys.readouterr().err
