"""Section K: what in the report serves which part of which framework, and what the project does not provide.

Written in the project's own words; docs/compliance.md says against what each source was checked. No legal conclusion
follows from it. It is a dated statement of the version that writes it: later versions have other lines, and a report
keeps those that it was signed with.
"""

from typing import NamedTuple

from privacy.report.facts import ReportFacts
from privacy.report.model_conduct import Mapping, Support
from privacy.withdrawn import identities, withdrawal_of, withdrawals

YES: Support = "supports"
PARTLY: Support = "partly supports"
NO: Support = "not provided"

NIST, REGISTRY = "NIST SP 800-226", "DP deployments registry"
HIPAA, GDPR, SATRE, AI_ACT = "HIPAA", "GDPR", "SATRE", "EU AI Act"
EHDS, AI_RMF = "European Health Data Space", "NIST AI RMF"
ISO_27001, ISO_27701, ISO_27559 = "ISO/IEC 27001", "ISO/IEC 27701", "ISO/IEC 27559"
ISO_42001 = "ISO/IEC 42001"
_ELSEWHERE = "Not provided by the project: an organisation's own document."


class FrameworkVersion(NamedTuple):
    """Which version of a framework its lines are about, and the day on which they were last compared with it."""

    version: str
    checked: str


_AI_ACT_DATES = "high-risk systems of Annex III from 2 December 2027, of Annex I from 2 August 2028"
SOURCES: dict[str, FrameworkVersion] = {
    NIST: FrameworkVersion("March 2025", "2026-11-27"),
    REGISTRY: FrameworkVersion("template of 2026", "2026-11-27"),
    HIPAA: FrameworkVersion("45 CFR 164 as in force; 90 FR 898 proposes to change it", "2026-11-27"),
    GDPR: FrameworkVersion("(EU) 2016/679", "2026-11-27"),
    SATRE: FrameworkVersion("version 2", "2026-11-27"),
    AI_ACT: FrameworkVersion(f"(EU) 2024/1689 with the Digital Omnibus on AI: {_AI_ACT_DATES}", "2026-11-27"),
    EHDS: FrameworkVersion("(EU) 2025/327: secondary use from 26 March 2029", "2026-11-27"),
    ISO_27001: FrameworkVersion("2022", "2026-11-27"),
    ISO_27701: FrameworkVersion("2019", "2026-11-27"),
    ISO_27559: FrameworkVersion("2022", "2026-11-27"),
    ISO_42001: FrameworkVersion("2023", "2026-11-27"),
    AI_RMF: FrameworkVersion("1.0, January 2023", "2026-11-27"),
}


def mappings(facts: ReportFacts) -> tuple[Mapping, ...]:
    """K."""
    lines: tuple[Line, ...] = (*_nist(facts), *_registry(facts), *_hipaa(facts), *_gdpr(facts), *_SATRE)
    lines += (*_ai_act(facts), *_ehds(facts), *_ISO, *_iso_42001(facts), *_ai_rmf(facts))
    return tuple(
        Mapping(
            framework=of,
            reference=reference,
            topic=topic,
            support=support,
            said=sentence,
            evidence=tuple(where),
            source=SOURCES[of].version,
            checked=SOURCES[of].checked,
        )
        for of, reference, topic, support, sentence, where in lines
    )


Line = tuple[str, str, str, Support, str, str]
"""Framework, reference, topic, support, sentence, and the letters of sections."""


def _nist(facts: ReportFacts) -> tuple[Line, ...]:
    private = facts.is_private and not facts.void and not facts.unprotected
    claim = YES if private else NO
    clip = YES if private and facts.evidence.run else PARTLY if private else NO
    return (
        (NIST, "parameters", "epsilon and delta of the release", claim, "Stated with both accountants.", "BE"),
        (NIST, "unit of privacy", "who is protected", claim, "The patient, with all rows.", "BC"),
        (NIST, "composition", "loss over all jobs", claim, "The ledger's charges, replayed.", "E"),
        (NIST, "mechanism", "sensitivity and noise", clip, "Clip, multiplier, sampler as executed.", "CD"),
        (NIST, "floating point", "noise on computers", *_floating_point(facts, claim), "D"),
        (NIST, "trust model", "who sees what", YES, "Server, sites, author, administrators.", "G"),
        (NIST, "side channels", "time", NO, "Time is not protected, and the report says so.", "F"),
        (NIST, "security and access control", "of the site's own disk", NO, _ELSEWHERE, "F"),
        (NIST, "data collection exposure", "what was collected", PARTLY, "De-identification, if done here.", "I"),
        (NIST, "utility", "what privacy costs", _given(facts.evidence.measured), "Accuracy with and without.", "J"),
    )  # fmt: skip


