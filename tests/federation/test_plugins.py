"""Distributions from outside: found by their entry points, loaded if they are allowed by name and digest."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from example_plug_in import EXAMPLE, METHOD, NAME, NETWORK, READER, SMALL, medfedvqa
from example_plug_in import here as here
from example_plug_in import pictures as pictures
from example_plug_in import target as target
from in_process import Sites

from audits import Event, JobRefused, Refusal, read
from medfedvqa import plugins
from medfedvqa.core import registry
from medfedvqa.core.registry import method_type
from medfedvqa.data import reader_function
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare import doctor
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.models import load_backbone, shape_of


def trial(out: Path, pictures: Path, backbone: Path, *arguments: str) -> list[str]:
    """A run of the example's method on pictures that its reader reads."""
    options = [word for name, value in SMALL.items() for word in ("-O", f"{name}={value}")]
    data = ["--data", READER, "--data-root", str(pictures), "--backbone", "medclip@random"]
    return ["run", METHOD, *data, "--backbone-file", str(backbone), *options, "--out", str(out), *arguments]


def parts(audit: Path) -> dict[str, str]:
    """The plug-ins that a site's log names, with their digests."""
    [opened] = [entry for entry in read(audit) if entry.event is Event.OPEN]
    assert opened.code is not None
    return {part["name"]: part["sha256"] for part in opened.code["parts"] if part["kind"] == "plug-in"}


def test_a_distribution_is_found_without_importing_it(here: Path) -> None:
    """By name, version, digest and what it offers."""
    [found] = [plug_in for plug_in in plugins.installed() if plug_in.name == NAME]
    assert found.version == "0.1.0" and found.offers == (
        ("methods", METHOD),
        ("networks", NETWORK),
        ("readers", READER),
    )
    assert METHOD not in sys.modules
    plugins.allow(plugins.pinned(NAME))
    assert method_type(METHOD).name == METHOD and reader_function(READER).__module__ == "own_method.png_folder"


@pytest.mark.parametrize("listed", [{}, {"other": "0" * 64}, {NAME: "0" * 64}])
def test_nothing_is_imported_of_a_distribution_that_is_not_allowed_as_it_is(here: Path, listed: dict[str, str]) -> None:
    """Neither by a job's method nor by a site's reader: not listed, or with another digest."""
    plugins.allow(listed)
    network = {"method": "fedavg", "options": {"network": NETWORK}, "backbone": "none"}
    for load in (
        lambda: JobSpec.from_dict({"method": METHOD}),
        lambda: reader_function(READER),
        lambda: JobSpec.from_dict(network).exchange(),
    ):
        with pytest.raises(plugins.PlugInRefused, match="allowed here"):
            load()
    assert METHOD not in sys.modules


