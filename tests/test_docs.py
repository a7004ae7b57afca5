"""What the documents say is there: pages, links, commands, options. And the site made of them needs no network."""

import csv
import inspect
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pytest
import typer
from PIL import Image
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import audits
import privacy
from medfedvqa import core, data, models, training
from medfedvqa.cli import app
from medfedvqa.cli.lazy import LazyCommand
from medfedvqa.version import VERSION
from privacy import Reliability, reliability_weights
from privacy.report.verdicts import FrameworkLine, mappings
from privacy.settings import Governance

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")])
TEXTS = [path for path in [*PAGES, *ROOT.glob("*.md")] if path.suffix == ".md"]
BROWSER = shutil.which("chromium")

FENCE = re.compile(r"^ *```.*?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?<![\w/.-])(?<!import )medfedvqa (?=[a-z]).*")
QUOTED = re.compile(r'"[^"]*"')
END = re.compile(r" (?:&&|\||>|<|\|\|) |[;)](?=\s|$)|$")
LINK = re.compile(r"\]\(([^)\s]*)\)")
FILE = re.compile(
    r"(?:audits|benchmarks|docs|medfedvqa|nvflare_jobs|privacy|tests)/[\w/.-]+\.(?:css|js|json|lock|md|py|yml)"
)
COMPARED = re.compile(r"^Compared on (\S+) with: (.*)\.$", re.MULTILINE)
"""Day and source of all rows of a section of docs/compliance.md."""
EXAMPLES = {"medfedvqa/methods/halfway.py", "tests/methods/test_halfway.py"}
"""Files that CONTRIBUTING.md has its reader write."""
SOURCE = re.compile(r"<(?:script|img|link|iframe|source|video|audio|object|embed|use)\b[^>]*>", re.IGNORECASE)
REMOTE = re.compile(r"""(?:src|href|srcset|data)\s*=\s*["']?\s*(?:https?:)?//""", re.IGNORECASE)
REMOTE_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?\s*(?:https?:)?//""", re.IGNORECASE)

by_name = pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
slow = [pytest.mark.slow]


def commands(code: str) -> Iterator[list[str]]:
    """The words of each command of ours in a piece of code, without comments and what comes after it in a line."""
    for line in code.replace("\\\n", " ").splitlines():
        if found := COMMAND.search(line):
            unquoted = QUOTED.sub(lambda quoted: "_" * len(quoted.group()), found.group())
            alone = found.group()[: END.search(unquoted).start()]
            yield shlex.split(re.sub(r"\.\.\.|[][]", "", alone), comments=True)[1:]


def resolved(words: list[str]) -> tuple[TyperGroup | TyperCommand, list[str]]:
    """The command that the words name, and the rest of them."""
    command = get_command(app)
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command '{words[0]}'"
        command, words = command.commands[words[0]], words[1:]
    return command.named(words) if isinstance(command, LazyCommand) else (command, words)


def slugs(text: str) -> set[str]:
    """The anchors that a Git host gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_name
def test_every_command_that_is_quoted_in_passing_exists_with_its_options(path: Path) -> None:
    for span in INLINE.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        for words in commands(span.replace("\n", " ")):
            command, rest = resolved(words)
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
            assert {word.split("=")[0] for word in rest if word.startswith("-")} <= known, span


@by_name
def test_every_command_in_a_block_could_be_typed(path: Path) -> None:
    """Parsed by the command's own parser: no unknown option, nothing missing, nothing too much; values may be names."""
    for block in FENCE.findall(path.read_text(encoding="utf-8")):
        for words in commands(INLINE.sub("", block)):  # an output's sentences may quote commands
            command, rest = resolved(words)
            try:
                command.make_context(" ".join(words), rest)
            except typer.BadParameter as error:
                if type(error) is not typer.BadParameter:  # a kind of its own: a parameter is missing
                    raise


