"""The lay page of a report: one page in short words, for patients, their councils and ethics boards, in two languages.

It has the same figures as the report, from the same sections, and nothing that the report has not.
"""

from dataclasses import dataclass
from typing import Literal

from audits.escaping import NAME, bounded
from medfedvqa.report import charts
from medfedvqa.report.blocks import Badge, Block, Bullets, Document, DrawingGroup, Section, Text
from medfedvqa.report.first_page import accused_in_hundred, in_hundred
from privacy.report.model_conduct import Report
from privacy.settings import Governance

Language = Literal["en", "de"]
SHORT = 300
"""Characters of a text that the site wrote."""


@dataclass(frozen=True)
class Words:
    """All words of the page in one language. Braces stand for figures and names."""

    thousands: str
    kind: str
    question: str
    nothing: str
    noisy: str
    bare: str
    left: tuple[str, str]
    """The title of a section, and its text; so with those that follow."""
    means: tuple[str, str]
    means_all: str
    unknown: str
    unbounded: str
    labels: tuple[str, str, str]
    drawing: str
    checks: tuple[str, str]
    limits: tuple[str, tuple[str, str, str]]
    why: tuple[str, str]
    no_reason: str
    ask: tuple[str, str]
    nobody: str
    foot: str


WORDS: dict[Language, Words] = {
    "en": Words(
        thousands=",",
        kind="For patients",
        question="What left the hospital, and what does it mean for you?",
        nothing="Nothing left the hospital.",
        noisy="Your pictures and answers stayed in the hospital. Numbers with chance noise left it.",
        bare="Your pictures and answers stayed in the hospital. Numbers left it, and no noise is sure to hide you.",
        left=("What left", "{nbytes} bytes of numbers, in {messages} messages. They are what a computer learned here."),
        means=(
            "What it means for you",
            "Think of 100 people who took part. Somebody sees all that left, and wants to find them. Of 100 others, "
            "{guess} are suspected by mistake. Then at most {found} of the 100 are found. By guessing, {guess} are.",
        ),
        means_all="With all that ever left this hospital with noise, at most {found} of 100 are found.",
        unknown="This report was made by an older version, which did not compute this.",
        unbounded="There is no promise: we cannot say how many people could be found.",
        labels=("by guessing", "besides, at most", "not found"),
        drawing="100 people who took part",
        checks=("What was checked", "{every} checks: {kept} passed, {still_open} are open, {broken} failed."),
        limits=(
            "What this does not tell",
            (
                "what the hospital keeps for itself: the computer model there, and its answers",
                "what you or others told elsewhere, or another hospital shared",
                "whether the computer is good enough to help with your care",
            ),
        ),
        why=("What it is for", "The hospital writes: {text}"),
        no_reason="The hospital did not write what it is for.",
        ask=("Whom you can ask", "The hospital writes: {text}"),
        nobody="The hospital did not name anybody. Ask its data protection officer.",
        foot="Made from the same signed file as the full report on job {job}. Figures are rounded up.",
    ),
    "de": Words(
        thousands=".",
        kind="Für Patientinnen und Patienten",
        question="Was hat die Klinik verlassen, und was heißt das für Sie?",
        nothing="Nichts hat die Klinik verlassen.",
        noisy="Ihre Bilder und Antworten blieben in der Klinik. Zahlen mit Zufallsrauschen gingen hinaus.",
        bare="Ihre Bilder und Antworten blieben in der Klinik. Zahlen gingen hinaus. Nichts verbirgt Sie sicher.",
        left=(
            "Was hinausging",
            "{nbytes} Byte an Zahlen, in {messages} Nachrichten. Sie sind, was ein Computer hier gelernt hat.",
        ),
        means=(
            "Was das für Sie heißt",
            "Stellen Sie sich 100 Menschen vor, die dabei waren. Jemand sieht alles, was hinausging, und will sie "
            "finden. Von 100 anderen werden {guess} zu Unrecht verdächtigt. Dann werden höchstens {found} der 100 "
            "gefunden. Durch Raten sind es {guess}.",
        ),
        means_all="Mit allem, was je mit Rauschen hinausging, werden höchstens {found} von 100 gefunden.",
        unknown="Diesen Bericht hat eine ältere Version erstellt, die dies nicht berechnet hat.",
        unbounded="Es gibt keine Zusage: Wie viele Menschen gefunden werden könnten, ist nicht bekannt.",
        labels=("durch Raten", "außerdem, höchstens", "nicht gefunden"),
        drawing="100 Menschen, die dabei waren",
        checks=(
            "Was geprüft wurde",
            "{every} Prüfungen: {kept} bestanden, {still_open} offen, {broken} nicht bestanden.",
        ),
        limits=(
            "Was dies nicht sagt",
            (
                "was die Klinik für sich behält: das Computermodell dort und seine Antworten",
                "was Sie oder andere anderswo gesagt haben oder eine andere Klinik geteilt hat",
                "ob der Computer gut genug ist, um bei Ihrer Behandlung zu helfen",
            ),
        ),
        why=("Wozu es dient", "Die Klinik schreibt: {text}"),
        no_reason="Die Klinik hat nicht geschrieben, wozu es dient.",
        ask=("Wen Sie fragen können", "Die Klinik schreibt: {text}"),
        nobody="Die Klinik hat niemanden genannt. Fragen Sie nach der Person, die für Datenschutz zuständig ist.",
        foot="Aus derselben unterschriebenen Datei wie der ganze Bericht zu Auftrag {job}. Zahlen sind aufgerundet.",
    ),
}