def test_code_that_changes_after_it_was_allowed_is_not_imported(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    """The digest is computed anew when it is needed."""
    plugins.allow(plugins.pinned(NAME))
    module = target / "own_method" / "momentum.py"
    text = module.read_text()
    try:
        module.write_text(text + "\nCHANGED = True\n")
        with pytest.raises(plugins.PlugInRefused, match="other code"):
            method_type(METHOD)
    finally:
        module.write_text(text)
    assert METHOD not in sys.modules


def test_a_distribution_that_is_installed_after_the_first_look_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked up is remembered only until a folder of imports changes."""
    os.utime(tmp_path, (0, 0))  # so that its time changes, however coarse the clock of the file system is
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not plugins.check("methods", "late_method", {})
    late = tmp_path / "own_late-1.0.dist-info"
    late.mkdir()
    (late / "METADATA").write_text("Metadata-Version: 2.1\nName: own-late\nVersion: 1.0\n")
    (late / "RECORD").write_text("")
    (late / "entry_points.txt").write_text("[medfedvqa.methods]\nlate_method = os:path\n")
    with pytest.raises(plugins.PlugInRefused, match="'own-late', which is not allowed here"):
        plugins.check("methods", "late_method", {})


def test_two_distributions_that_offer_one_name_are_both_refused(here: Path, tmp_path: Path, monkeypatch) -> None:
    """Nobody can say which is meant."""
    other = tmp_path / "own_other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: own-other\nVersion: 1.0\n")
    (other / "RECORD").write_text("")
    (other / "entry_points.txt").write_text(f"[medfedvqa.methods]\n{METHOD} = os:path\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.allow(plugins.pinned(NAME))
    with pytest.raises(plugins.PlugInRefused, match="two distributions"):
        method_type(METHOD)


def test_a_method_from_outside_never_takes_a_built_in_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an entry point or a decorator says, `fedavg` is the project's."""
    plugins.allow(plugins.pinned(NAME))
    own = method_type(METHOD)
    monkeypatch.setattr(own, "name", "fedavg")
    with pytest.raises(ConfigError, match="already"):
        registry.register(own)
    assert method_type("fedavg").__module__ == "medfedvqa.methods.fedavg"


@pytest.mark.parametrize("listed", [["own-method"], {"own-method": "abc"}, {"": "0" * 64}, {1: "0" * 64}, "own-method"])
def test_a_list_is_a_table_of_digests(tmp_path: Path, listed: object) -> None:
    """In a server's file and in site.yml alike; the message quotes nothing."""
    file = tmp_path / plugins.LIST_FILE
    assert plugins.read_list(file) == {}
    file.write_text(yaml.safe_dump({"plugins": listed}))
    with pytest.raises(ConfigError, match="as `medfedvqa plugins` prints it$"):
        plugins.read_list(file)
    file.write_text(yaml.safe_dump({"plugins": {"Own_Method": "a" * 64}}))
    assert plugins.read_list(file) == {NAME: "a" * 64}


ARCHITECTURE = """
from medfedvqa.models import load_backbone, shape_of


class Own:
    def shape(self):
        return shape_of("medclip@own")

    def load(self, name, path, device):
        return load_backbone("medclip@own", {"medclip@own": path}, device)


ARCHITECTURE = Own()
"""


def test_a_backbone_from_outside_is_loaded_from_the_sites_file_if_its_distribution_is_allowed(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random_backbone: Path
) -> None:
    """Named NAME@label; its shape and weights are what the entry point's object says."""
    info = tmp_path / "own_vit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-vit\nVersion: 1.0\n")
    (info / "RECORD").write_text("own_vit.py,,\n")
    (info / "entry_points.txt").write_text("[medfedvqa.backbones]\nown-vit = own_vit:ARCHITECTURE\n")
    (tmp_path / "own_vit.py").write_text(ARCHITECTURE)
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {"own-vit@here": random_backbone}
    for refused in (lambda: shape_of("own-vit@here"), lambda: load_backbone("own-vit@here", files)):
        with pytest.raises(plugins.PlugInRefused, match="the backbone 'own-vit'"):
            refused()
    assert "own_vit" not in sys.modules
    plugins.allow(plugins.pinned("own-vit"))
    assert shape_of("own-vit@here") == shape_of("medclip@random")
    loaded = load_backbone("own-vit@here", files)
    assert loaded.digest == load_backbone("medclip@random", {"medclip@random": random_backbone}).digest
    monkeypatch.delitem(sys.modules, "own_vit")


@pytest.mark.parametrize(("digest", "ok"), [(None, True), ("f" * 64, False)])
def test_doctor_says_whether_what_is_installed_is_what_is_allowed(
    here: Path, sites: Sites, digest: str | None, ok: bool
) -> None:
    """Without importing anything of it."""
    config = sites("chest", plugins={NAME: digest} if digest else plugins.pinned(NAME))["chest"]
    check = doctor._plug_ins(config)
    assert check.ok is ok and (ok or NAME in check.problem)
    assert METHOD not in sys.modules


@pytest.mark.parametrize("listed", ["nothing", "another digest", "the digest"])
def test_a_site_refuses_a_job_whose_method_its_own_file_does_not_allow(here: Path, sites: Sites, listed: str) -> None:
    """Although its process may load it, for another site: with the code `plug-in`, which its log has."""
    pin = plugins.pinned(NAME)
    plugins.allow(pin)
    own = {"nothing": {}, "another digest": {NAME: "0" * 64}, "the digest": pin}[listed]
    config = sites("chest", methods=[METHOD], plugins=own)["chest"]
    job = JobSpec.from_dict({"method": METHOD, "options": SMALL, "data": "phantom", "backbone": "medclip@random"})
    runtime = SiteRuntime(config, job, "job")
    if listed == "the digest":
        assert runtime.handle("start", 1, {})
        runtime.close()
        assert parts(config.audit) == pin
        return
    with pytest.raises(JobRefused) as refused:
        runtime.handle("start", 1, {})
    runtime.close()
    [entry] = [entry for entry in read(config.audit) if entry.event is Event.REFUSAL]
    assert refused.value.code is Refusal.PLUG_IN and entry.admission["code"] == "plug-in"


def test_what_is_printed_can_be_pasted_into_a_sites_file(here: Path, tmp_path: Path) -> None:
    """`medfedvqa plugins` prints YAML: names and digests, and in a comment what each offers."""
    done = medfedvqa(tmp_path, here, "plugins")
    assert yaml.safe_load(done.stdout) == {"plugins": plugins.pinned(NAME)}, done.stderr
    assert "0.1.0; method own_method, network small-net, reader png-folder" in done.stdout


