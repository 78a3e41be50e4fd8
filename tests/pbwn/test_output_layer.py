"""Which layers are the output layers: as the model says, by their names, by order, and seen with inputs."""

import dataclasses
import random
import sys
from collections import Counter

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

import pbwn

GUESS = pytest.mark.filterwarnings("ignore:.*the output layer is guessed")


def small():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def names(selection):
    return [weight.name for weight in selection.constrained]


class ThreeLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.other = nn.Linear(4, 3)


def with_getter(answer, getter):
    return type("WithGetter", (ThreeLayers,), {getter: answer})()


@pytest.mark.parametrize("getter", ["get_output_embeddings", "get_classifier"])
def test_a_model_is_asked_for_its_output_layer(getter):
    selection = pbwn.select(with_getter(lambda model: model.head, getter))
    assert names(selection) == ["first.weight", "other.weight"]
    assert selection.output_layer == f"'head' (from {getter}())"


def test_a_model_with_two_heads_keeps_both_free():
    selection = pbwn.select(with_getter(lambda model: (model.head, model.other), "get_classifier"))
    assert names(selection) == ["first.weight"]


def test_the_output_projection_of_attention_is_not_taken_for_the_output_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.MultiheadAttention(4, 2))
    selection = pbwn.select(model)
    assert selection.output_layer.startswith("'1'")
    assert "2.out_proj.weight" in names(selection)


def test_the_output_layer_can_be_chosen_or_constrained():
    assert names(pbwn.select(small())) == ["0.weight"]
    assert names(pbwn.select(small(), output_layer="0")) == ["2.weight"]
    assert names(pbwn.select(small(), output_layer=None)) == ["0.weight", "2.weight"]
    with pytest.raises(ValueError, match="output_layer='head' is not a module of the model"):
        pbwn.select(small(), output_layer="head")


@pytest.mark.parametrize("model", [nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))], ids=type)
def test_where_the_output_layer_is_the_only_candidate_the_table_and_the_errors_say_what_to_do(model):
    assert "output_layer=None constrains the output layer too" in str(pbwn.select(model))
    cause = "the only layer is the output layer: pass output_layer=None"
    with pytest.raises(ValueError, match=f"nothing to constrain: {cause}"):
        pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=f"nothing to project: {cause}"):
        pbwn.project_(model)


