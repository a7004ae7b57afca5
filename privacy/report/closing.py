"""What closes each rule of section L that is not shown to be kept: one sentence for those who can act."""

from collections.abc import Mapping

CLOSING: Mapping[str, str] = {
    "log": "Have the log verified (`medfedvqa audit verify`) and make the report again.",
    "all of it": "Give the log to the verifier: `medfedvqa privacy verify-report --log`.",
    "witnessed": "Exchange checkpoints with the server or another site, then make the report again.",
    "whole log": "Run `medfedvqa audit verify`, follow what it says, and make the report again.",
    "agreement": "Give the server's or another site's copies with `--against` when the report is made.",
    "no network": "Run the job on sites whose rows a vault holds, with `isolation: kernel` in their settings.",
    "ledger": "Give the site a budget ledger, and train under differential privacy.",
    "one budget": "Ingest the data with `medfedvqa ingest` beside this ledger, which ties the two together.",
    "replay": "Train under differential privacy; if figures differ, ask the project before anything else is released.",
    "charged first": "Train under differential privacy, with the ledger of this site.",
    "nothing unprotected": "Train under differential privacy (`--epsilon`); demand it in the policy (`require_dp`).",
    "within limits": "Set `require_dp: true` and `max_epsilon` in the policy; over a limit, accept no further job.",
    "sound noise": "Take `repeatable_noise` out of the settings, and train again: this job protects nobody.",
    "allowed": "Compare the policy with what left (H), and decide anew what the site allows.",
    "settings": "Give the job's results with `--results` when the report is made.",
    "code": "Run the job again with one installation, from installed files.",
    "on shares": "Train with secure aggregation (`--secagg`) at three sites or more.",
    "attacked": "Attack a job of these settings on open data (`medfedvqa audit attack`), and give it with `--attack`.",
    "de-identified": "Ingest the data with `medfedvqa ingest`, or document elsewhere how they were de-identified.",
}
