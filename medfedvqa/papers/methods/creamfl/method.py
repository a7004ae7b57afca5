"""CreamFL: sites and server teach each other by representations of a public set (Q. Yu et al., ICLR 2023).

"Multimodal federated learning via contrastive representation ensemble". No weights travel, so each site may choose the
size of its model and may see pictures, questions or both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, Tensors, TensorSpec
from medfedvqa.bounds import (
    MOST_PAIRS,
    MOST_ROWS,
    MOST_SITES,
    BackboneName,
    Passes,
    PublicSet,
    Rate,
    SiteName,
    Space,
    Temperature,
    Weight,
    Width,
)
from medfedvqa.core.averaging import AveragingConfig
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import Handler, State, arrays_of, tensors_of
from medfedvqa.core.registry import register
from medfedvqa.core.scores import counts, validated
from medfedvqa.data import PublicPairs, held_out_pairs, public_pairs
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import ServerScore
from medfedvqa.methods.moon import contrast
from medfedvqa.models import (
    IMAGE,
    TEXT,
    Backbone,
    BackboneShape,
    PairedModel,
    Shapes,
    Values,
    check_apart,
)
from medfedvqa.papers.caption_sites import CaptionSites, found_first, numbers, pair_losses
from medfedvqa.papers.methods.creamfl.server_model import (
    OTHER,
    EnsembleServer,
    Positive,
    ServerConfig,
    aggregate,
    features,
    inter_modal,
    mean,
    network,
    pairs_of,
    untuned,
)
from medfedvqa.papers.public_outputs import SiteModel, check_trunk, one_thread, server_backbone
from medfedvqa.training import Penalty, Site, Trainer, TrainingConfig, answer_losses
from medfedvqa.training.frozen_rows import FrozenRows
from privacy import Cost, DPSettings, Secagg, SeededChance

# The test of CreamFL's server model, which is the paper's result (Sec. 4): retrieval, and answers to questions.
#
# Everything here is public and at the server: pictures, captions, questions and answers that no site holds.

HEAD_EPOCHS = 50
"""Passes of the answer head over the public set's questions."""


def server_score(
    server: EnsembleServer, backbone: Backbone, learned: PublicPairs, held_out: PublicPairs, seed: int
) -> ServerScore:
    """The score on the `held_out` pairs. For answers, a head learns from the questions about the `learned` ones.

    The head stands on the server's representations as they are, and the server's model does not change.
    """
    with one_thread():
        both = server.of(features(backbone, pairs_of(backbone, held_out)))
        captions = numbers(held_out.captions)
        first = torch.stack([(captions == number).nonzero()[0, 0] for number in range(int(captions.max()) + 1)])
        image_to_text, text_to_image = found_first((both[IMAGE] @ both[TEXT][first].T).detach(), captions)
        questions = held_out.questions
        return ServerScore(
            questions=len(questions),
            correct=_answered(server, backbone, learned, held_out, seed),
            pictures=len(held_out),
            captions=len(first),
            image_to_text=image_to_text,
            text_to_image=text_to_image,
        )


def _answered(
    server: EnsembleServer, backbone: Backbone, learned: PublicPairs, held_out: PublicPairs, seed: int
) -> int:
    """The held-out questions that a two-layer head on picture, question and their product answers right."""
    space = tuple(sorted({*learned.questions.answers, *held_out.questions.answers}))
    if not learned.questions.answers or not held_out.questions.answers:
        return 0  # a set of one's own with captions alone
    (train, right), (test, truth) = (_inputs(server, backbone, pairs, space) for pairs in (learned, held_out))
    generator, config = torch.Generator().manual_seed(seed), server.config
    head = network(train.shape[1], config.server_hidden, len(space), generator)
    optimizer = torch.optim.Adam(head.parameters(), config.server_rate)
    for _ in range(HEAD_EPOCHS):
        for rows in torch.split(torch.randperm(len(train), generator=generator), config.public_rows):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(head(train[rows]), right[rows]))
            optimizer.step()
    return int((head(test).argmax(dim=1) == truth).sum())