class Distillation(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = small()
        self.teacher = small().requires_grad_(False)


def test_an_optimizer_of_hidden_layers_alone_does_not_make_one_of_them_the_output_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    selection = pbwn.select(model, optimizer=torch.optim.SGD(model[:2].parameters(), lr=0.1))
    assert names(selection) == ["0.weight", "1.weight"]


class Holder(nn.Module):
    """A training module beside a loss, as Lightning users write it."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()


def test_a_model_inside_a_module_that_merely_holds_it_is_asked_too():
    selection = pbwn.select(Holder(with_getter(lambda model: model.head, "get_output_embeddings")))
    assert selection.output_layer == "'model.head' (from get_output_embeddings())"


@pytest.mark.parametrize(
    "answer",
    [lambda model, name: model.head, lambda model: {"main": model.head}, lambda model: "head"],
    ids=["needs an argument", "a dictionary", "a word"],
)
def test_a_getter_that_answers_strangely_is_no_trouble(answer):
    assert "first.weight" in names(pbwn.select(with_getter(answer, "get_classifier")))


def test_several_heads_can_be_named():
    assert names(pbwn.select(ThreeLayers(), output_layer=["head", "other"])) == ["first.weight"]


def test_an_adaptive_softmax_is_the_output_layer_as_a_whole():
    model = nn.Sequential(nn.Linear(8, 16), nn.AdaptiveLogSoftmaxWithLoss(16, 100, [10, 50]))
    selection = pbwn.select(model)
    assert names(selection) == ["0.weight"]
    assert selection.output_layer == "'1' (an adaptive softmax)"
    assert "1.head.weight" in names(pbwn.select(model, output_layer=None))
    model.append(nn.Linear(16, 2))
    assert pbwn.select(model).output_layer.startswith("'2'")


@pytest.mark.parametrize("nothing", [[], ()])
def test_an_empty_list_of_output_layers_is_none(nothing):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    assert len(pbwn.select(model, output_layer=nothing).constrained) == 2


@pytest.mark.parametrize("answer", [lambda model: None, lambda model: nn.Linear(2, 2)], ids=["None", "no part of it"])
def test_where_the_model_has_no_answer_the_names_of_its_layers_tell(answer):
    selection = pbwn.select(with_getter(answer, "get_output_embeddings"))
    assert selection.output_layer == "'head' (by its name)"
    assert names(selection) == ["first.weight", "other.weight"]


class Tied(nn.Module):
    """A language model whose output matrix is that of its embedding, with or without a layer for it."""

    def __init__(self, *, with_head):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        if with_head:
            self.lm_head = nn.Linear(4, 7, bias=False)
            self.lm_head.weight = self.embedding.weight

    def forward(self, tokens):
        return functional.linear(self.body(self.embedding(tokens)), self.embedding.weight)

    def get_output_embeddings(self):
        return self.embedding


@pytest.mark.parametrize(("with_head", "found"), [(True, "lm_head"), (False, "embedding")])
def test_a_getter_that_returns_the_tied_embedding_does_not_make_a_hidden_layer_the_output_layer(with_head, found):
    model = Tied(with_head=with_head)
    assert pbwn.select(model).output_layer.startswith(f"'{found}' (")
    assert names(pbwn.select(model)) == ["body.weight"]
    assert names(pbwn.select(model, torch.arange(5))) == ["body.weight"]


def tree(*paths):
    """A model of linear layers with these names; `x[3]` stands for a list of three, `x:2` for two layers in a row."""
    model = nn.Module()
    for path in paths:
        *parents, last = path.split(".")
        holder = model
        for parent in parents:
            if parent not in holder._modules:
                holder.add_module(parent, nn.Module())
            holder = holder.get_submodule(parent)
        name, _, count = last.partition("[")
        length = last.partition(":")[2]
        if count:
            holder.add_module(name, nn.ModuleList(nn.Linear(2, 2) for _ in range(int(count[:-1]))))
        elif length:
            holder.add_module(last.partition(":")[0], nn.Sequential(*(nn.Linear(2, 2) for _ in range(int(length)))))
        else:
            holder.add_module(last, nn.Linear(2, 2))
    return model


# The layers of models of other libraries and of usual habits, in order of registration, and the output layers.
NAMED = {
    "diffusers AutoencoderKL": (
        ["encoder.conv_in", "encoder.conv_out", "decoder.conv_in", "decoder.conv_out", "quant_conv", "post_quant_conv"],
        "'decoder.conv_out'",
    ),
    "diffusers PixArt": (
        [
            "pos_embed.proj",
            "transformer_blocks.0.attn1.to_out[1]",
            "proj_out",
            "adaln_single.linear",
            "caption.linear_2",
        ],
        "'proj_out'",
    ),
    "diffusers UNet": (
        [
            "conv_in",
            "time_embedding.linear_2",
            "down_blocks.0.attentions.0.proj_out",
            "mid.0.attentions.0.proj_out",
            "conv_out",
        ],
        "'conv_out'",
    ),
    "diffusers ControlNet": (
        [
            "conv_in",
            "controlnet_cond_embedding.conv_out",
            "controlnet_down_blocks[3]",
            "controlnet_mid_block",
            "mid.conv2",
        ],
        "'controlnet_down_blocks.{0..2}', 'controlnet_mid_block'",
    ),
    "a diffusion transformer": (
        ["x_embedder.proj", "blocks.0.mlp.fc2", "final_layer.linear", "final_layer.adaLN_modulation:1"],
        "'final_layer.linear'",
    ),
    "timm EfficientNet": (["conv_stem", "blocks.0.conv_pwl", "conv_head", "classifier"], "'classifier'"),
    "timm HRNet": (["conv1", "incre_modules.0.conv", "final_layer:1", "classifier"], "'classifier'"),
    "timm RepViT": (["stem", "head.head.l", "head.head_dist.l", "neck"], "'head.head.l', 'head.head_dist.l'"),
    "timm VOLO": (["patch_embed.proj", "network.0.mlp.fc2", "post.mlp.fc2", "aux_head", "head"], "'aux_head', 'head'"),
    "timm, a head with a transform": (["stem", "stages.0.mlp.fc2", "head.pre", "head.fc", "extra"], "'head.fc'"),
    "torchvision ResNet": (["conv1", "layer1.0.conv2", "fc"], "'fc'"),
    "torchvision VGG": (["features:3", "classifier:3"], "'classifier.2'"),
    "torchvision Inception": (
        ["Conv2d_1a.conv", "AuxLogits.conv0", "AuxLogits.fc", "Mixed.conv", "fc"],
        "'AuxLogits.fc', 'fc'",
    ),
    "torchvision FasterRCNN": (
        [
            "fpn[2]",
            "rpn.head.cls_logits",
            "rpn.head.bbox_pred",
            "roi.box_predictor.cls_score",
            "roi.box_predictor.bbox_pred",
        ],
        "'rpn.head.cls_logits', 'rpn.head.bbox_pred', 'roi.box_predictor.cls_score', 'roi.box_predictor.bbox_pred'",
    ),
    "Segment Anything": (
        [
            "image_encoder.neck",
            "mask_decoder.transformer.out_proj",
            "mask_decoder.output_hypernetworks_mlps[4]",
            "mask_decoder.iou_prediction_head:3",
        ],
        "'mask_decoder.output_hypernetworks_mlps.{0..3}', 'mask_decoder.iou_prediction_head.2'",
    ),
    "a U-Net of one's own": (["inc", "down.0.conv", "up.0.conv", "outc", "attention_gate.proj"], "'outc'"),
    "an actor and a critic": (["body", "policy_head", "value_head", "log_scale_net"], "'policy_head', 'value_head'"),
    "one head for each task": (["encoder.fc", "heads[3]", "projector"], "'heads.{0..2}'"),
    "a router is no classifier": (["layers.0.router.classifier", "layers.0.router_logits", "lm_head"], "'lm_head'"),
    "start and end of an answer": (["body", "start_logits", "end_logits"], "'start_logits', 'end_logits'"),
    "a pooling head is no head": (["vision.pooling_head", "body", "score"], "'score'"),
    "a head that prepares": (["body", "head.dense", "classifier", "extra"], "'classifier'"),
}


@pytest.mark.parametrize("case", NAMED)
def test_output_layers_are_found_by_their_names_all_of_them(case):
    layers, expected = NAMED[case]
    whose = "its name" if "," not in expected and ".." not in expected else "their names"
    assert pbwn.select(tree(*layers)).output_layer == f"{expected} (by {whose})"


def test_the_work_to_find_the_output_layer_grows_with_the_number_of_layers_and_not_with_its_square():
    calls = []
    for count in (100, 200):
        model, events = nn.Sequential(*[nn.Linear(1, 1) for _ in range(count)]), Counter()
        sys.setprofile(lambda frame, event, argument, events=events: events.update([event]))
        try:
            pbwn.select(model)
        finally:
            sys.setprofile(None)
        calls.append(events.total())
    assert calls[1] < 2.2 * calls[0], calls


FROM_GETTER, BY_NAME, BY_NAMES = "(from get_output_embeddings())", "(by its name)", "(by their names)"
# Of transformers: settings beside a single layer of each kind, and the output layers.
TRANSFORMERS = {
    "XLMRobertaForSequenceClassification": ({}, f"'classifier.out_proj' {BY_NAME}"),
    "XLMRobertaForTokenClassification": ({}, f"'classifier' {BY_NAME}"),
    "XLMRobertaForMaskedLM": ({}, f"'lm_head.decoder' {FROM_GETTER}"),
    "CamembertForQuestionAnswering": ({}, f"'qa_outputs' {BY_NAME}"),
    "CamembertForMultipleChoice": ({}, f"'classifier' {BY_NAME}"),
    "JinaEmbeddingsV3ForSequenceClassification": ({}, f"'classifier.out_proj' {BY_NAME}"),
    "BertForPreTraining": ({}, f"'cls.predictions.decoder' {FROM_GETTER}, 'cls.seq_relationship' {BY_NAME}"),
    "BertForNextSentencePrediction": ({}, f"'cls.seq_relationship' {BY_NAME}"),
    "AlbertForPreTraining": ({}, f"'predictions.decoder' {FROM_GETTER}, 'sop_classifier.classifier' {BY_NAME}"),
    "ElectraForMaskedLM": ({}, f"'generator_lm_head' {FROM_GETTER}"),
    "ModernBertForSequenceClassification": ({}, f"'classifier' {BY_NAME}"),
    "BigBirdForQuestionAnswering": ({}, f"'qa_classifier.qa_outputs' {BY_NAME}"),
    "LukeForMaskedLM": ({}, f"'lm_head.decoder' {FROM_GETTER}, 'entity_predictions.decoder' {BY_NAME}"),
    "GPT2DoubleHeadsModel": ({}, f"'lm_head' {FROM_GETTER}, 'multiple_choice_head.summary' {BY_NAME}"),
    "SwitchTransformersForConditionalGeneration": ({}, f"'lm_head' {FROM_GETTER}"),
    "BarkFineModel": ({}, f"'lm_heads.{{0..6}}' {FROM_GETTER}"),
    "DeiTForImageClassificationWithTeacher": ({}, f"'cls_classifier', 'distillation_classifier' {BY_NAMES}"),
    "YolosForObjectDetection": ({}, f"'class_labels_classifier.layers.2', 'bbox_predictor.layers.2' {BY_NAMES}"),
    "UperNetForSemanticSegmentation": ({}, f"'decode_head.classifier', 'auxiliary_head.classifier' {BY_NAMES}"),
    "Mask2FormerForUniversalSegmentation": (
        {},
        f"'model.transformer_module.decoder.mask_predictor.mask_embedder.2.0', 'class_predictor' {BY_NAMES}",
    ),
    "OneFormerForUniversalSegmentation": (
        {},
        "'model.transformer_module.decoder.class_embed', "
        f"'model.transformer_module.decoder.mask_embed.layers.2.0' {BY_NAMES}",
    ),
    "RTDetrForObjectDetection": (
        {"decoder_layers": 2},
        "'model.enc_score_head', 'model.enc_bbox_head.layers.2', 'model.decoder.class_embed.{0, 1}', "
        f"'model.decoder.bbox_embed.{{0, 1}}.layers.2' {BY_NAMES}",
    ),
    "PPDocLayoutV2ForObjectDetection": (
        {"decoder_layers": 2},
        "'model.enc_score_head', 'model.enc_bbox_head.layers.2', 'model.decoder.class_embed.{0, 1}', "
        f"'model.decoder.bbox_embed.{{0, 1}}.layers.2' {BY_NAMES}",
    ),
    "ModernBertDecoderForCausalLM": ({}, f"'decoder' {FROM_GETTER}"),
    "XLMForQuestionAnswering": (
        {},
        "'qa_outputs.start_logits.dense', 'qa_outputs.end_logits.dense_1', 'qa_outputs.answer_class.dense_1' "
        f"{BY_NAMES}",
    ),
    "SamModel": (
        {},
        "'mask_decoder.output_hypernetworks_mlps.{0..3}.proj_out', "
        f"'mask_decoder.iou_prediction_head.proj_out' {BY_NAMES}",
    ),
    "SamHQModel": (
        {},
        "'mask_decoder.output_hypernetworks_mlps.{0..3}.proj_out', 'mask_decoder.hq_mask_mlp.proj_out', "
        f"'mask_decoder.iou_prediction_head.proj_out' {BY_NAMES}",
    ),
    "Qwen2_5OmniForConditionalGeneration": ({}, f"'thinker.lm_head', 'talker.codec_head' {BY_NAMES}"),
    "FlavaForPreTraining": (
        {},
        "'mlm_head.decoder', 'itm_head.seq_relationship', 'mim_head.decoder', 'mmm_image_head.decoder', "
        f"'mmm_text_head.decoder' {BY_NAMES}",
    ),
}


def shallow(config, **settings):
    """The configuration of a model with a single layer of each kind."""
    for name in list(vars(config)):
        value = getattr(config, name, None)
        if hasattr(value, "to_dict"):
            shallow(value)
        elif name in ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers") and value:
            setattr(config, name, settings.get(name, 1))
    return config


@GUESS
@pytest.mark.filterwarnings("ignore:.*neuron axes are unknown", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_output_layers_of_transformers_are_found(name):
    kind = getattr(transformers, name, None)
    if kind is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    settings, expected = TRANSFORMERS[name]
    with torch.device("meta"):
        model = kind(shallow(kind.config_class(), **settings))
    assert pbwn.select(model).output_layer == expected


def unnamed(*, frozen=()):
    """A model whose layers have no telling names."""
    model = tree("one", "two", "three")
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    return model


def test_an_output_layer_that_is_found_by_order_is_called_a_guess_and_warned_of_once():
    with pytest.warns(
        UserWarning, match=r"output layer is guessed: 'three' .*output_layer=.*select\(model, \*inputs\)"
    ):
        selection = pbwn.select(unnamed())
    assert selection.output_layer == "guessed: 'three' (the last Linear or convolution, in order of registration)"
    pbwn.select(unnamed())  # warnings are errors here


def test_there_is_no_warning_where_the_guess_does_not_matter():
    for wishes in ({"output_layer": "three"}, {"output_layer": None}, {"only": ["one"]}, {"also": ["three"]}):
        pbwn.select(unnamed(), **wishes)


@GUESS
def test_a_hidden_layer_does_not_pass_for_a_frozen_output_layer():
    assert names(pbwn.select(unnamed(frozen=["three"]))) == ["one.weight", "two.weight"]
    model = tree("one", "two", "classifier")
    model.classifier.requires_grad_(False)
    assert names(pbwn.select(model)) == ["one.weight", "two.weight"]


@GUESS
def test_a_frozen_network_beside_the_trained_one_is_not_taken_for_its_output():
    selection = pbwn.select(Distillation())
    assert selection.output_layer.startswith("guessed: 'student.2'")
    assert names(selection) == ["student.0.weight"]


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    extra: object = None


class Residual(nn.Module):
    """Blocks that add to what comes in, and two heads; the names tell nothing, and the heads come first."""

    def __init__(self, pack=lambda a, b, hidden: (a, b)):
        super().__init__()
        self.last, self.other = nn.Linear(4, 2), nn.Linear(4, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout()
        self.pack = pack

    def forward(self, x, scale=1.0):
        hidden = []
        for block in self.blocks:
            x = x + self.dropout(block(x))
            hidden.append(x)
        x = self.norm(x) * scale * random.random()
        return self.pack(self.last(x), self.other(x), hidden)


PACKED = {
    "a tuple": lambda a, b, hidden: (a, b),
    "nested": lambda a, b, hidden: [{"one": a}, (b,)],
    "a data class": lambda a, b, hidden: Result(a, {"more": b}),
    "a distribution": lambda a, b, hidden: (
        torch.distributions.Normal(a, 1.0),
        torch.distributions.Categorical(logits=b),
    ),
    "with hidden states": lambda a, b, hidden: {"logits": a, "boxes": b, "hidden_states": tuple(hidden)},
    "a loss": lambda a, b, hidden: a.square().mean() + b.exp().sum(),
    "written into a buffer": lambda a, b, hidden: into(torch.zeros(a.shape[0], 5), a, b),
}


def into(whole, a, b):
    whole[:, :2] = a
    whole[:, 2:].copy_(b)
    return whole


@pytest.mark.parametrize("pack", PACKED)
def test_with_inputs_the_output_layers_are_seen_whatever_the_output_is(pack):
    selection = pbwn.select(Residual(PACKED[pack]), torch.randn(6, 4))
    assert selection.output_layer == "'last', 'other' (seen with the inputs)"
    assert len(selection.constrained) == 6


def test_the_pass_leaves_no_trace():
    model = Residual().train()
    model.blocks[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = dict(model.named_buffers())
    state, python_state = torch.get_rng_state(), random.getstate()
    pbwn.select(model, torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert [model.training, model.blocks[1].training, model.norm.training] == [True, False, True]
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    "inputs",
    [
        (torch.randn(6, 4), {"scale": 2.0}),
        ({"x": torch.randn(6, 4), "scale": 2.0},),
        (torch.randn(6, 4), 2.0),
        (torch.randn(6, 4, device="cpu"),),
    ],
    ids=["tensor and keywords", "keywords", "two tensors", "tensor"],
)
def test_inputs_are_given_as_the_model_takes_them(inputs):
    assert pbwn.select(Residual(), *inputs).output_layer.startswith("'last', 'other' (seen")


class TakesADictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.b, self.a = nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, batch):
        return self.b(self.a(batch["x"]))


def test_inputs_that_the_model_refuses_are_an_error_that_says_what_to_pass():
    words = (
        r"the model refuses these inputs \(RuntimeError: .*mat1.*\): pass what its forward takes.*select\(model, \*inp"
    )
    with pytest.raises(ValueError, match=words):
        pbwn.select(small(), torch.randn(3, 5))


def test_a_model_that_takes_a_dictionary_gets_it():
    assert pbwn.select(TakesADictionary(), {"x": torch.randn(2, 4)}).output_layer.startswith("'b'")


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, lambda model: torch.compile(model, backend="eager"), torch.optim.swa_utils.AveragedModel],
    ids=["data parallel", "compiled", "averaged"],
)
def test_a_wrapped_model_is_seen_through(wrap):
    assert pbwn.select(wrap(Residual()), torch.randn(6, 4)).output_layer.startswith("'last', 'other' (seen")


def test_a_frozen_output_layer_is_seen_too():
    model = Residual()
    model.last.requires_grad_(False)
    assert pbwn.select(model, torch.randn(6, 4)).output_layer.startswith("'last', 'other' (seen")


class Refining(nn.Module):
    """Each step predicts, and hands its prediction on as a constant; a choice of rows hangs on the scores."""

    def __init__(self):
        super().__init__()
        self.position = nn.Linear(2, 4)
        self.steps = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.boxes = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
        self.scores = nn.Linear(4, 1)

    def forward(self, x):
        scores = self.scores(x)
        x = x[scores[:, 0].topk(3).indices]
        box, boxes = torch.zeros(3, 2), []
        for step, predict in zip(self.steps, self.boxes, strict=True):
            x = step(x + self.position(box))
            boxes.append(box + predict(x))
            box = boxes[-1].detach()
        return boxes, scores


def test_what_is_handed_on_without_a_gradient_hides_no_output_layer():
    assert pbwn.select(Refining(), torch.randn(6, 4)).output_layer == "'boxes.{0, 1}', 'scores' (seen with the inputs)"


class Functional(nn.Module):
    """A head that is no layer, after a layer that is never called itself."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 3))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.einsum("bi,ij->bj", functional.linear(x, self.linear.weight), self.matrix)


def test_a_layer_is_seen_by_its_weight_whether_or_not_it_is_called():
    selection = pbwn.select(Functional(), torch.randn(2, 4))
    assert names(selection) == ["linear.weight"]
    assert {left.name: str(left.reason)[:12] for left in selection.left_alone}["matrix"] == "output layer"


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(4, 4)
        self.lstm = nn.LSTM(4, 4)
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x):
        x, _ = self.lstm(self.input(x))
        return self.attention(x, x, x)[0]