def test_every_answered_requirement_names_commands_and_files_that_exist() -> None:
    """`docs/requirements.csv`: each line once, and nothing is provided without something that shows it."""
    with (DOCS / "requirements.csv").open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    for row in rows:
        shown = INLINE.findall(row["shown by"])
        assert row["shown by"] == "; ".join(f"`{span}`" for span in shown), row["id"]
        assert bool(shown) == (row["answer"] != "not provided"), row["id"]
        for span in shown:
            if not span.startswith("medfedvqa "):
                assert (ROOT / span).is_file(), span
                continue
            command, rest = resolved(shlex.split(span)[1:])
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
            assert {word for word in rest if word.startswith("-")} <= known, span
        assert row["answer"] != "partly" or row["what is missing, or where"], row["id"]
    lasts = {"URS": 15, "F-SRS": 10, "NF-SRS": 5, "F-IMSD": 17, "NF-IMSD": 7, "F-HUF": 21, "NF-HUF": 2}
    lasts |= {"F-PIL": 32, "NF-PIL": 11, "F-STD": 10, "NF-STD": 4}
    flute = [f"{group}-{number}" for group, last in lasts.items() for number in range(1, last + 1)]
    assert [row["id"] for row in rows if not row["id"].startswith("SATRE ")] == flute
    assert len({row["id"] for row in rows}) == len(rows)
    page = (DOCS / "requirements.md").read_text(encoding="utf-8")
    for source in ("FLUTE", "SATRE"):
        answers = [row["answer"] for row in rows if row["id"].startswith("SATRE ") == (source == "SATRE")]
        counts = [answers.count(answer) for answer in ("provided", "partly", "not provided")]
        assert f"| {source} | {counts[0]} | {counts[1]} | {counts[2]} |" in page


def test_a_command_or_an_option_that_is_not_there_is_noticed() -> None:
    """The two tests above can fail."""
    with pytest.raises(AssertionError):
        resolved(["audit", "prove"])
    for wrong in (["jobs", "export"], ["run", "prompt_pfl", "--epsilom", "3"], ["audit", "show", "one", "two"]):
        command, rest = resolved(wrong)
        with pytest.raises(typer.TyperException):
            command.make_context("medfedvqa", rest)
    quoted = list(commands("cd x && medfedvqa audit verify DIR [--against PLACE]... | cat  # and more"))
    assert quoted == [["audit", "verify", "DIR", "--against", "PLACE"]]


@by_name
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    """As the raw Markdown shows on a Git host, headings included."""
    text = path.read_text(encoding="utf-8")
    for link in LINK.findall(FENCE.sub("", text)):
        if link.startswith(("https://", "http://")):
            continue
        place, _, anchor = unquote(link).partition("#")
        found = (path.parent / place).resolve() if place else path
        assert found.exists(), link
        assert not anchor or anchor in slugs(found.read_text(encoding="utf-8")), link


@by_name
def test_every_file_that_a_page_names_exists(path: Path) -> None:
    """A moved file leaves no page behind; the changelog tells of files as they were called."""
    if path.name == "CHANGELOG.md":
        return
    named = {span for span in INLINE.findall(path.read_text(encoding="utf-8")) if FILE.fullmatch(span)}
    assert not {name for name in named - EXAMPLES if not (ROOT / name).exists()}


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = runpy.run_path(str(DOCS / "conf.py"))["NAVIGATION"]
    listed = [page for lists in navigation.values() for pages in lists.values() for page in pages]
    there = {path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES}
    assert sorted([*listed, "index"]) == sorted(there)


def test_the_index_lists_every_page_but_those_that_other_lists_hold() -> None:
    """`docs/index.md` is what a reader on a Git host has for a navigation."""
    linked = {link.partition("#")[0] for link in LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))}
    wanted = {path.relative_to(DOCS).as_posix() for path in PAGES if path.parent.name != "api"} - {"index.md"}
    assert wanted <= linked


def test_figures_say_in_words_what_they_show() -> None:
    """Every picture in a page has a text; every drawn one has a title and a description, and fetches nothing."""
    for path in TEXTS:
        assert not re.search(r"!\[\s*\]\(", path.read_text(encoding="utf-8")), path
    drawings = [DOCS / "figures" / f"{name}.svg" for name in ("federation", "round", "path", "dp", "log", "unicon")]
    doors = sorted(DOCS.glob("figures/door-*.svg"))
    assert len(doors) == 5
    for path in (*drawings, *doors):
        drawn = path.read_text(encoding="utf-8")
        assert "<title" in drawn and "<desc" in drawn and not REMOTE.search(drawn) and "<script" not in drawn


def test_the_worked_example_of_a_round_is_what_the_server_computes() -> None:
    """Accuracies 0.60 and 0.50, similarities 0.80 and 0.32: weights 0.75 and 0.25, as the figure prints them."""
    similar = [0.80, 0.32]
    others = np.array([[[[cosine, (1 - cosine**2) ** 0.5]]] for cosine in similar])
    weights = reliability_weights(np.array([[[1.0, 0.0]]]), others, np.array([0.60, 0.50]), Reliability())
    assert np.allclose(weights, [0.75, 0.25])
    assert "0.75 P₂ + 0.25 P₃" in (DOCS / "figures" / "round.svg").read_text(encoding="utf-8")


