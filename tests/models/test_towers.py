"""The towers are open_clip's, and prompts do what the paper's equations say."""

import copy

import pytest
import torch
from open_clip.model import CLIP, CustomTextCLIP

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import TowerTuning
from medfedvqa.models.layouts import Packed
from medfedvqa.models.prompts import JoinedPrompts, join
from medfedvqa.models.towers import ImageTower, TextTower

EXACT = {"rtol": 0, "atol": 1e-10}


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens() -> torch.Tensor:
    """Five questions of different lengths; some begin alike, one is nothing but a start and an end."""
    ids = torch.zeros(5, 12, dtype=torch.int64)
    for row, body in zip(ids, ([5, 6, 7], [5, 6, 8, 9, 10, 11, 12, 13, 14, 15], [], [5, 6, 7, 7], [9]), strict=True):
        row[: len(body) + 2] = torch.tensor([62, *body, 63])
    return ids


def prompt(blocks: int, width: int, seed: int, *items: int) -> torch.Tensor:
    return torch.randn(*items, blocks, 4, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def read(tower: TextTower, ids: torch.Tensor, prompts: JoinedPrompts | None = None) -> torch.Tensor:
    """All of the text tower."""
    layout = Packed(tower.beginnings(ids), torch.arange(len(ids)))
    return tower.features(tower.trunk(ids, layout), layout, TowerTuning(prompts))


def see(tower: ImageTower, pixels: torch.Tensor, prompts: JoinedPrompts | None = None) -> torch.Tensor:
    """All of the image tower."""
    return tower.features(tower.trunk(pixels), TowerTuning(prompts))


def unprojected(clip: torch.nn.Module) -> torch.nn.Module:
    """A copy whose own `encode_image` and `encode_text` end before CLIP's projection."""
    clip = copy.deepcopy(clip)
    clip.visual.proj = None
    (clip.text if isinstance(clip, CustomTextCLIP) else clip).text_projection = None
    return clip


@pytest.mark.parametrize("prompted", [1, 2, 3])
@pytest.mark.parametrize("vision", [{}, {"pool_type": "avg"}, {"pool_type": "avg", "final_ln_after_pool": True}])
def test_without_prompts_images_are_encoded_as_open_clip_does(make_clip, vision, prompted):
    clip = make_clip(vision={**vision, "ls_init_value": 0.7})
    expected = unprojected(clip).encode_image(images(3))
    assert torch.allclose(see(ImageTower(clip.visual, prompted), images(3)), expected, **EXACT)


@pytest.mark.parametrize("prompted", [1, 2])
@pytest.mark.parametrize("kind", [CLIP, CustomTextCLIP])
@pytest.mark.parametrize(
    "text",
    [{}, {"pool_type": "eos", "eos_id": 63}, {"pool_type": "last", "no_causal_mask": True}, {"pool_type": "first"}],
)
def test_without_prompts_texts_are_encoded_as_open_clip_does(make_clip, kind, text, prompted):
    clip = make_clip(kind, text=text)
    expected = unprojected(clip).encode_text(tokens())
    assert torch.allclose(read(TextTower(clip, prompted), tokens()), expected, **EXACT)


def test_in_float32_the_towers_are_as_open_clip_to_1e_5(make_clip):
    clip = make_clip().float()
    plain = unprojected(clip)
    pixels = images(3).float()
    assert torch.allclose(see(ImageTower(clip.visual, 3), pixels), plain.encode_image(pixels), rtol=0, atol=1e-5)
    assert torch.allclose(read(TextTower(clip, 2), tokens()), plain.encode_text(tokens()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("placing", ["before", "after"])
@pytest.mark.parametrize("joining", ["concatenate", "add"])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_prompts_act_on_images_as_the_equations_say(make_clip, reference, joining, placing, blocks):
    clip, local, shared = make_clip(), prompt(blocks, 32, 1), prompt(blocks, 32, 2)
    found = see(ImageTower(clip.visual, blocks), images(3), join(local, shared, joining, placing))
    assert torch.allclose(found, reference(joining, placing).image(clip, images(3), local, shared), **EXACT)


@pytest.mark.parametrize("placing", ["before", "after"])
@pytest.mark.parametrize("joining", ["concatenate", "add"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_prompts_act_on_texts_as_the_equations_say(make_clip, reference, joining, placing, blocks):
    clip, local, shared = make_clip(), prompt(blocks, 24, 1), prompt(blocks, 24, 2)
    found = read(TextTower(clip, blocks), tokens(), join(local, shared, joining, placing))
    assert torch.allclose(found, reference(joining, placing).text(clip, tokens(), local, shared), **EXACT)


@pytest.mark.parametrize("pool", ["tok", "avg"])
def test_the_gradient_of_prompts_is_that_of_the_plain_equations(make_clip, reference, pool):
    """For text, too: common beginnings share their states, and their gradients add up."""
    clip, found, expected = make_clip(vision={"pool_type": pool}), [], []
    for result, tower in ((found, True), (expected, False)):
        seen, said = prompt(3, 32, 1).requires_grad_(), prompt(2, 24, 2).requires_grad_()
        if tower:
            features = see(ImageTower(clip.visual, 3), images(3), join(seen, prompt(3, 32, 3), "concatenate", "before"))
            words = read(TextTower(clip, 2), tokens(), join(said, prompt(2, 24, 4), "concatenate", "before"))
        else:
            features = reference().image(clip, images(3), seen, prompt(3, 32, 3))
            words = reference().text(clip, tokens(), said, prompt(2, 24, 4))
        (features.square().sum() + words.square().sum()).backward()
        result.extend((seen.grad, said.grad))
    for gradient, right in zip(found, expected, strict=True):
        assert torch.allclose(gradient, right, **EXACT)


def test_masked_prompts_are_no_prompts_and_prompts_of_zeros_are_not(make_clip, reference):
    clip, zeros = make_clip(), torch.zeros(3, 4, 32, dtype=torch.float64)
    without = see(ImageTower(clip.visual, 3), images(3))
    masked = reference(visible=False).image(clip, images(3), prompt(3, 32, 1), prompt(3, 32, 2))
    assert torch.allclose(without, masked, **EXACT)
    for placing in ("before", "after"):
        with_zeros = see(ImageTower(clip.visual, 3), images(3), join(zeros, None, "concatenate", placing))
        assert (with_zeros - without).abs().max() > 1e-3


def test_the_order_of_prompt_tokens_does_not_matter_while_keys_stay_with_their_values(make_clip):
    clip, order = make_clip(), torch.tensor([2, 0, 3, 1])
    joined = join(prompt(3, 32, 1), prompt(3, 32, 2), "concatenate", "before")
    together = JoinedPrompts(joined.keys[:, order], joined.values[:, order], "before")
    apart = JoinedPrompts(joined.keys[:, order], joined.values, "before")
    tower = ImageTower(clip.visual, 3)
    expected = see(tower, images(3), joined)
    assert torch.allclose(see(tower, images(3), together), expected, **EXACT)
    assert (see(tower, images(3), apart) - expected).abs().max() > 1e-3


def test_a_question_is_encoded_alike_whatever_is_asked_beside_it(make_clip):
    """Cutting the text and sharing beginnings change nothing."""
    tower, prompts = TextTower(make_clip(), 2), join(prompt(2, 24, 1), None, "concatenate", "before")
    together = read(tower, tokens(), prompts)
    alone = torch.cat([read(tower, question[None], prompts) for question in tokens()])
    assert torch.allclose(together, alone, **EXACT)


def test_common_beginnings_are_computed_once_and_nothing_after_the_end(make_clip):
    layout = Packed(TextTower(make_clip(), 2).beginnings(tokens()), torch.arange(5))
    # start, 5, 6 | 7, end | 7 again ends in 7, end | 8 ... 15, end | end | 9, end
    assert len(layout.states) == 3 + 2 + 2 + 9 + 1 + 2
    assert layout.length == 12


def test_without_a_causal_mask_nothing_is_cut_or_shared(make_clip):
    tower = TextTower(make_clip(text={"no_causal_mask": True, "pool_type": "last"}), 2)
    assert len(Packed(tower.beginnings(tokens()), torch.arange(5)).states) == 5 * 12


@pytest.mark.parametrize("placing", ["before", "after"])
def test_each_item_may_have_its_own_prompts_and_each_gets_its_own_gradient(make_clip, placing):
    clip, shared = make_clip(), prompt(2, 24, 9)
    tower, own = TextTower(clip, 2), prompt(2, 24, 1, 5).requires_grad_()
    ids = tokens()
    layout = Packed(tower.beginnings(ids), torch.arange(5), owner=torch.arange(5))
    hidden = tower.trunk(ids, Packed(tower.beginnings(ids), torch.arange(5)))
    start = hidden[layout.states]
    found = tower.features(start, layout, TowerTuning(join(own, shared, "concatenate", placing, torch.arange(5))))
    found.square().sum().backward()
    for item in range(5):
        leaf = own.detach()[item].requires_grad_()
        alone = read(tower, ids[item : item + 1], join(leaf, shared, "concatenate", placing))
        alone.square().sum().backward()
        assert torch.allclose(found[item], alone[0], **EXACT)
        assert torch.allclose(own.grad[item], leaf.grad, **EXACT)


def test_nothing_is_kept_for_the_backward_pass_below_the_first_block_with_prompts(make_clip):
    clip = make_clip()
    tower, text = ImageTower(clip.visual, 2), TextTower(clip, 1)
    assert not tower.trunk(images(2)).requires_grad
    layout = Packed(text.beginnings(tokens()), torch.arange(5))
    assert not text.trunk(tokens(), layout).requires_grad
    see(tower, images(2), join(prompt(2, 32, 1).requires_grad_(), None, "add", "before")).sum().backward()
    assert all(parameter.grad is None for parameter in clip.parameters())


def test_embeddings_are_those_of_open_clip(make_clip):
    clip = make_clip()
    image, text = ImageTower(clip.visual, 3), TextTower(clip, 2)
    assert torch.allclose(image.embed(see(image, images(3))), clip.encode_image(images(3), normalize=True), **EXACT)
    assert torch.allclose(text.embed(read(text, tokens())), clip.encode_text(tokens(), normalize=True), **EXACT)


def test_a_linear_projection_with_bias_embeds_as_open_clip_does(make_clip):
    clip = make_clip(text={"proj_bias": True})
    text = TextTower(clip, 2)
    assert torch.allclose(text.embed(read(text, tokens())), clip.encode_text(tokens(), normalize=True), **EXACT)


def test_a_tower_without_a_projection_says_that_it_cannot_embed(make_clip):
    text = TextTower(make_clip(text={"proj_type": "none"}), 2)
    with pytest.raises(ConfigError, match="concat"):
        text.embed(read(text, tokens()))


@pytest.mark.parametrize("blocks", [0, 4])
def test_more_prompted_blocks_than_a_tower_has_are_refused(make_clip, blocks):
    with pytest.raises(ConfigError, match="blocks"):
        ImageTower(make_clip().visual, blocks)
    with pytest.raises(ConfigError, match="blocks"):
        TextTower(make_clip(), blocks)