def test_where_no_linear_layer_comes_last_none_is_left_alone():
    selection = pbwn.select(Recurrent(), torch.randn(3, 2, 4))
    assert selection.output_layer == "none: no linear layer or convolution comes last before the output"
    assert "input.weight" in names(selection)


class Auxiliary(Residual):
    """A head that is used for the loss alone, and one that is not used in this pass."""

    def __init__(self):
        super().__init__()
        self.auxiliary_head, self.classifier = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x, labels=None):
        outputs = super().forward(x)
        auxiliary = self.auxiliary_head(x)
        return outputs if labels is None else (*outputs, functional.cross_entropy(auxiliary, labels))


def test_heads_that_a_pass_leaves_out_are_known_by_their_names():
    selection = pbwn.select(Auxiliary(), torch.randn(6, 4))
    unseen = "'auxiliary_head', 'classifier' (by their names, and not seen)"
    assert selection.output_layer == f"'last', 'other' (seen with the inputs), {unseen}"
    selection = pbwn.select(Auxiliary(), torch.randn(6, 4), {"labels": torch.zeros(6, dtype=torch.long)})
    assert selection.output_layer.startswith(
        "'last', 'other', 'auxiliary_head' (seen with the inputs), 'classifier' (by"
    )


def test_a_name_that_the_pass_contradicts_does_not_count():
    model = nn.Sequential()
    for name in ("body", "classifier", "calibration"):
        model.add_module(name, nn.Linear(4, 4))
    holder = nn.Module()
    holder.inner, holder.scale = model, nn.Parameter(torch.ones(()))
    holder.forward = lambda x: holder.scale * holder.inner(x)
    assert pbwn.select(holder).output_layer == "'inner.classifier' (by its name)"
    assert pbwn.select(holder, torch.randn(2, 4)).output_layer == "'inner.calibration' (seen with the inputs)"


