"""FedP3: sites keep the pairwise preferences among answers that they forget (M. Lao et al., "FedVQA", ACM MM 2023)."""

from typing import Literal

import torch
from pydantic import Field

from medfedvqa.bounds import MOST_ANSWERS, Blocks, Rate, Rounds, Temperature
from medfedvqa.core.method import TESTED, Answering, State
from medfedvqa.core.registry import register
from medfedvqa.data import Examples
from medfedvqa.errors import ConfigError
from medfedvqa.models import divergence
from medfedvqa.models.tuning import Kind as TuningKind
from medfedvqa.papers.knowledge_preserving import Outputs, Preserving, PreservingConfig
from medfedvqa.training import Rows, Site
from privacy import DPSettings, Secagg, SeededChance

Filter = Literal["eq12", "eq11", "teacher", "student", "random", "all"]


class FedP3Config(PreservingConfig, frozen=True):
    """Options; the defaults are the paper's, Sec. 4.2."""

    rounds: Rounds = Field(5, description="rounds of local training and averaging")
    learning_rate: Rate = Field(1e-4, description="first learning rate")
    tuning: TuningKind = Field("blocks", description="what is trained beside the answer head")
    blocks: Blocks = Field(3, description="how many of each tower's last blocks are tuned; null is all")
    preserve: Literal["pairs", "kl"] = Field("pairs", description="preferences, or answers as a whole (the KP rows)")
    temperature: Temperature = Field(2.0, description="of preserve 'kl'")
    tau_squared: bool = Field(
        True, description="temperature^2 times preserve 'kl', as usual; Eq. 4 is without the factor"
    )
    filter: Filter = Field("eq12", description="by what each row's answers are chosen (Table 4)")
    top: int = Field(20, ge=1, le=MOST_ANSWERS, description="answers that are compared in pairs (N), fewer than all")
    clamp: bool = Field(False, description="never let eq12 turn towards what the student is sure of: w >= 0")
    pairs: Literal["sum", "mean"] = Field("sum", description="over ordered pairs of answers")
    space: Literal["probability", "logit"] = Field("probability", description="what is compared; 'logit' to experiment")


@register
class FedP3(Preserving[FedP3Config]):
    """FedAvg that preserves the teacher's preferences among forgotten answers (Eqs. 9, 12, 14, 15)."""

    name = "fedp3"
    config_type = FedP3Config

    def __init__(self, config: FedP3Config, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        super().__init__(config, dp, secagg)
        if not self._filters:
            return
        if self.answers is None and config.answers != "site":
            raise ConfigError(
                "the filter of 'fedp3' chooses among the answers of a public list, not of a site's own rows: give "
                "'answers' as a list, 'closed', 'public' or 'site', or 'filter' as 'all'"
            )
        self._check_filter(self.answers)

    @property
    def _filters(self) -> bool:
        return self.config.preserve == "pairs" and self.config.filter != "all"

    @property
    def jumps(self) -> bool:
        """Rounding could choose other answers to compare, or turn the sign of a difference; see `Method.jumps`."""
        return self.config.preserve == "pairs"

    def _check_filter(self, answers: tuple[str, ...] | None) -> None:
        """Raises `ConfigError` where the filter would leave nothing out."""
        if self._filters and answers is not None and len(answers) <= self.config.top:
            raise ConfigError(
                "the filter of 'fedp3' leaves nothing out: 'top' is at least the number of answers in the list. Give a "
                "longer list of 'answers', a smaller 'top', or 'filter' as 'all'"
            )

    def setup(self, site: Site) -> State:
        """See `Averaging.setup`. Raises `ConfigError` if the filter would keep the site's whole list of answers."""
        self._check_filter(self.answers or site.data.answers)
        return super().setup(site)

    def term(self, student: Outputs, teacher: Outputs, rows: Rows) -> torch.Tensor:
        """The distillation loss of each row: L_p3, or the Kullback-Leibler divergence where `preserve` is 'kl'."""
        config = self.config
        if config.preserve == "kl":
            factor = 1 if config.tau_squared else config.temperature**-2
            return factor * divergence(teacher.logits, student.logits, config.temperature)
        scores = [teacher.logits, student.logits]
        if config.space == "probability":
            scores = [logits.softmax(dim=1) for logits in scores]
        if config.filter != "all":
            chosen = self.chosen(student, teacher, rows)
            scores = [values.gather(1, chosen) for values in scores]
        differences = (matchups(scores[0]) - matchups(scores[1])).abs()
        return differences.sum((1, 2)) if config.pairs == "sum" else differences.mean((1, 2))

    @torch.no_grad()
    def forgetting(self, site: Site, state: State, examples: Examples) -> torch.Tensor:
        """r of each of a site's rows after the evaluation, [rows, answers] (Figs. 5 and 8); it stays at the site.

        The student is the site's own last model, the teacher the last mean. Raises `ConfigError` for a state before
        the evaluation, and for the filters 'random' and 'all', which have no r.
        """
        by = self.config.filter
        if TESTED not in state or by in ("random", "all"):
            raise ConfigError("r takes a site's state after the evaluation, and a filter that ranks answers")
        student, last = state["values"], {name: value.to(site.device) for name, value in state[TESTED].items()}
        teacher = Answering(self.model(site), {**student, **last}, self._space(site)).probabilities(site, examples)
        learnt = Answering(self.model(site), student, self._space(site)).probabilities(site, examples)
        return forgotten(teacher.log(), learnt.log(), by, self.config.clamp).softmax(dim=1)

    @torch.no_grad()
    def chosen(self, student: Outputs, teacher: Outputs, rows: Rows) -> torch.Tensor:
        """The answers whose preferences count for each row, int64 [rows, N]."""
        config, logits = self.config, teacher.logits
        if config.filter == "random":
            # Losses without training (`Method.probe`) use one fixed filter.
            chance = rows.chance or SeededChance(0)
            scores = chance.apart("filter").uniform(logits.shape).to(logits.device)
        else:
            scores = forgotten(logits, student.logits, config.filter, config.clamp)
        return scores.topk(min(config.top, logits.shape[1]), dim=1).indices


def matchups(values: torch.Tensor) -> torch.Tensor:
    """M(p_i, p_j) = sigmoid(2 (p_i - p_j)) of all pairs, [rows, answers] to [rows, answers, answers] (Eq. 9)."""
    return torch.sigmoid(2 * (values[:, :, None] - values[:, None, :]))


def forgotten(teacher: torch.Tensor, student: torch.Tensor, by: Filter, clamp: bool = False) -> torch.Tensor:
    """log r of each answer up to a constant, from logits, [rows, answers] (Eqs. 11 and 12, and the ablations).

    Eq. 12 weighs each row's log p_S by log(H_T / H_S), as printed. Only then is r = p_T while both models agree.
    """
    of_teacher, of_student = teacher.log_softmax(dim=1), student.log_softmax(dim=1)
    match by:
        case "teacher":
            return of_teacher
        case "student":
            return of_student
        case "eq11":
            return of_teacher - of_student
    gain = torch.log(entropy(of_teacher) / entropy(of_student))
    return of_teacher - (gain.clamp(min=0) if clamp else gain) * of_student


def entropy(logarithms: torch.Tensor) -> torch.Tensor:
    """The entropy of distributions from their logarithms, in nats, at least 1e-8: [rows, answers] to [rows, 1]."""
    return (-logarithms.exp() * logarithms).sum(dim=1, keepdim=True).clamp(min=_LEAST_ENTROPY)


_LEAST_ENTROPY = 1e-8