@pytest.mark.slow
def test_method_and_reader_of_the_example_run_in_process(
    target: Path, here: Path, pictures: Path, random_backbone: Path, tmp_path: Path
) -> None:
    """Typed on the command line: one sentence refuses it without `--plugin`; with it every log names the digest."""
    refused = medfedvqa(tmp_path, target, *trial(tmp_path / "out", pictures, random_backbone))
    assert refused.returncode == 1 and "not allowed here" in refused.stderr and len(refused.stderr.splitlines()) == 2
    done = medfedvqa(tmp_path, target, *trial(tmp_path / "out", pictures, random_backbone, "--plugin", NAME))
    assert done.returncode == 0, done.stderr
    for site in ("chest", "head"):
        assert parts(tmp_path / "out" / "sites" / site / "audit") == plugins.pinned(NAME)
        config = load_site_config(tmp_path / "out" / "sites" / site / "site.yml", site)
        assert config.plugins == plugins.pinned(NAME) and config.data.reader == READER


@pytest.mark.slow
def test_a_module_of_the_folder_is_for_a_trial_in_process_only(random_backbone: Path, tmp_path: Path) -> None:
    """`-m` imports it, no distribution needed; another engine is refused with a sentence."""
    method = (EXAMPLE / "own_method" / "momentum.py").read_text()
    method = method.replace("class OwnMethod", "@register\nclass OwnMethod")
    (tmp_path / "my_module.py").write_text(method.replace("import Tensors", "import Tensors, register"))
    words = ["run", METHOD, "--data", "phantom", "--backbone", "medclip@random", "--site", "chest", "-m", "my_module"]
    words += ["--backbone-file", str(random_backbone)]
    words += [word for name, value in SMALL.items() for word in ("-O", f"{name}={value}")]
    done = medfedvqa(tmp_path, tmp_path, *words, "--out", "out")
    assert done.returncode == 0, done.stderr
    refused = medfedvqa(tmp_path, tmp_path, *words, "--engine", "simulator")
    assert refused.returncode == 1 and "quick trials" in refused.stderr


@pytest.mark.slow
def test_method_and_reader_of_the_example_run_through_flares_simulator(
    target: Path, here: Path, pictures: Path, random_backbone: Path, tmp_path: Path
) -> None:
    """Server and sites are given the list of the process that starts them; each log names the digest."""
    words = trial(tmp_path / "out", pictures, random_backbone, "--plugin", NAME, "--engine", "simulator")
    done = medfedvqa(tmp_path, target, *words)
    assert done.returncode == 0, done.stderr
    for site in ("chest", "head"):
        assert parts(tmp_path / "out" / "sites" / site / "audit") == plugins.pinned(NAME)


@pytest.mark.slow
def test_the_network_of_the_example_trains_through_flares_simulator(
    target: Path, here: Path, pictures: Path, tmp_path: Path
) -> None:
    """Privately, on pictures with labels; each vault loads the distribution, and its log names the digest."""
    lines = ["picture,patient,site,split,label"]
    for number, path in enumerate(sorted(pictures.glob("*.png"))[:24]):
        part = ("train", "train", "test")[number % 3]
        lines.append(
            f"{path.name},p{number},{('north', 'south')[number % 2]},{part},{('dark', 'bright')[number % 4 < 2]}"
        )
        (tmp_path / "films").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / "films" / path.name)
    (tmp_path / "films" / "labels.csv").write_text("\n".join(lines) + "\n")
    words = ["run", "fedavg", "--plugin", NAME, "--data", "image-classes", "--data-root", str(tmp_path / "films")]
    options = (f"network={NETWORK}", 'network_arguments={"width": 4}', "pixels=32", 'answers=["dark", "bright"]')
    words += [word for option in (*options, "rounds=2", "weighting=uniform") for word in ("-O", option)]
    words += ["--epsilon", "8", "--engine", "simulator", "--out", str(tmp_path / "out")]
    done = medfedvqa(tmp_path, target, *words)
    assert done.returncode == 0, done.stderr
    for site in ("north", "south"):
        audit = tmp_path / "out" / "sites" / site / "audit"
        assert parts(audit) == plugins.pinned(NAME)
        sent = {tensor.name for entry in read(audit) if entry.task == "train" for tensor in entry.tensors}
        assert {"network.0.weight", "network.1.bias", "head.answers.weight"} <= sent