def section_k() -> tuple[FrameworkLine, ...]:
    """The lines of a report of a private job of this version, with everything in it."""
    words = Governance(**dict.fromkeys(Governance.model_fields, "given"))
    everything = SimpleNamespace(run=True, measured=SimpleNamespace(groups=True), ingested=True, governance=words)
    entries = [SimpleNamespace(code_version=VERSION, code_digest=None, code=None)]
    facts = SimpleNamespace(is_private=True, void=False, unprotected=(), evidence=everything, job_entries=entries)
    return mappings(facts)


def test_the_compliance_page_has_every_line_of_a_reports_section_k() -> None:
    """Reference, topic, support, sections, source and day of the check: what a report of a job with everything in it
    says, the page says."""
    page = (DOCS / "compliance.md").read_text(encoding="utf-8")
    for line in section_k():
        section = page.partition(f"## {line.framework}\n")[2].partition("\n## ")[0]
        row = rf"^\| {re.escape(line.reference)}: {re.escape(line.topic)} \| {line.support} \|"
        found = re.search(rf"{row}.* \(([A-L, ]+)\) \|$", section, re.MULTILINE)
        assert found and found.group(1).split(", ") == list(line.evidence), (line.framework, line.reference, line.topic)
        assert COMPARED.findall(section) == [(line.checked, line.source)], (line.framework, line.reference)


def test_no_row_on_compliance_is_older_than_a_year() -> None:
    """Of the page, whose sections each have one source and one day for all rows, and of section K."""
    dated = {(line.reference, line.source or "", line.checked or "") for line in section_k()}
    for section in (DOCS / "compliance.md").read_text(encoding="utf-8").split("\n## ")[1:-1]:
        [(day, source)] = COMPARED.findall(section)
        rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
        dated |= {(row[0], source, day) for row in rows if row[1] != "support"}
    assert len(dated) > 100 and all(source for _, source, _ in dated)
    today = datetime.now(UTC).date()
    ages = {row: today - date.fromisoformat(row[2]) for row in dated}
    assert min(ages.values()) >= timedelta(days=-1), "a check lies in the future"
    old = sorted(row for row, age in ages.items() if age > timedelta(days=366))
    assert not old, (
        "these rows were compared with their sources more than a year ago: read the sources as they are today, mend "
        f"the rows here and in privacy/report/mappings.txt, and write down the new day and version: {old}"
    )


