"""An entry for the Differential Privacy Deployments Registry, as far as a report can fill it in.

Fields: the template of opendp/deployments-registry-data (`tests/good_deployments/template.yaml`, 2026). What only the
curator knows is left empty, for a person to fill in. The number of privacy units is left out: a site withholds how many
patients it has.
"""

from typing import Any

from privacy.report.claim import NEIGHBOURS, UNIT
from privacy.report.facts import ReportError
from privacy.report.model_conduct import Report, Sections
from privacy.report.model_guarantee import EventFigures

DOMAIN = "Pictures of patients with questions and answers about them, as one record for each patient, at one hospital."
TUNING = (
    "De-identification as in section I of the report. No tuning under differential privacy was done by this job; what "
    "was chosen by looking at data outside of it is not accounted for."
)
CHOICES = "The unit is the patient, since a hospital owes its promise to people and not to rows."


def registry_entry(report: Report) -> dict[str, Any]:
    """The entry as plain values. Raises `ReportError` if the report claims no differential privacy."""
    told = report.sections
    if not told.claim.made:
        raise ReportError("the report claims no differential privacy: there is no deployment to register")
    return {
        "url_slug": "",
        "deployment": {
            "basic": _basic(told),
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": DOMAIN,
                "unprotected_quantities": "; ".join(f"{one.what}: {one.treatment}" for one in told.outside),
            },
            "privacy_loss": {
                "privacy_unit": UNIT,
                "privacy_unit_details": f"{told.unit.record}; neighbours are {NEIGHBOURS}.",
                "privacy_parameters": {"epsilon": told.claim.epsilon, "delta": told.claim.delta},
                "privacy_parameters_details": told.claim.sentence,
            },
            "deployment_model": _model(told),
            "implementation": _implementation(told),
            "administrative": {
                "evidence_sources": {},
                "status": "Draft",
                "registry_authors": [""],
                "tier": 3,
            },
        },
    }


def _basic(told: Sections) -> dict[str, Any]:
    return {
        "name": "",
        "data_curators": [{"data_curator_name": "", "data_curator_type": ""}],
        "description": f"Visual question answering over medical images, trained federatedly by {told.identity.method}.",
        "intended_use": "",
        "data_product_type": "Machine learning model",
        "data_product_region": "",
        "data_product_sector": "Healthcare",
        "publication_date": "",
    }


def _model(told: Sections) -> dict[str, Any]:
    trust = told.trust
    return {
        "model_name": "Federated",
        "model_name_details": f"Each site adds the noise itself, before anything leaves it. {trust.aggregation_said}",
        "trust_assumptions": f"Server: {trust.server} Sites: {trust.sites}",
        "actors": f"Observer: {told.claim.observer}. Job author: {trust.author} Administrators: {trust.administrators}",
        "release_type": "Many releases",
        "release_type_details": f"{told.egress.messages} messages of one job; a ledger composes all jobs of the site.",
        "data_source_type": "Static",
        "data_source_type_details": "",
        "access_type": "Non-interactive",
        "access_type_details": "",
    }


def _parameters(event: EventFigures) -> str:
    return f" ({', '.join(f'{one.name} {one.value:g}' for one in event.parameters)})"


def _implementation(told: Sections) -> dict[str, Any]:
    ran = "; ".join(
        f"{one.applied_to}: {one.noise}{_parameters(one.event)}, {one.event.steps} times; sampling: {one.sampler}"
        for one in told.mechanism.mechanisms
    )
    accountants = " and ".join(one.implementation for one in told.accounting.accountants)
    return {
        "preprocessing_and_hyperparameter_tuning": TUNING,
        "mechanisms": f"{told.claim.mechanism}. {ran}. {told.mechanism.randomness} medfedvqa {told.identity.tool}.",
        "composition": f"Charges of a ledger, replayed by {accountants}; the smaller upper bound is stated.",
        "post_processing": "What the server and other sites compute from releases.",
        "justification": CHOICES,
        "utility": told.empirical.utility_said,
        "additional_information": f"{told.empirical.said} {told.egress.digests_said}",
    }
