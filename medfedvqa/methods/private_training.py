"""A site's local training under differential privacy by patient: the same for every method that trains prompts."""

from collections.abc import Sequence

import torch

from medfedvqa.methods.base import Site
from medfedvqa.methods.training import Prompts, SiteTrainer, TrainConfig
from medfedvqa.models import ModelConfig, SiteModel, answer_loss
from privacy import Contribution, DPSettings, NoiseLevels, PatientSampler, PrivateStep, Recorder, noisy_share


def private_steps(config: TrainConfig, dp: DPSettings) -> int:
    """Steps of one round: an epoch takes as many as let each patient take part once on average."""
    if config.local_unit == "batches":
        return config.local_epochs
    return max(1, round(config.local_epochs / dp.sample_rate))


class PrivateTrainer(SiteTrainer):
    """As `SiteTrainer`, with DP-SGD by patient in the place of plain steps and noise on the accuracy.

    The optimiser sees noisy gradients only, so that its state and its choice (SGD, Adam) cost nothing.
    """

    def __init__(self, site: Site, model: ModelConfig, config: TrainConfig, dp: DPSettings, noise: NoiseLevels) -> None:
        super().__init__(site, model, config)
        self._dp, self._noise = dp, noise

    def accuracy(self, right: torch.Tensor) -> float:
        """Mean over validation patients of the share of their rows that is answered right, with noise."""
        rows = self._site.data.validate
        _, patient = torch.unique(rows.patients, return_inverse=True)
        asked = torch.bincount(patient)
        shares = torch.bincount(patient, weights=right.double(), minlength=len(asked)) / asked
        return noisy_share(shares, self._noise.counts, self._site.randomness)

    def _learn(
        self, model: SiteModel, optimizer: torch.optim.Optimizer, shared: Prompts | None, generator: torch.Generator
    ) -> None:
        dp, randomness = self._dp, self._site.randomness
        owners = self._site.data.train.answered.patients
        sampler = PatientSampler(owners, dp.sample_rate, dp.patient_rows, randomness)
        for _ in range(private_steps(self._config, dp)):
            step = PrivateStep(model.parameters(), dp.clip)
            drawn, shown = sampler.sample(), self._shown(generator)
            for first in range(0, len(drawn), dp.physical_patients):
                patients = drawn[first : first + dp.physical_patients]
                step.add(self._contributions(model, patients, shown, shared, generator))
            step.finish(self._noise.gradients, dp.expected_patients, randomness)
            self._penalty(model, shared).backward()
            optimizer.step()

    def _contributions(
        self,
        model: SiteModel,
        patients: Sequence[torch.Tensor],
        shown: torch.Tensor,
        shared: Prompts | None,
        generator: torch.Generator,
    ) -> list[Contribution]:
        """What these patients, given by their rows, contribute to the gradient of the summed loss."""
        count, device = len(patients), self._site.device
        owners = torch.arange(count).repeat_interleave(torch.tensor([len(rows) for rows in patients]))
        batch = self._batch(self._site.data.train.answered, torch.cat(list(patients)), shown, owners)
        leaves = {
            name: prompt.detach().expand(count, *prompt.shape).clone().requires_grad_()
            for name, prompt in model.prompts.items()
        }
        with Recorder(model, model.prompts.values()) as recorder:
            loss = answer_loss(model(batch, shared, generator, leaves), batch.answers) * len(owners)
        expanded = {model.prompts[name]: leaf for name, leaf in leaves.items()}
        return recorder.contributions(loss, owners.to(device), count, expanded)