SMALL = {
    "vocab_size": 32,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}
IMAGE = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": [16, 16],
    "patch_size": 8,
    "num_detection_tokens": 2,
}
RUN = {
    "BertForPreTraining": (transformers.BertConfig(**SMALL), "'cls.predictions.decoder', 'cls.seq_relationship'"),
    "XLMRobertaForSequenceClassification": (transformers.XLMRobertaConfig(**SMALL), "'classifier.out_proj'"),
    "LlamaForCausalLM": (transformers.LlamaConfig(**SMALL), "'lm_head'"),  # it returns its cache of keys too
    "MixtralForCausalLM": (
        transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=2, output_router_logits=True),
        "'lm_head'",
    ),
    "YolosForObjectDetection": (
        transformers.YolosConfig(**IMAGE),
        "'class_labels_classifier.layers.2', 'bbox_predictor.layers.2'",
    ),
}


@pytest.mark.parametrize("name", RUN)
def test_the_output_layers_of_transformers_are_seen(name):
    config, expected = RUN[name]
    model = getattr(transformers, name)(config)
    inputs = (
        {"pixel_values": torch.randn(1, 3, 16, 16)} if "Yolos" in name else {"input_ids": torch.arange(4, 10)[None]}
    )
    assert pbwn.select(model, inputs).output_layer == f"{expected} (seen with the inputs)"


def test_a_buffer_that_is_expanded_does_not_keep_the_output_layer_from_being_seen():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model.register_buffer("places", torch.arange(6.0).expand(16, -1))
    assert pbwn.select(model, torch.randn(3, 4)).output_layer == "'2' (seen with the inputs)"


def test_seeing_the_output_layer_leaves_the_inputs_as_they_are():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    inputs = torch.randn(3, 4)
    before = inputs.clone()
    pbwn.select(model, inputs)
    assert torch.equal(inputs, before)