def compose_patients(report: Report, language: Language) -> Document:
    """The lay page of one site's report."""
    words, identity, egress = WORDS[language], report.sections.identity, report.sections.egress
    lead = words.noisy if report.sections.claim.made else words.bare
    governance = report.evidence.governance or Governance()
    sections = (
        _section("why", words.why, governance.purpose, words.no_reason),
        Section("left", words.left[0], (Text((_left(report, words),)),)),
        Section("means", words.means[0], _means(report, words)),
        Section("checks", words.checks[0], (Text((_checks(report, words),)),)),
        Section("limits", words.limits[0], (Bullets("", words.limits[1]),)),
        _section("ask", words.ask, governance.contact, words.nobody),
    )
    return Document(
        kind=words.kind,
        title=bounded(identity.site, NAME),
        heading=words.question,
        lead=Badge(lead if egress.releases else words.nothing, "open"),
        created=identity.created,
        cards=(),
        front=sections,
        sections=(),
        foot=words.foot.format(job=bounded(identity.job, NAME)),
        language=language,
    )


def _left(report: Report, words: Words) -> str:
    egress = report.sections.egress
    if not egress.releases:
        return words.nothing
    nbytes = f"{egress.nbytes:,}".replace(",", words.thousands)
    return words.left[1].format(nbytes=nbytes, messages=f"{egress.messages:,}".replace(",", words.thousands))


def _means(report: Report, words: Words) -> tuple[Block, ...]:
    summary = report.sections.summary
    if summary is None:
        return (Text((words.unknown,)),)
    if summary.found is None:
        return (Text((words.unbounded,)),)
    found, guess = in_hundred(summary.found), accused_in_hundred(summary.wrongly)
    texts = [words.means[1].format(found=found, guess=guess)]
    if summary.found_in_all is not None:
        texts.append(words.means_all.format(found=in_hundred(summary.found_in_all)))
    drawing = charts.people(found, guess, words.labels, words.drawing)
    return (*(Text((text,)) for text in texts), DrawingGroup((drawing,)))


def _checks(report: Report, words: Words) -> str:
    states = [rule.state for rule in report.sections.verdicts.rules]
    return words.checks[1].format(
        every=len(states),
        kept=states.count("shown"),
        still_open=states.count("not shown"),
        broken=states.count("broken"),
    )


def _section(anchor: str, titled: tuple[str, str], text: str | None, missing: str) -> Section:
    """A section with a text that the site wrote, or with the sentence for none."""
    shown = titled[1].replace("{text}", bounded(text, SHORT)) if text else missing
    return Section(anchor, titled[0], (Text((shown,)),))
