"""Drafts an entry for the Differential Privacy Deployments Registry from a report.

Fields: the template of opendp/deployments-registry-data (`tests/good_deployments/template.yaml`, 2026). Fields that
only the curator knows are left empty. The number of privacy units is left out, because a site withholds its number of
patients.
"""

from typing import Any

from privacy.report.claim import NEIGHBOURS, UNIT
from privacy.report.facts import ReportError
from privacy.report.figures import Report, Sections

DOMAIN = "Pictures of patients with questions and answers about them, as one record for each patient, at one hospital."
TUNING = (
    "De-identification as in section I of the report. No tuning under differential privacy was done by this job; what "
    "was chosen by looking at data outside of it is not accounted for."
)
CHOICES = "The unit is the patient, since a hospital owes its promise to people and not to rows."


def registry_entry(report: Report) -> dict[str, Any]:
    """The entry as plain values. Raises `ReportError` if the report claims no differential privacy."""
    sections = report.sections
    if not sections.claim.made:
        raise ReportError("the report claims no differential privacy: there is no deployment to register")
    return {
        "url_slug": "",
        "deployment": {
            "basic": _basic(sections),
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": DOMAIN,
                "unprotected_quantities": "; ".join(f"{item.what}: {item.treatment}" for item in sections.outside),
            },
            "privacy_loss": {
                "privacy_unit": UNIT,
                "privacy_unit_details": f"{sections.unit.record}; neighbours are {NEIGHBOURS}.",
                "privacy_parameters": {"epsilon": sections.claim.epsilon, "delta": sections.claim.delta},
                "privacy_parameters_details": sections.claim.sentence,
            },
            "deployment_model": _model(sections),
            "implementation": _implementation(sections),
            "administrative": {
                "evidence_sources": {},
                "status": "Draft",
                "registry_authors": [""],
                "tier": 3,
            },
        },
    }


def _basic(sections: Sections) -> dict[str, Any]:
    return {
        "name": "",
        "data_curators": [{"data_curator_name": "", "data_curator_type": ""}],
        "description": f"Visual question answering on medical images, federated by {sections.identity.method}.",
        "intended_use": "",
        "data_product_type": "Machine learning model",
        "data_product_region": "",
        "data_product_sector": "Healthcare",
        "publication_date": "",
    }


def _model(sections: Sections) -> dict[str, Any]:
    trust = sections.trust
    return {
        "model_name": "Federated",
        "model_name_details": f"Each site adds the noise itself, before anything leaves it. {trust.aggregation_said}",
        "trust_assumptions": f"Server: {trust.server} Sites: {trust.sites}",
        "actors": f"Observer: {sections.claim.observer}. Author: {trust.author} Administrators: {trust.administrators}",
        "release_type": "Many releases",
        "release_type_details": f"{sections.egress.messages} messages of one job; the ledger composes all jobs.",
        "data_source_type": "Static",
        "data_source_type_details": "",
        "access_type": "Non-interactive",
        "access_type_details": "",
    }


def _parameters(event: Sections) -> str:
    return f" ({', '.join(f'{parameter.name} {parameter.value:g}' for parameter in event.parameters)})"


def _implementation(sections: Sections) -> dict[str, Any]:
    claim, mechanism = sections.claim, sections.mechanism
    ran = "; ".join(
        f"{item.applied_to}: {item.noise}{_parameters(item.event)}, {item.event.steps} times; sampling: {item.sampler}"
        for item in mechanism.mechanisms
    )
    accountants = " and ".join(item.implementation for item in sections.accounting.accountants)
    return {
        "preprocessing_and_hyperparameter_tuning": TUNING,
        "mechanisms": f"{claim.mechanism}. {ran}. {mechanism.randomness} medfedvqa {sections.identity.tool}.",
        "composition": f"Charges of a ledger, replayed by {accountants}; the smaller upper bound is stated.",
        "post_processing": "What the server and other sites compute from releases.",
        "justification": CHOICES,
        "utility": sections.empirical.utility_said,
        "additional_information": f"{sections.empirical.said} {sections.egress.digests_said}",
    }
