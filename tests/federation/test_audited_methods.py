"""Methods from outside that `medfedvqa audit neighbours` tries, and a site that takes only those that passed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from example_plug_in import SMALL, medfedvqa
from in_process import Sites
from plug_in import built, forget_plug_ins, unpacked
from typer.testing import CliRunner

from audits import Event, JobRefused, Refusal, read
from medfedvqa import plugins
from medfedvqa.cli import app
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_runtime import SiteRuntime

NAME = "own-late"
CODE = '''"""Three methods that weigh rows: by their own loss, by place, and by losses of the whole batch."""
import torch
from medfedvqa.methods.fedavg import FedAvg


class Weighs(FedAvg):
    def row_loss(self, trainer, state, start):
        plain = super().row_loss(trainer, state, start)
        return lambda values, rows: (each := plain(values, rows)) * self.weights(each.detach())


class OwnLoss(Weighs):
    name = "own_loss"
    def weights(self, each):
        return 1 - torch.exp(-each)


class OwnPlace(Weighs):
    name = "own_place"
    def weights(self, each):
        return (torch.rand(len(each), generator=torch.Generator().manual_seed(7)) > 0.5).float()


class OwnBatch(Weighs):
    name = "own_batch"
    def weights(self, each):
        return torch.sigmoid((each - each.mean()) / each.std())
'''
POINTS = "\n".join(f"{kind.lower()} = own_late:{''.join(map(str.title, kind.split('_')))}"
                   for kind in ("own_loss", "own_place", "own_batch"))  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the distribution."""
    folder = tmp_path_factory.mktemp("audited")
    return unpacked(built(folder, "1.0", {"own_late/__init__.py": CODE.encode()}, POINTS), folder / "target")


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process can import the distribution, and allows it as it is."""
    forget_plug_ins(monkeypatch, place)
    plugins.allow(plugins.pinned(NAME))
    yield place
    sys.modules.pop("own_late", None)


def site_file(sites: Sites, tmp_path: Path, **settings: object) -> Path:
    """The site.yml of a site that allows the distribution, and demands that its private methods have passed."""
    sites(
        "chest", methods=["own_loss", "fedavg"], plugins=plugins.pinned(NAME), require_audited_methods=True, **settings
    )
    (file,) = tmp_path.rglob("site.yml")
    return file


def refusal(config: SiteConfig, method: str = "own_loss", private: bool = True) -> Refusal | None:
    """The code with which the site refuses a job of the method, which its log then has; None if it takes part."""
    options = SMALL | {"weighting": "uniform", "answers": "closed"}
    dp = {"noise": 1.0, "count_noise": 1.0} if private else None
    job = {"method": method, "options": options, "data": "phantom", "backbone": "medclip@random", "dp": dp}
    runtime = SiteRuntime(config, JobSpec.from_dict(job), f"{method}-{private}")
    try:
        assert runtime.handle("start", 1, {})
        return None
    except JobRefused as refused:
        codes = [(entry.admission or {}).get("code") for entry in read(config.audit) if entry.event is Event.REFUSAL]
        assert codes[-1] == refused.code.value
        return refused.code
    finally:
        runtime.close()


def test_a_site_that_demands_it_takes_no_private_method_from_outside_that_has_not_passed(
    here: Path, sites: Sites, tmp_path: Path
) -> None:
    """Nothing noted, another method noted, other code noted: refused; noted: it runs. What is not private, or the
    project's own, needs no note."""
    file = site_file(sites, tmp_path)
    (digest,) = plugins.pinned(NAME).values()
    for passed in ({}, {digest: ["own_place"]}, {"0" * 64: ["own_loss"]}):
        (file.parent / plugins.PASSED_FILE).write_text(f"passed: {passed}")
        assert refusal(load_site_config(file, "chest")) is Refusal.NEIGHBOURS
    config = load_site_config(file, "chest")
    assert refusal(config, private=False) is refusal(config, "fedavg") is None
    plugins.remember_passed(file.parent, "own_loss", has_passed=True)
    assert refusal(load_site_config(file, "chest")) is None
    plugins.remember_passed(file.parent, "own_loss", has_passed=False)
    assert digest not in plugins.read_passed(file.parent)


@pytest.mark.parametrize("text", ["passed: [a]", "passed: {abc: [own_loss]}", "other: {}", "a: b: c", "passed: {1: x}"])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    """A sentence says what to do; the site does not start with it."""
    (tmp_path / plugins.PASSED_FILE).write_text(text)
    with pytest.raises(ConfigError, match="delete it, and run `medfedvqa audit neighbours` again$"):
        plugins.read_passed(tmp_path)


def typed(*words: str) -> Result:
    """The command, in this process, which can import the distribution."""
    return CliRunner().invoke(app, words)


@pytest.mark.slow
def test_the_command_tells_a_clean_method_from_two_that_leak(here: Path, sites: Sites, tmp_path: Path) -> None:
    """As typed: one passes and is noted by the digest of its code, which `plugins` shows; one that drops rows by place
    and one that normalises over the batch fail."""
    file = site_file(sites, tmp_path)
    quick = ["-O", "tuning=classifier", "-O", "hidden=8", "--site", str(file)]
    codes = {}
    for method in ("own_loss", "own_place", "own_batch"):
        done = typed("audit", "neighbours", method, *quick)
        codes[method] = done.exit_code
        assert (" passed: " if method == "own_loss" else " FAILED: ") in done.stdout, done.output
    assert codes == {"own_loss": 0, "own_place": 1, "own_batch": 1}
    (digest,) = plugins.pinned(NAME).values()
    assert plugins.read_passed(file.parent) == {digest: ("own_loss",)}
    # In a process of its own, as a person types it.
    listed = medfedvqa(tmp_path, here, "plugins", "--site", str(file)).stdout
    assert "; passed `audit neighbours`: own_loss\n" in listed
    assert refusal(load_site_config(file, "chest")) is None


def test_only_a_distribution_s_method_is_noted(here: Path, sites: Sites, tmp_path: Path) -> None:
    """The project's own needs no note: `--site` with it is refused before anything is loaded."""
    done = typed("audit", "neighbours", "fedavg", "--site", str(site_file(sites, tmp_path)))
    assert done.exit_code == 1 and "none offers this method: leave it out" in str(done.exception)