def _floating_point(facts: ReportFacts, claim: Support) -> tuple[Support, str]:
    """Not provided where the log names a version whose epsilons do not hold on computers, or no version at all."""
    entries = facts.job_entries
    ran = [code for entry in entries for code in identities(entry.code_version, entry.code_digest, entry.code)]
    if withdrawal := withdrawal_of(ran, withdrawals()):
        return NO, f"{withdrawal.sentence[0].upper()}{withdrawal.sentence[1:]}"
    if not any(code.version for code in ran):
        return NO, "No entry names the version that added the noise."
    return claim, "Sum and noise on one grid, sampled exactly; secure generator."


def _registry(facts: ReportFacts) -> tuple[Line, ...]:
    claim = YES if facts.is_private and not facts.void and not facts.unprotected else NO
    return (
        (REGISTRY, "basic", "name, curator, use, product", PARTLY, "The product's type; the rest is the site's.", "A"),
        (REGISTRY, "dp_variant", "variant, domain, unprotected quantities", claim, "Exported.", "BF"),
        (REGISTRY, "privacy_loss", "unit and parameters", claim, "Exported; the number of units is withheld.", "BE"),
        (REGISTRY, "deployment_model", "model, actors, release, access", YES, "Exported.", "G"),
        (REGISTRY, "implementation", "mechanisms, composition, tuning", PARTLY, "All but tuning and reasons.", "DE"),
        (REGISTRY, "administrative", "authors, sources, review", NO, _ELSEWHERE, "L"),
    )


def _hipaa(facts: ReportFacts) -> tuple[Line, ...]:
    store = PARTLY if facts.evidence.ingested else NO
    return (
        (HIPAA, "164.514(b)(1)", "expert determination", PARTLY, "Figures an expert may use; no determination.", "BEJ"),
        (HIPAA, "164.514(b)(2)", "removal of listed identifiers", store, "A DICOM profile, not the list itself.", "I"),
        (HIPAA, "164.514(c)", "re-identification codes", store, "Keyed pseudonyms; the key stays on site.", "I"),
        (HIPAA, "164.308(a)(1)(ii)(A)", "risk analysis", PARTLY, "Bounds, attacks, what is not covered.", "BFJ"),
        (HIPAA, "164.308(a)(1)(ii)(D)", "review of activity", PARTLY, "Log, verifier; people are for the site.", "HL"),
        (HIPAA, "164.308(a)(6)", "security incidents", NO, _ELSEWHERE, "H"),
        (HIPAA, "164.312(a)", "access control", NO, _ELSEWHERE, "G"),
        (HIPAA, "164.312(b)", "audit controls", YES, "Every release is logged before it is sent.", "H"),
        (HIPAA, "164.312(c)", "integrity", YES, "Hash chain, tree, signed and cosigned checkpoints.", "HL"),
        (HIPAA, "164.312(d)", "authentication", PARTLY, "Keys of sites; people are for the site.", "A"),
        (HIPAA, "164.312(e)", "transmission security", PARTLY, "Mutual TLS, and shares; not shown here.", "G"),
        (HIPAA, "164.316(b)(1)", "documentation", PARTLY, "This report, of the jobs it is about.", "A"),
        (HIPAA, "164.512(i)(1)(i)", "approval of a board or waiver", NO, _ELSEWHERE, "A"),
        (HIPAA, "164.512(i)(2)(ii)", "minimal risk of a use", PARTLY, "Bound, budget, trust; the board judges.", "BEG"),
        (HIPAA, "164.316(b)(2)", "six years' retention", PARTLY, "The log's default; the report is the site's.", "H"),
    )


