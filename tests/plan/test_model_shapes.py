"""Shapes of models: parameter counts and FLOPs beside published ones, and the errors of a model by hand."""

import pytest

from minidist.nn.gpt import GPT, GPTConfig
from minidist.plan.memory_check import parameter_count
from minidist.plan.models.library import model_of, published
from minidist.plan.models.shape import Experts, ModelShape

# Elements of the published weights, as Hugging Face counts them in the files' headers.
WEIGHTS = {
    "llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496, "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704, "deepseek-v3": 671_026_419_200,
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_parameters_are_those_of_the_published_weights(name):
    assert model_of(name).parameters == WEIGHTS[name]


def test_active_parameters():
    assert model_of("mixtral-8x7b").active_parameters == 12_879_925_248  # "13B"
    active = model_of("deepseek-v3").active_parameters
    assert round(active / 1e9, 1) == 37.6 and round((active - 7168 * 129_280) / 1e9, 1) == 36.6  # without the embedding
    dense = model_of("llama3-8b")
    assert dense.active_parameters == dense.parameters


@pytest.mark.parametrize("name", ["gpt3-175b", "megatron-22b", "megatron-530b", "megatron-1t"])
def test_gpt_has_the_parameters_and_flops_of_narayanan_s_formulas(name):
    """arXiv 2104.04473, equations 2 and 3. Theirs lacks the last norm; its FLOPs take forward a second time."""
    model = model_of(name)
    h, n, v, s = model.width, model.layers, model.vocab, model.context
    assert model.parameters - 2 * h == 12 * n * h * h + 13 * n * h + (v + s) * h
    with_recomputation = 96 * s * n * h * h * (1 + s / (6 * h) + v / (16 * n * h))
    head = 2 * s * v * h  # is not recomputed
    assert 4 * s * model.forward_flops - head == pytest.approx(with_recomputation, rel=1e-12)


@pytest.mark.parametrize(("layers", "heads", "width", "vocab", "context"), [(1, 1, 4, 4, 2), (3, 2, 10, 14, 7)])
def test_a_gpt_of_this_library_has_as_many(layers, heads, width, vocab, context):
    config = GPTConfig(layers=layers, heads=heads, width=width, vocab=vocab, context=context)
    model = model_of(f"layers={layers},heads={heads},width={width},vocab={vocab},context={context}")
    real = sum(parameter.data.size for parameter in GPT(config).parameters())
    assert model.parameters == real == parameter_count(config)


def test_every_published_model_says_where_it_was_read():
    assert {*WEIGHTS} < {*published()} and all(model.source and model.name for model in published().values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llama3-450b", "unknown model 'llama3-450b': the nearest is 'llama3-405b'"),
        ("layer=2,width=8,heads=2,vocab=9,context=4", "unknown key 'layer': the nearest is 'layers'"),
        ("layers=2,width=8,heads=2,vocab=9", "context missing"),
        ("layers=2,layers=3,width=8,heads=2,vocab=9,context=4", "layers is given twice"),
        ("layers=2,width=8,heads=3,vocab=9,context=4", "heads=3 does not divide the width 8"),
        ("layers=0,width=8,heads=2,vocab=9,context=4", "layers must be at least 1, got 0"),
        ("layers=2,width=8,heads=4,kv_heads=3,vocab=9,context=4", "kv_heads=3 does not divide the 4 heads"),
        ("layers=2.5,width=8,heads=4,vocab=9,context=4", "layers=2.5 is not a whole number"),
        ("layers=2,width=8,heads=4,vocab=9,context=4,gated=2", "gated=2 must be 0 or 1"),
        ("layers=2,width=8,heads=4,vocab=9,context=4,gated=", "gated= is not a whole number"),
    ],
)
def test_errors_name_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        model_of(text)


def test_experts_must_fit():
    shape = {"name": "x", "layers": 2, "width": 4, "heads": 1, "vocab": 4, "context": 4}
    with pytest.raises(ValueError, match="top_k must be 1 to the 4 experts, got 5"):
        Experts(4, 5, 8)
    with pytest.raises(ValueError, match="dense_layers=2 leaves none of the 2 layers for experts"):
        ModelShape(**shape, moe=Experts(4, 2, 8, dense_layers=2))