def test_the_compliance_page_never_says_that_anybody_complies() -> None:
    """It says what is supported, and what is not provided; each row one of three."""
    page = (DOCS / "compliance.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    heads = [row for row in rows if row[1] == "support"]
    assert len(heads) == 12 and len(rows) > 50
    assert {row[1] for row in rows} == {"support", "supports", "partly supports", "not provided"}
    assert re.findall(r"(\S+ \S+) compl(?:y|ies|iant)\b", " ".join(page.split())) == ["that anybody"]
    assert "neither means that anybody complies" in page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    strict = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    built = subprocess.run(
        [*strict, "--doctree-dir", str(folder / "trees"), str(DOCS), str(folder / "html")],
        capture_output=True, text=True, timeout=600, cwd=ROOT, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture
def tab() -> Iterator[Any]:
    """A page of Chromium that asks for nothing by itself."""
    if BROWSER is None:
        pytest.skip("needs Chromium")
    sync = pytest.importorskip("playwright.sync_api").sync_playwright
    with sync() as play:
        browser = play.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser.new_page()
        browser.close()


def searched(tab: Any, site: Path, text: str) -> list[str]:
    """The addresses that the site's own search finds, best first."""
    tab.goto((site / "search.html").as_uri() + f"?q={quote(text)}")
    tab.wait_for_function("document.querySelector('.search-summary')?.innerText")
    links: list[str] = tab.locator("#search-results li a").evaluate_all("links => links.map(link => link.href)")
    return links


class TestSite:
    pytestmark = slow

    def test_the_site_loads_nothing_from_a_network(self, site: Path) -> None:
        """No script, style, font or picture of any page has an address of a host."""
        pages = list(site.rglob("*.html"))
        assert len(pages) > len(PAGES)
        for page in pages:
            text = page.read_text(encoding="utf-8")
            assert not [tag for tag in SOURCE.findall(text) if REMOTE.search(tag)], page
            styles = re.findall(r"<style.*?</style>", text, re.DOTALL)
            assert not [style for style in styles if REMOTE_STYLE.search(style)], page
        for path in (*site.rglob("*.css"), *site.rglob("*.svg")):
            assert not REMOTE_STYLE.search(path.read_text(encoding="utf-8")), path

    def test_every_public_class_and_function_is_in_the_reference(self, site: Path) -> None:
        """On the page of its package; what `core` hands on from `training` is on the former's alone."""
        for package in (audits, privacy, data, models, training, core):
            page = site / "api" / f"{package.__name__.rpartition('.')[2]}.html"
            text = page.read_text(encoding="utf-8")
            elsewhere = core.__all__ if package is training else ()
            public = {name: getattr(package, name) for name in package.__all__ if name not in elsewhere}
            names = [name for name, found in public.items() if isinstance(found, type) or inspect.isfunction(found)]
            assert names
            assert not [name for name in names if f'id="{package.__name__}.{name}"' not in text], package.__name__

    def test_search_works_from_a_disk(self, site: Path, tab: Any) -> None:
        """In a browser, opened as files: words are found, and no page asks any host for anything."""
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        found = searched(tab, site, "reliability")
        tab.goto((site / "concepts.html").as_uri())
        widths = tab.locator("article img").evaluate_all("images => images.map(image => image.naturalWidth)")
        assert any("concepts.html" in link for link in found)
        assert len(widths) == 6 and all(widths)
        assert asked and all(url.startswith(("file:", "data:")) for url in asked)

    def test_a_question_finds_its_answer_first_and_guides_stand_above_the_reference(self, site: Path, tab: Any) -> None:
        """Every question of `docs/faq.md`, typed as it stands there; then a word of one, and the name of a function."""
        questions = re.findall(r"^### (.*)$", (DOCS / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
        assert len(questions) > 15
        slugs = [re.sub(r"[^\w\- ]", "", question.lower()).replace(" ", "-") for question in questions]
        assert searched(tab, site, questions[0])[0].endswith(f"faq.html#{slugs[0]}")
        best = "text => Search._performSearch(...Search._parseQuery(text)).pop().slice(0, 3).join(' ')"
        first = [tab.evaluate(best, question) for question in questions]
        assert first == [f"faq Questions > {text} #{slug}" for text, slug in zip(questions, slugs, strict=True)]
        pages = [link.partition("/html/")[2] for link in searched(tab, site, "refused")]
        kinds = [page.startswith("api/") for page in pages]
        assert pages[0].startswith("faq.html") and any(kinds) and kinds == sorted(kinds)
        assert "api/privacy.html#privacy.reliability_weights" in searched(tab, site, "reliability_weights")[0]

    def test_the_start_page_has_a_door_for_each_reader(self, site: Path, tab: Any) -> None:
        """Five cards, each with a picture, a command and a guide; on a phone nothing is wider than the screen."""
        for width, columns in ((1366, 3), (390, 1)):
            tab.set_viewport_size({"width": width, "height": 844})
            tab.goto((site / "index.html").as_uri())
            cards = tab.locator("#where-do-you-start > ul > li")
            places = cards.evaluate_all("cards => cards.map(card => card.getBoundingClientRect().left)")
            assert cards.count() == 5 and len(set(places)) == columns
            for part, least in (("img", 1), ("code", 1), ("a", 2)):
                counts = cards.evaluate_all(f"cards => cards.map(card => card.querySelectorAll('{part}').length)")
                assert all(count >= least for count in counts), part
            assert all(cards.locator("img").evaluate_all("images => images.map(image => image.naturalWidth)"))
            assert tab.evaluate("document.documentElement.scrollWidth") <= width

    def test_charts_turn_dark_with_the_screen(self, site: Path, tab: Any) -> None:
        """The picture on the page, by day and by night: its corner is as light as the page's paper."""
        lightness = dict[str, float]()
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)
            tab.goto((site / "privacy.html").as_uri())
            picture = tab.locator('img[src$="dp-accuracy.svg"]').screenshot()
            lightness[scheme] = Image.open(BytesIO(picture)).convert("L").getpixel((3, 3))
        assert lightness["light"] > 240 and lightness["dark"] < 40