def _gdpr(facts: ReportFacts) -> tuple[Line, ...]:
    words, law = _in_words(facts, "controller", "purpose"), _in_words(facts, "legal_basis")
    purpose, kept = _in_words(facts, "purpose", "permitted_use"), _in_words(facts, "retention")
    return (
        (GDPR, "Art. 5(1)(b)", "purpose limitation", purpose, "The site's words; the gate knows tasks only.", "A"),
        (GDPR, "Art. 5(1)(c)", "data minimisation", YES, "Only declared tensors leave, each bounded.", "H"),
        (GDPR, "Art. 5(1)(e)", "storage limitation", kept, "The site's words.", "A"),
        (GDPR, "Art. 5(2)", "accountability", YES, "Log, ledger, proofs, verifier.", "EHL"),
        (GDPR, "Art. 6", "lawfulness", law, "The site's reference; no assessment.", "A"),
        (GDPR, "Art. 9", "health data", law, "The site's reference; no assessment.", "A"),
        (GDPR, "Art. 17", "erasure", NO, "Models keep what they learned; epsilon bounds it.", "B"),
        (GDPR, "Art. 25", "protection by design and default", PARTLY, "Gate, noise, budget, refusals.", "DEGH"),
        (GDPR, "Art. 32(1)", "security of processing", PARTLY, "Noise, shares, log; disks are the site's.", "DGH"),
        (GDPR, "Art. 33", "notice of a breach", PARTLY, "What left, when, to whom; notice is the site's.", "H"),
        (GDPR, "Art. 89(1)", "safeguards of research", PARTLY, "Minimisation, pseudonyms, noise.", "DHI"),
        (GDPR, "Art. 30(1)(a), (b)", "controller and purposes", words, "The site's words.", "A"),
        (GDPR, "Art. 30(1)(c)", "categories of people and data", PARTLY, "Unit and kinds of tensors.", "CH"),
        (GDPR, "Art. 30(1)(d)", "recipients", YES, "Of each release.", "H"),
        (GDPR, "Art. 30(1)(e)", "transfers to third countries", NO, _ELSEWHERE, "H"),
        (GDPR, "Art. 30(1)(f)", "time limits for erasure", PARTLY, "Of the log only.", "H"),
        (GDPR, "Art. 30(1)(g)", "technical measures", YES, "Noise, shares, gate, log.", "DGH"),
        (GDPR, "Art. 35(7)(a)", "description of the processing", PARTLY, "What ran and what left.", "ADH"),
        (GDPR, "Art. 35(7)(b)", "necessity and proportionality", NO, _ELSEWHERE, "B"),
        (GDPR, "Art. 35(7)(c)", "risks", PARTLY, "Upper bound, attacks, what is not covered.", "BFJ"),
        (GDPR, "Art. 35(7)(d)", "measures against them", YES, "Mechanism, budget, trust, rules.", "DEGL"),
        (GDPR, "Recital 26", "whether what left is anonymous", NO, "A legal question; the report has figures.", "B"),
    )


_SATRE: tuple[Line, ...] = (
    (SATRE, "Information governance", "policies and people", NO, _ELSEWHERE, "L"),
    (SATRE, "Information governance", "records for audits", YES, "The report, its proofs, the verifier.", "EHL"),
    (SATRE, "Computing technology", "protection of the environment", NO, _ELSEWHERE, "G"),
    (SATRE, "Data management", "ingress and de-identification", PARTLY, "Where the tool ingested.", "I"),
    (SATRE, "Data management", "output checking (airlock)", YES, "The gate's declared releases, each logged.", "H"),
    (SATRE, "Data management", "disclosure risk of outputs", PARTLY, "Epsilon and attacks.", "BJ"),
    (SATRE, "3.3.07", "export of model artefacts", YES, "Each release, its form, noise, recipient and proof.", "BDHJ"),
    (SATRE, "Federation", "what moves between environments", YES, "Releases and their protections.", "GH"),
)


def _ai_act(facts: ReportFacts) -> tuple[Line, ...]:
    accuracy = PARTLY if facts.evidence.measured else NO
    return (
        (AI_ACT, "Art. 9", "risk management", PARTLY, "Bounds, attacks, what is not covered.", "BFJ"),
        (AI_ACT, "Art. 10", "data governance", PARTLY, "De-identification, if done here; not bias.", "I"),
        (AI_ACT, "Art. 11", "technical documentation", PARTLY, "Of training: code, settings, mechanism.", "ADH"),
        (AI_ACT, "Art. 12(1)", "automatic logging", PARTLY, "Training here; answers and exports in the log.", "H"),
        (AI_ACT, "Art. 12(2)", "traceability", PARTLY, "Of releases, code, backbone, adapter.", "AH"),
        (AI_ACT, "Art. 13", "information for deployers", PARTLY, "Limits and accuracies of training.", "BFJ"),
        (AI_ACT, "Art. 14", "human oversight", NO, _ELSEWHERE, "L"),
        (AI_ACT, "Art. 15(1)", "accuracy and robustness", accuracy, "Accuracy on test rows, if given.", "J"),
        (AI_ACT, "Art. 15(5)", "cybersecurity", PARTLY, "Of training: gate, log, limits of the server.", "GH"),
        (AI_ACT, "Art. 19(1)", "keeping logs six months or more", PARTLY, "Six years by default, of the log.", "H"),
        (AI_ACT, "Art. 12(3)", "remote biometric identification", NO, "Not what this is for.", "A"),
    )


