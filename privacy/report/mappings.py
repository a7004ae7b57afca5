"""Section K: what in the report serves which part of which framework, and what the project does not provide.

Written in the project's own words, from NIST SP 800-226 (2025), the template of the OpenDP deployments registry (2026),
45 CFR 164, Regulation (EU) 2016/679, SATRE 2, and Regulation (EU) 2024/1689. No legal conclusion follows from it.
"""

from privacy.report.facts import ReportFacts
from privacy.report.model_conduct import Mapping, Support

YES: Support = "supports"
PARTLY: Support = "partly supports"
NO: Support = "not provided"

NIST, REGISTRY = "NIST SP 800-226", "DP deployments registry"
HIPAA, GDPR, SATRE, AI_ACT = "HIPAA", "GDPR", "SATRE", "EU AI Act"
_ELSEWHERE = "Not provided by the project: an organisation's own document."


def mappings(facts: ReportFacts) -> tuple[Mapping, ...]:
    """K."""
    lines = (*_nist(facts), *_registry(facts), *_hipaa(facts), *_gdpr(facts), *_SATRE, *_AI_ACT)
    return tuple(
        Mapping(framework=of, reference=reference, topic=topic, support=support, said=sentence, evidence=tuple(where))
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
        (NIST, "floating point", "noise on computers", claim, "Sums of four Gaussians, secure generator.", "D"),
        (NIST, "trust model", "who sees what", YES, "Server, sites, author, administrators.", "G"),
        (NIST, "side channels", "time", NO, "Time is not protected, and the report says so.", "F"),
        (NIST, "security and access control", "of the site's own disk", NO, _ELSEWHERE, "F"),
        (NIST, "data collection exposure", "what was collected", PARTLY, "De-identification, if done here.", "I"),
        (NIST, "utility", "what privacy costs", _given(facts.evidence.measured), "Accuracy with and without.", "J"),
    )  # fmt: skip


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
        (HIPAA, "164.312(a)", "access control", NO, _ELSEWHERE, "G"),
        (HIPAA, "164.312(b)", "audit controls", YES, "Every release is logged before it is sent.", "H"),
        (HIPAA, "164.312(c)", "integrity", YES, "Hash chain, tree, signed and cosigned checkpoints.", "HL"),
        (HIPAA, "164.312(d)", "authentication", PARTLY, "Keys of sites; people are for the site.", "A"),
        (HIPAA, "164.312(e)", "transmission security", PARTLY, "Mutual TLS, and shares; not shown here.", "G"),
        (HIPAA, "164.316(b)(1)", "documentation", PARTLY, "This report, of the jobs it is about.", "A"),
        (HIPAA, "164.316(b)(2)", "six years' retention", PARTLY, "The log's default; the report is the site's.", "H"),
    )


def _gdpr(facts: ReportFacts) -> tuple[Line, ...]:
    return (
        (GDPR, "Art. 30(1)(a), (b)", "controller and purposes", NO, _ELSEWHERE, "A"),
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
    (SATRE, "Federation", "what moves between environments", YES, "Releases and their protections.", "GH"),
)
_AI_ACT: tuple[Line, ...] = (
    (AI_ACT, "Art. 12(1)", "automatic logging", PARTLY, "Of training; a system in use is not logged.", "H"),
    (AI_ACT, "Art. 12(2)", "traceability", PARTLY, "Of releases, code, backbone, adapter.", "AH"),
    (AI_ACT, "Art. 19(1)", "keeping logs six months or more", PARTLY, "Six years by default, of training.", "H"),
    (AI_ACT, "Art. 12(3)", "remote biometric identification", NO, "Not what this is for.", "A"),
)


def _given(value: object) -> Support:
    return YES if value is not None else NO
