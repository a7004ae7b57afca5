"""Writes the model that a site kept of a job into a folder that answers without this project.

The folder can be carried away, so the export is refused unless the site's policy allows it, and the folder never holds
answers from the site's own rows. The export is logged before the folder exists.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn

from audits import Event, read
from medfedvqa.answering.answerer import WARNING, Answerer
from medfedvqa.answering.kept_run import KeptRun
from medfedvqa.answering.standalone import ExportedModel
from medfedvqa.core.kept_model import KEPT
from medfedvqa.errors import ConfigError
from medfedvqa.models.answer_head import AnswerBatch
from medfedvqa.models.backbone import Tuning
from medfedvqa.models.bundled import CONTEXT, VOCABULARY, ShortVocabulary
from medfedvqa.models.clip import ClipBackbone
from medfedvqa.models.families import IMAGE, TEXT, Texts, image_tower, text_tower
from medfedvqa.models.layouts import Packed
from medfedvqa.models.library_towers import LibraryTextTower
from medfedvqa.models.ngrams import NGRAMS
from medfedvqa.models.picture_networks import PictureNetwork
from medfedvqa.models.towers import ClassTextTower, ImageTower
from medfedvqa.models.tuned import TunedModel
from medfedvqa.version import code_version

# A tuned model on a CLIP as a function of tensors alone, which torch can export as a program (`torch.export`).
#
# Training computes each distinct state once, by tables that depend on the questions. A program has no such tables: it
# computes one question at full length, with the same towers.

FROZEN, TUNED, SHARED = "frozen.", "tuned.", "shared."
"""The prefixes of a program's weights: the backbone's, those trained at the site, and others' mixed prompts."""
Weights = dict[str, torch.Tensor]