def _ehds(facts: ReportFacts) -> tuple[Line, ...]:
    purpose = _in_words(facts, "purpose")
    return (
        (EHDS, "Art. 53", "purposes of secondary use", purpose, "The site's words; no assessment.", "A"),
        (EHDS, "Art. 54", "prohibited uses", NO, _ELSEWHERE, "A"),
        (EHDS, "Art. 66", "minimisation and purpose limitation", PARTLY, "Declared tensors; rows stay.", "H"),
        (EHDS, "Art. 68", "data permit", NO, _ELSEWHERE, "A"),
        (EHDS, "Art. 71", "right to opt out", NO, "The site leaves such patients out.", "I"),
        (EHDS, "Art. 73", "secure processing environment", PARTLY, f"Output gate, log. {_SPE}", "GH"),
        (EHDS, "Recital 77", "only non-personal data leave", PARTLY, "Epsilon, gate; lawyers judge the rest.", "BH"),
    )


_SPE = "The rest is the site's; requirements are due by 26 March 2027, Art. 73(5)."


_ISO: tuple[Line, ...] = (
    (ISO_27001, "A.5.34", "privacy and personal data", PARTLY, "Bound and budget by patient.", "BE"),
    (ISO_27001, "A.8.10", "deletion of information", NO, _ELSEWHERE, "I"),
    (ISO_27001, "A.8.11", "data masking", PARTLY, "Pseudonyms, noise, shares.", "DGI"),
    (ISO_27001, "A.8.12", "prevention of leakage", PARTLY, "The gate; other ways out are the site's.", "H"),
    (ISO_27001, "A.8.15", "logging", YES, "Signed and cosigned log.", "HL"),
    (ISO_27001, "A.8.24", "cryptography", PARTLY, "Signatures and shares; keys are the site's.", "AG"),
    (ISO_27701, "7.2.1", "purpose", NO, _ELSEWHERE, "A"),
    (ISO_27701, "7.2.5", "privacy impact assessment", PARTLY, "Figures for one.", "BFJ"),
    (ISO_27701, "7.2.8", "records of processing", PARTLY, "Of releases.", "H"),
    (ISO_27701, "7.4.4", "minimisation", PARTLY, "Declared tensors, each bounded.", "H"),
    (ISO_27701, "7.4.5", "de-identification and deletion", PARTLY, "De-identification, if done here.", "I"),
    (ISO_27559, "Clause 6", "context assessment", PARTLY, "Recipients, trust, observers; not their motives.", "GH"),
    (ISO_27559, "Clause 7", "data assessment", NO, _ELSEWHERE, "I"),
    (ISO_27559, "Clause 8", "identifiability and mitigation", PARTLY, "Bound, attacks, noise.", "BDJ"),
    (ISO_27559, "Clause 9", "de-identification governance", PARTLY, "Log and budget; review is the site's.", "EH"),
)


def _iso_42001(facts: ReportFacts) -> tuple[Line, ...]:
    origin = PARTLY if facts.evidence.ingested else NO
    return (
        (ISO_42001, "A.2.2", "AI policy", NO, _ELSEWHERE, "L"),
        (ISO_42001, "A.5.2", "AI system impact assessment", PARTLY, "Figures for one: bound, attacks.", "BFJ"),
        (ISO_42001, "A.6.2.7", "technical documentation", PARTLY, "Of training: code, settings, mechanism.", "ADH"),
        (ISO_42001, "A.6.2.8", "event logs", PARTLY, "Training here; answers and exports in the log.", "H"),
        (ISO_42001, "A.7.5", "data provenance", origin, "Manifest of the store, if ingested here.", "I"),
    )


def _ai_rmf(facts: ReportFacts) -> tuple[Line, ...]:
    purpose = _in_words(facts, "purpose", "permitted_use")
    measured = PARTLY if facts.evidence.measured else NO
    return (
        (AI_RMF, "GOVERN 1", "policies and processes", NO, _ELSEWHERE, "L"),
        (AI_RMF, "MAP 1.1", "intended purpose", purpose, "The site's words.", "A"),
        (AI_RMF, "MEASURE 2.3", "performance", measured, "Accuracy on test rows, if given; not in use.", "J"),
        (AI_RMF, "MEASURE 2.7", "security and resilience", PARTLY, "Of training: trust, gate, log.", "GH"),
        (AI_RMF, "MEASURE 2.10", "privacy risk", PARTLY, "Bound, budget, attacks.", "BEJ"),
        (AI_RMF, "MANAGE 4.3", "incidents", NO, _ELSEWHERE, "H"),
    )


def _in_words(facts: ReportFacts, *names: str) -> Support:
    """Whether the site gave these texts. Nobody checks what they say."""
    governance = facts.evidence.governance
    return PARTLY if governance and all(getattr(governance, name) for name in names) else NO


def _given(value: object) -> Support:
    return YES if value is not None else NO