@torch.no_grad()
def _inputs(
    server: EnsembleServer, backbone: Backbone, pairs: PublicPairs, space: tuple[str, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The head's input for each question, [questions, 3 space], and the number of its answer, int64 [questions]."""
    size = backbone.shape.image_size
    rows = FrozenRows.of_questions(backbone.cache_of, size, untuned(backbone), pairs, space)
    both = server.of(features(backbone, rows))
    return torch.cat([both[IMAGE], both[TEXT], both[IMAGE] * both[TEXT]], dim=1), rows.answers


# A site's side of CreamFL's public set: its model's representations, and their contrast with the server's.

CHUNK = 64
"""Public pairs that go through the model together in evaluation."""


@dataclass(frozen=True)
class Contrast:
    """Which contrastive losses apply (Sec. 3.2), and their weight."""

    gamma: float
    temperature: float
    inter: bool = True
    """Whether a representation is contrasted with the server's of all items in the other modality."""
    intra: bool = True
    """Whether it is contrasted with the server's and the site's previous one of the same item and modality."""

    @property
    def applies(self) -> bool:
        """Whether any loss applies."""
        return self.gamma > 0 and (self.inter or self.intra)


@dataclass(frozen=True)
class PublicPass:
    """The public pairs as a site's model sees them, and how it learns from them."""

    model: PairedModel
    pairs: FrozenRows
    contrast: Contrast
    rows: int
    """Pairs per step."""

    @property
    def steps(self) -> int:
        """The steps of one pass over all pairs."""
        return -(-len(self.pairs) // self.rows)

    @torch.no_grad()
    def represent(self, values: Mapping[str, torch.Tensor]) -> Values:
        """The unit vectors of all items, [items, space], for each modality that the model sees."""
        parts = [self._of(values, items) for items in torch.split(torch.arange(len(self.pairs)), CHUNK)]
        return {modality: torch.cat([part[modality] for part in parts]) for modality in parts[0]}

    def contrasts(
        self, before: Mapping[str, torch.Tensor], projection: Values, server: Values, seed: int
    ) -> Iterator[Penalty]:
        """The contrastive losses, times gamma, of batches of public pairs in random order, without end.

        Each is a function of the VQA model's values. `before`: all values at the start of the round; `projection`: the
        trained projection; `server`: the server's representations.
        """
        generator, previous = torch.Generator().manual_seed(seed), self.represent(before)
        how = self.contrast

        def loss(items: torch.Tensor, values: Values) -> torch.Tensor:
            partners = items.to(self.model.backbone.device)
            terms = []
            for modality, local in self._of({**values, **projection}, items).items():
                if how.inter:
                    terms.append(inter_modal(local, server[OTHER[modality]], partners, how.temperature))
                if how.intra:
                    pair = server[modality][partners], previous[modality][partners]
                    terms.append(contrast(local, *pair, how.temperature))
            return how.gamma * torch.stack(terms).sum(dim=0).mean()

        while True:
            for items in torch.split(torch.randperm(len(self.pairs), generator=generator), self.rows):
                yield partial(loss, items)

    def _of(self, values: Mapping[str, torch.Tensor], items: torch.Tensor) -> Values:
        return self.model.represent(values, self.pairs.batch(items))


Sees = Literal["image", "text", "multimodal"]
MODALITIES: Mapping[Sees, tuple[str, ...]] = {"image": (IMAGE,), "text": (TEXT,), "multimodal": (IMAGE, TEXT)}


class SiteModelConfig(SiteModel, frozen=True):
    """One site's model. A null field takes the job's option."""

    sees: Sees | None = None


class CreamFLConfig(AveragingConfig, frozen=True):
    """Options. Those of FedAvg describe the sites' models, which are never averaged."""

    sees: Sees = Field(
        "multimodal",
        description="what sites see; a text site answers from the question alone. The head of one modality joins "
        "nothing and has no n-grams",
    )
    models: dict[SiteName, SiteModelConfig] = Field(
        {},
        max_length=MOST_SITES,
        description="by site's name, what is different there: sees, tuning, blocks, reduction, rank, hidden",
    )
    public_pairs: int = Field(128, ge=2, le=MOST_PAIRS, description="public pictures with captions (paper: 50000)")
    public: PublicSet = None
    space: Space = Field(256, description="width of representations (code: 256)")
    inter: bool = Field(True, description="inter-modal contrast: with the server's other modality, all items")
    intra: bool = Field(True, description="intra-modal contrast: with the server's and the last own, same item")
    gca: bool = Field(
        True, description="global-local contrastive aggregation; false: the plain mean of the sites' representations"
    )
    gamma: Weight = Field(0.5, description="weight of the contrast (code: 0.5); 0 is local training")
    temperature: Temperature = Field(0.5, description="of the sites' contrast (code: 0.5)")
    order: Literal["alternating", "joint"] = Field(
        "alternating", description="private rows and public pairs in turn, epoch by epoch (code), or in every step"
    )
    gca_temperature: Temperature = Field(1.0, description="of the scores that weigh sites (paper: none)")
    positive: Positive = Field("included", description="the own partner in a score's divisor (code), or not (paper)")
    kd: Weight = Field(0.3, description="weight of the ensemble in the server's training (code: 0.3); 0 is none")
    distance: Literal["mse", "l2"] = Field("mse", description="to the ensemble: mean square (code), or l2 (paper)")
    test_pairs: int = Field(
        128, ge=0, le=MOST_PAIRS, description="other public pairs, on which the server's model is tested; 0 is no test"
    )
    public_rows: int = Field(32, ge=2, le=MOST_ROWS, description="public pairs per step, at sites and server")
    server_hidden: Width = Field(512, description="width of the server's hidden layers")
    server_epochs: Passes = Field(5, description="the server's own passes over the public pairs per round (code: 1)")
    server_rate: Rate = Field(1e-3, description="the server's learning rate, Adam (code: 0.0002, AdamP)")
    server_temperature: Temperature = Field(
        0.07, description="of the contrast between pictures and captions, at the server and at sites that have captions"
    )
    trunk: BackboneName | None = Field(
        None, description="the server's frozen backbone, one that needs no file; null is the job's"
    )

    @property
    def server(self) -> ServerConfig:
        """The server's model and training."""
        return ServerConfig(**{name: getattr(self, name) for name in ServerConfig.__dataclass_fields__})

    @property
    def contrast(self) -> Contrast:
        """The contrast of the sites' training."""
        return Contrast(self.gamma, self.temperature, self.inter, self.intra)

    @property
    def training(self) -> TrainingConfig:
        """The private steps between two passes over the public pairs."""
        return replace(super().training, local_epochs=self.local_epochs // self.turns)

    @property
    def turns(self) -> int:
        """Passes over the public pairs per round: one after each epoch, or one after all batches."""
        return self.local_epochs if self.local_unit == "epochs" else 1

    def of(self, site: str) -> "CreamFLConfig":
        """The options of this site's model."""
        changes = self.models.get(site, SiteModelConfig())
        return self.model_copy(update=changes.model_dump(exclude_none=True))

    @property
    def kinds(self) -> tuple[Sees, ...]:
        """The kinds of sites in the job, by what they see."""
        present = {self.sees, *(self.of(site).sees for site in self.models)}
        return tuple(kind for kind in MODALITIES if kind in present)


@register
class CreamFL(CaptionSites[CreamFLConfig]):
    """Local training with two contrasts on the public set; the server learns from an ensemble weighed item by item."""

    name = "creamfl"
    config_type = CreamFLConfig
    shares = False
    compares_features = True

    def __init__(self, config: CreamFLConfig, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        if dp is not None and config.kinds != ("multimodal",):
            raise ConfigError(
                "under differential privacy a job's charges are planned alike for all sites: let 'creamfl' train "
                "multimodal sites only, without 'sees' in 'models'"
            )
        super().__init__(config, dp, secagg)
        if any(model.tuning == "classifier" for model in config.models.values()):
            raise ConfigError("'creamfl' compares features, which tuning 'classifier' never changes: tune more")

    def shared(self, shape: BackboneShape) -> Shapes:
        """Nothing: no weights travel."""
        return {}

    def exchange(self, shape: BackboneShape) -> Exchange:
        """The server's representations of the public set come down, the site's go up, and counts go up at the end.

        Raises `ConfigError` for a backbone that sees pictures and texts together only.
        """
        check_apart(shape)
        self.config.check_head(self.config.tuned, shape)
        down = tuple(self._representations(modality, "the server's") for modality in OTHER)
        tasks = [
            TaskSpec(_task(kind), tuple(self._representations(m, "the site's") for m in MODALITIES[kind]), down)
            for kind in self.config.kinds
        ]
        return Exchange(self.name, (*tasks, TaskSpec("evaluate", counts(*self.scores), ())))

    def tasks(self) -> Iterator[tuple[str, int]]:
        """Rounds of training, and the evaluation."""
        for number in range(1, self.config.rounds + 1):
            yield from ((_task(kind), number) for kind in self.config.kinds)
        yield "evaluate", self.config.rounds

    def cost(self, task: str) -> Cost:
        """The private steps. The contrast sees only public pairs, and the uploads follow from both."""
        if self.dp is None or task == "evaluate":
            return Cost()
        return Cost(steps=self.config.turns * self.config.training.private_steps(self.dp))

    def trained(self, state: State) -> Mapping[str, torch.Tensor]:
        """The values of the VQA model, and of the projections of its features into the common space, by name."""
        return {**state["values"], **state["projection"]}

    def model(self, site: Site) -> PairedModel:
        """The site's model, by its options."""
        config = self.config.of(site.name)
        plain = self.model_of(site, config.tuned)
        head = replace(plain.head, hidden=config.hidden)
        if config.sees != "multimodal":
            # There is one modality to see, and nothing to join it with.
            head = replace(head, fusion="concat", question="tower")
        return PairedModel(site.backbone, plain.tuning, head, sees=MODALITIES[config.sees], space=config.space)

    def paired(self, site: Site) -> PairedModel:
        """The site's model, which always has projections."""
        return self.model(site)

    def check_kind(self, site: Site) -> None:
        """See `CaptionSites.check_kind`. A site of captions sees both modalities."""
        super().check_kind(site)
        if site.data.captioned and self.config.of(site.name).sees != "multimodal":
            raise ConfigError("a site of captions sees pictures and texts: leave its 'sees' at 'multimodal'")

    def setup(self, site: Site) -> State:
        """The initial model of local training, and projections. Raises `ConfigError`."""
        check_trunk(self.config.trunk, site)
        return {**super().setup(site), "projection": self.projection(site)}

    @property
    def silent(self) -> bool:
        """No: representations go up in every round."""
        return False

    def handler(self, task: TaskSpec, site: Site) -> Handler:
        """See `Method.handler`. Raises `ConfigError` for a task of a modality that the site's model does not see."""
        if task.name == "evaluate":
            return self.evaluate
        if task.name != _task(self.config.of(site.name).sees):
            raise ConfigError("the server asked for a modality that this site's model does not see: end the job")
        return self.train

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Private steps and contrast with the server's representations. The site's representations go up."""
        trainer, public = self.trainer(site), self._public(site)
        state = self._after_round(trainer, public, state, tensors_of(received, site.device), round)
        state |= validated(state, self.right(trainer, self.tested(site, state, {}), site.data.validate))
        return state, arrays_of(public.represent(self.trained(state)))

    def tested(self, site: Site, state: State, received: Values) -> Values:
        """See `Averaging.tested`. A site of captions tests with its projections, too."""
        return dict(self.trained(state)) if site.data.captioned else super().tested(site, state, received)

    def without_others(self, local_epochs: int | None = None) -> "CreamFL":
        """See `Alone.without_others`. The contrast, which needs the server's representations, is left out."""
        alone = super().without_others(local_epochs)
        return CreamFL(alone.config.model_copy(update={"gamma": 0.0}))

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds in which the server learns from pairs and from the sites' ensemble. Raises `ConfigError`."""
        sites = self._by_kind(hub.sites)
        config, backbone = self.config, server_backbone(self.config.trunk, hub.backbone)
        pairs = public_pairs(config.public_pairs, config.public)
        # The sites draw from the seed itself: the server must not draw the same numbers.
        server = EnsembleServer(backbone, pairs, self.config.server, hub.seed + 1)
        for number in hub.rounds(self.config.rounds):
            server.supervise()
            shared, uploads = server.representations(), dict[str, Tensors]()
            drawn = self.drawn(hub, number, hub.sites)
            for kind, names in sites.items():
                if called := [name for name in names if name in drawn]:
                    uploads |= hub.collect(_task(kind), {name: arrays_of(shared) for name in called})
            server.distil(self.ensemble(uploads, shared))
        if config.test_pairs:
            held_out = held_out_pairs(config.test_pairs, config.public, config.public_pairs)
            hub.tested(server_score(server, backbone, pairs, held_out, hub.seed + 2))
        return hub.collect("evaluate")

    def ensemble(self, uploads: Mapping[str, Tensors], shared: Values) -> Values:
        """The combined representations of the public set by the sites that see each modality, if there is one."""
        combined, config = {}, self.config
        for modality, other in OTHER.items():
            local = {site: torch.from_numpy(np.array(up[modality])) for site, up in uploads.items() if modality in up}
            if not local:  # none of the sites of this round sees it
                continue
            with one_thread():
                combined[modality] = (
                    aggregate(local, shared[other], config.gca_temperature, config.positive)
                    if config.gca
                    else mean(local)
                )
        return combined

    def _after_round(self, trainer: Trainer, public: PublicPass, state: State, server: Values, round: int) -> State:
        """The state after a round's private steps and contrasts with the `server`'s representations."""
        config, seed = self.config, trainer.site.task_seed("train", round)
        model, projection = (trainer.part(state[name], round) for name in ("values", "projection"))
        captioned, paired = trainer.site.data.captioned, self.model(trainer.site)
        # Private captions meet the projections; private questions meet the answer head alone.
        private = [model, projection] if captioned else [model]
        loss = pair_losses(paired, self.config.server_temperature) if captioned else answer_losses(paired)
        contrasts = public.contrasts(self.trained(state), projection.values, server, seed + 1)
        joint, apart = (config.contrast.applies and config.order == order for order in ("joint", "alternating"))
        chance = SeededChance(seed)
        for _ in range(config.turns):
            for (draw,) in trainer.draws(chance):
                trainer.step(private, loss, draw, next(contrasts) if joint else None)
                if joint:  # at a site of captions the step above has taken it, and no gradient is left
                    projection.step()
            for pull in islice(contrasts, public.steps if apart else 0):
                torch.autograd.backward(pull(model.values))
                model.step()
                projection.step()
        return {**state, "values": model.trained(), "projection": projection.trained()}

    def _public(self, site: Site) -> PublicPass:
        """The public pairs, which go through the frozen part of the backbone once."""
        model, config = self.model(site), self.config
        pairs = site.derive(
            ("public", config.public_pairs, config.public, model.cache_key, tuple(model.depth.items())),
            lambda: FrozenRows.of_pairs(
                model.cache,
                site.backbone.shape.image_size,
                model.depth,
                public_pairs(config.public_pairs, config.public),
            ),
        )
        return PublicPass(model, pairs, config.contrast, config.public_rows)

    def _by_kind(self, sites: tuple[str, ...]) -> dict[Sees, list[str]]:
        if not self.config.models.keys() <= set(sites):
            raise ConfigError("'models' names a site that does not take part")
        by_kind: dict[Sees, list[str]] = {}
        for site in sites:
            by_kind.setdefault(self.config.of(site).sees, []).append(site)
        if missing := OTHER.keys() - {modality for kind in by_kind for modality in MODALITIES[kind]}:
            raise ConfigError(f"no site sees {' or '.join(sorted(missing))}: let one be multimodal, or see it alone")
        return by_kind

    def _representations(self, modality: str, whose: str) -> TensorSpec:
        shape, meaning = (self.config.public_pairs, self.config.space), f"{whose} unit vectors of public "
        return TensorSpec(
            modality, shape, "float32", Kind.REPRESENTATIONS, meaning + _PUBLIC[modality], bounds=(-_UNIT, _UNIT)
        )


_UNIT = 1.0001
"""The bound of a unit vector's coordinates, with room for rounding."""
_PUBLIC = {IMAGE: "pictures", TEXT: "captions"}


def _task(kind: Sees) -> str:
    return f"train_{kind}"