class FullLength(Packed):
    """Questions at the full context, [items, context, width]. Nothing is shared, so nothing is packed."""

    def __init__(self, ends: torch.Tensor, tokens: torch.Tensor) -> None:
        """`ends`: the position that is pooled, int64 [items]; `tokens`: the token ids, int64 [items, context]."""
        self._ends, self.tokens, self.length = ends, tokens, tokens.shape[1]
        self.present = self.positions <= ends[:, None]

    @property
    def positions(self) -> torch.Tensor:
        return torch.arange(self.length, device=self.tokens.device).expand(self.tokens.shape)

    def pad(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def pack(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden[torch.arange(len(hidden), device=hidden.device), self._ends][:, None]

    def pooled_mask(self, mask: torch.Tensor) -> torch.Tensor:
        return mask[self._ends][:, None, None]

    def pooled_owners(self, owners: torch.Tensor | None) -> torch.Tensor | None:
        return owners


def weights_of(model: TunedModel, values: Mapping[str, torch.Tensor]) -> Weights:
    """All weights of a trained model, contiguous on the processor, by prefixed name. Raises `ConfigError`."""
    clip = check_traceable(model)[1].clip
    replaced = {name.removeprefix("weight."): value for name, value in values.items() if name.startswith("weight.")}
    if replaced and model.head.fusion == "attend":
        raise ConfigError("an export cannot hold the two sets of weights of a head on frozen features")
    frozen = dict(clip.named_parameters()) | dict(clip.named_buffers()) | replaced
    tuned = {name: value for name, value in values.items() if not name.startswith("weight.")}
    parts = {FROZEN: frozen, TUNED: tuned, SHARED: model.shared or {}}
    named = {prefix + name: value for prefix, part in parts.items() for name, value in part.items()}
    return {name: named[name].detach().cpu().contiguous().clone() for name in sorted(named)}


def check_traceable(model: object) -> tuple[TunedModel, ClipBackbone]:
    """Returns a model that can become a program, and its CLIP. Raises `ConfigError` for other models."""
    if type(model) is not TunedModel or not isinstance(model.backbone, ClipBackbone):
        raise ConfigError("only a tuned CLIP with an answer head can be exported: choose another method or backbone")
    if isinstance(text_tower(model.backbone.clip, 1), ClassTextTower):
        raise ConfigError("the text tower of CoCa cannot be exported: choose another backbone")
    return model, model.backbone


class TracedModel(nn.Module):
    """Computes logits [1, answers] from weights, a picture [1, 1, size, size] in 0..1, tokens [1, context] and n-grams
    [1, NGRAMS].

    It has no weights of its own: they are its first argument.
    """

    def __init__(self, model: TunedModel) -> None:
        super().__init__()
        self._held = check_traceable(model)  # a tuple, so that the backbone is not part of this module

    @property
    def example(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A picture, a question's tokens and its n-grams, to trace with."""
        _, backbone = self._held
        size = backbone.shape.image_size
        return torch.full((1, 1, size, size), 0.5), backbone.tokenize(["is it"]), torch.zeros(1, NGRAMS)

    def forward(
        self, weights: Weights, picture: torch.Tensor, tokens: torch.Tensor, grams: torch.Tensor
    ) -> torch.Tensor:
        model, backbone = self._held
        frozen, values, shared = (_part(weights, prefix) for prefix in (FROZEN, TUNED, SHARED))
        tuning = model.tuning.applied(backbone, values, shared or None)
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (backbone.mean, backbone.std))
        pixels = (picture.expand(-1, 3, -1, -1) - mean) / std
        whole = replace(tuning, weights=frozen)
        return whole.call(_logits, backbone.clip, model, tuning, values, pixels, tokens, grams)


def _logits(
    clip: nn.Module,
    model: TunedModel,
    tuning: Tuning,
    values: Weights,
    pixels: torch.Tensor,
    tokens: torch.Tensor,
    grams: torch.Tensor,
) -> torch.Tensor:
    image, text = image_tower(clip, 1), text_tower(clip, 1)
    image, text = image_tower(clip, image.layers), text_tower(clip, text.layers)
    below, layout = image.trunk(pixels), FullLength(_ends(text, tokens), tokens)
    pictures = image.features(below, tuning.tower(IMAGE))
    questions = text.features(text.trunk(tokens, layout), layout, tuning.tower(TEXT))
    parts = [pictures, questions]
    if model.join == "product":
        parts.append(image.embed(pictures) * text.embed(questions))
    places = image.places(below) if model.head.fusion == "attend" and isinstance(image, ImageTower) else None
    batch = AnswerBatch(None, grams, places)
    return model.head.logits(values, model.shape, torch.cat(parts, dim=1), batch, None, model.components)


def _ends(text: Texts, tokens: torch.Tensor) -> torch.Tensor:
    """The position that is pooled, int64 [items]."""
    return text.encoder.ends(tokens) if isinstance(text, LibraryTextTower) else text._ends(tokens)


def _part(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


# The model card of an exported folder: the fields of a Hugging Face card and of FUTURE-AI, as far as files have them.
#
# It names no site, job, patient or path. Unknown facts are marked as unknown.
# Source of the six principles: K. Lekadir et al., "FUTURE-AI", BMJ 2025, 388:e081554.


@dataclass(frozen=True)
class Coverage:
    """What an epsilon guarantees about the exported weights, for the patients of the exporting site."""

    covered: bool
    sentence: str


@dataclass(frozen=True)
class CardFacts:
    """The values that fill in an exported model's card."""

    method: str
    rounds: int
    sites: int
    data: str
    backbone: str
    backbone_digest: str
    backbone_seen: str
    answers: int
    weights: str
    """SHA-256 of the file of weights, in hex."""
    accuracy: str
    coverage: Coverage
    shared: str

    @classmethod
    def of(cls, kept: KeptRun, answerer: Answerer, weights: str) -> "CardFacts":
        """The facts of a run at a site, from its results, its log and its state."""
        results, seen = kept.results, answerer.site.backbone.seen
        return cls(
            method=kept.job.method,
            rounds=results["rounds_planned"],
            sites=len(results["sites"]),
            data=results["data"] or "each site's own",
            backbone=kept.job.backbone,
            backbone_digest=answerer.site.backbone.digest,
            backbone_seen="unknown" if seen is None else ", ".join(seen) or "none of the project's data sets",
            answers=len(answerer.answering.answers),
            weights=weights,
            accuracy=_accuracy(results, answerer),
            coverage=coverage_of(kept),
            shared=_shared(answerer),
        )


def coverage_of(kept: KeptRun) -> Coverage:
    """The guarantee for the weights, from the charges for the job in the site's log.

    Every step of a job under differential privacy is charged, also those of parts that stay at the site. A model that
    the site finished itself was trained further without noise.
    """
    events = [entry.dp_event for entry in read(kept.config.audit) if entry.job == kept.job_id and entry.dp_event]
    if kept.results["dp"] is None or not events:
        return Coverage(False, "Trained without differential privacy: no epsilon bounds what these weights tell.")
    if KEPT in kept.state:
        text = (
            "The site trained this model further without noise: no epsilon bounds what these weights tell of patients"
        )
        return Coverage(False, f"{text}, and the epsilon of the job's report is of what the job released.")
    last: Mapping[str, Any] = events[-1]
    if last["void"]:
        return Coverage(False, "The noise of this job could be repeated, as in tests: its epsilon protects nobody.")
    epsilon, delta = last["job_epsilon"][1], last["delta"]
    text = f"Trained under differential privacy by patient: epsilon {epsilon:.3g} (nats) at delta {delta:g} in this job"
    others = "Other jobs on the same patients add to it; patients of other sites have their own site's epsilon."
    return Coverage(True, f"{text}, for the patients of the site that wrote this folder. {others}")


def _accuracy(results: Mapping[str, Any], answerer: Answerer) -> str:
    """The site's test accuracy, or the reason why the card has none."""
    tested = answerer.tested
    if results["dp"] is not None or results["secagg"]:
        return "withheld: in this job test results stay at the sites"
    if not tested.rows:
        return "none: the site had no test rows"
    low, high = tested.wilson()
    share = f"{tested.correct / tested.rows:.1%} (95 % interval {low:.1%} to {high:.1%}, rows counted as independent)"
    return f"{share}: {tested.correct} of {tested.rows} test rows of one site are right"


def _shared(answerer: Answerer) -> str:
    """A sentence on the parts of the weights that come from other sites."""
    if getattr(answerer.answering.model, "shared", None):
        return "The weights `shared.*` are a mixture of other sites' prompts, as this site received it."
    return "What other sites sent is in the weights only through what the job's server made of it."


def model_card(facts: CardFacts) -> str:
    """The card as Markdown with the fields of a Hugging Face card above it."""
    template = files("medfedvqa.answering").joinpath("model_card.md").read_text("utf-8")
    return template.format(facts=facts, warning=WARNING, version=code_version())


# CLIP's byte-pair tokenizer as plain facts, for a program that has no tokenizer library.

if TYPE_CHECKING:
    from open_clip.tokenizer import SimpleTokenizer


@dataclass(frozen=True)
class BytePairs:
    """The merges in order, the start and end ids of a text, and the most ids of a text, these two included."""

    merges: tuple[tuple[str, str], ...]
    start: int
    end: int
    context: int


def byte_pairs(tokenize: Callable[[list[str]], torch.Tensor]) -> BytePairs:
    """The facts of a backbone's tokenizer. Raises `ConfigError` for one of another kind."""
    from open_clip.tokenizer import SimpleTokenizer

    if isinstance(tokenize, ShortVocabulary):
        return BytePairs(_merges(tokenize.full), VOCABULARY - 2, VOCABULARY - 1, CONTEXT)
    if isinstance(tokenize, SimpleTokenizer):
        return BytePairs(_merges(tokenize), tokenize.sot_token_id, tokenize.eot_token_id, tokenize.context_length)
    raise ConfigError("only models with CLIP's byte-pair tokenizer can be exported: choose such a backbone")


def _merges(tokenizer: "SimpleTokenizer") -> tuple[tuple[str, str], ...]:
    return tuple(sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.__getitem__))


FORMAT = 1
WEIGHTS, PROGRAM, CONFIG, ANSWERS, MERGES, CARD, LOADER = (
    *("model.safetensors", "program.pt2", "config.json", "answers.json", "merges.txt", "README.md", "answer.py"),
)
TOLERANCE = 1e-5
"""The largest difference of a probability between the folder and the site."""
_NGRAMS = "from medfedvqa.models.ngrams import hashed_ngrams\n"
_QUESTION = "Is there a mass in the left upper lobe, and what's its size?"


def check_allowed(kept: KeptRun) -> None:
    """Raises `ConfigError` unless the site's policy, and its answer list, let a model leave in a folder."""
    policy = kept.config.policy
    if not policy.allow_export:
        raise ConfigError("this site's policy allows no export: set 'allow_export: true' in the policy of its site.yml")
    if kept.config.data.answers is None and kept.job.build().public_answers is None:
        raise ConfigError(
            "the model's answers are those of this site's own rows, which never leave it: train with a public list, by "
            "the job's option 'answers' or by 'answers' in site.yml"
        )
    if policy.require_dp and not coverage_of(kept).covered:
        raise ConfigError("this site's policy demands differential privacy, and no epsilon covers this model's weights")


def export(kept: KeptRun, answerer: Answerer, out: Path) -> Path:
    """Logs the export, writes the folder `out`, which must be new, and returns it.

    Raises `ConfigError` for a site, model or backbone that is not exported; `LogError` if the log cannot be written,
    and then there is no folder.
    """
    check_allowed(kept)
    if answerer.answering.beside:
        raise ConfigError("this site keeps two models that answer together, and an export holds one: ask it here")
    if bundled := isinstance(answerer.answering.model, PictureNetwork):
        from medfedvqa.answering.monai_bundle import WEIGHTS as BUNDLE_WEIGHTS
        from medfedvqa.answering.monai_bundle import check_bundled, write_bundle

        check_bundled(answerer.answering.model)
    else:
        check_traceable(answerer.answering.model)
    partial = out.with_name(f".{out.name}.partial")
    partial.mkdir(mode=0o700, parents=True)
    try:
        if bundled:
            write_bundle(partial, answerer, bundle_card(kept, answerer))
        else:
            _write(partial, kept, answerer)
            _compare(partial, answerer)
        weights = partial / (BUNDLE_WEIGHTS if bundled else WEIGHTS)
        answerer.log.append(
            Event.EXPORTED,
            job=kept.job_id,
            method=kept.job.method,
            code_version=code_version(),
            model_digest=answerer.site.backbone.digest,
            export={"weights": _sha256(weights), "nbytes": weights.stat().st_size},
        )
        if out.exists():
            out.rmdir()  # an empty folder that the user made
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def bundle_card(kept: KeptRun, answerer: Answerer) -> str:
    """The card of a MONAI bundle, as Markdown."""
    rounds, sites = kept.results["rounds_planned"], len(kept.results["sites"])
    return "\n\n".join(
        (
            "# A classifier of pictures\n\n" + f"**{WARNING}**",
            f"Trained by medfedvqa {code_version()} with the method {kept.job.method}, {rounds} rounds, {sites} sites. "
            f"Accuracy: {_accuracy(kept.results, answerer)}.",
            f"## Privacy\n\n{coverage_of(kept).sentence}",
            "Fairness and robustness were not measured. The licences of the training data apply to the weights.\n",
        )
    )


def _write(folder: Path, kept: KeptRun, answerer: Answerer) -> None:
    answering, (model, backbone) = answerer.answering, check_traceable(answerer.answering.model)
    pairs = byte_pairs(backbone.tokenize)
    traced, weights = TracedModel(model), weights_of(model, answering.values)
    save_file(weights, folder / WEIGHTS)
    _write_program(traced, weights, folder / PROGRAM)
    (folder / ANSWERS).write_text(_json(answering.answers), encoding="utf-8")
    (folder / MERGES).write_text("".join(f"{left} {right}\n" for left, right in pairs.merges), encoding="utf-8")
    (folder / LOADER).write_text(_loader(), encoding="utf-8")
    digests = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    config = {
        "format": FORMAT,
        "made_by": {"medfedvqa": code_version(), "torch": torch.__version__},
        "method": kept.job.method,
        "backbone": {"name": kept.job.backbone, "sha256": backbone.digest},
        "image_size": backbone.shape.image_size,
        "channels": backbone.channels,
        "tokenizer": {"start": pairs.start, "end": pairs.end, "context": pairs.context},
        "sha256": digests,
    }
    (folder / CONFIG).write_text(_json(config), encoding="utf-8")
    facts = CardFacts.of(kept, answerer, digests[WEIGHTS])
    (folder / CARD).write_text(model_card(facts), encoding="utf-8")


def _write_program(traced: TracedModel, weights: dict[str, torch.Tensor], path: Path) -> None:
    """The program without any weights. Raises `ConfigError` for a backbone that torch cannot trace."""
    try:
        with torch.no_grad():
            program = torch.export.export(traced, (weights, *traced.example))
    except Exception as error:  # torch's tracer has errors of its own for each kind of operation
        raise ConfigError(f"this backbone cannot be exported ({type(error).__name__}): choose another") from None
    # torch (2.15) would store the inputs that it traced with, and so all weights a second time.
    program._example_inputs = None
    torch.export.save(program, path)


def _compare(folder: Path, answerer: Answerer) -> None:
    """Raises `ConfigError` unless the folder gives the probabilities that the site gives, for a drawn picture."""
    size = answerer.site.backbone.shape.image_size
    rows, columns = torch.arange(size + 9)[:, None], torch.arange(2 * size)[None]
    grey = ((rows * columns + 3 * rows) % 256).float()
    wanted = answerer.probabilities(grey, _QUESTION)
    exported = ExportedModel(folder).probabilities(grey, _QUESTION)
    if not torch.allclose(exported, wanted, atol=TOLERANCE, rtol=0):
        raise ConfigError("the exported program's answers differ from the model's: this backbone is not exported")


def _loader() -> str:
    """The folder's stand-alone program, one file with copies of the project's functions."""
    text = files("medfedvqa.answering").joinpath("standalone.py").read_text("utf-8")
    ngrams = files("medfedvqa.models").joinpath("ngrams.py").read_text("utf-8")
    before, imported, after = text.partition(_NGRAMS)
    if not imported:
        raise AssertionError("the stand-alone program no longer imports the n-grams")
    return f"{before}{ngrams}\n{after}"


def _json(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
