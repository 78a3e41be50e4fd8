"""The callback inside the real Trainer of Transformers, on small models with random weights."""

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import pbwn
from pbwn.integrations.transformers import ProjectionCallback

WIDTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {"vocab_size": 20, "max_position_embeddings": 8}
BERT = BertConfig(**WIDTH, **TEXT)
GPT2 = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=8, vocab_size=20, bos_token_id=0, eos_token_id=0)
LLAMA = LlamaConfig(**WIDTH, **TEXT, tie_word_embeddings=False)
TIED_LLAMA = LlamaConfig(**WIDTH, **TEXT, tie_word_embeddings=True)
VIT = ViTConfig(**WIDTH, image_size=8, patch_size=4)
# Each model, how many of its weights are constrained, and what must be left alone.
MODELS = {
    "BERT, masked": (BertForMaskedLM, BERT, 13, {"bert.embeddings.word_embeddings.weight"}),
    "BERT, classifier": (BertForSequenceClassification, BERT, 13, {"classifier.weight"}),
    "GPT-2": (GPT2LMHeadModel, GPT2, 8, {"transformer.wte.weight", "transformer.wpe.weight"}),
    "Llama": (LlamaForCausalLM, LLAMA, 14, {"model.embed_tokens.weight", "lm_head.weight"}),
    "Llama, tied": (LlamaForCausalLM, TIED_LLAMA, 14, {"model.embed_tokens.weight"}),
    "ViT": (ViTForImageClassification, VIT, 13, {"classifier.weight", "vit.embeddings.cls_token"}),
}


def build(name):
    model_type, config, _, _ = MODELS[name]
    torch.manual_seed(1)
    return model_type(config)


def examples(name):
    generator = torch.Generator().manual_seed(2)
    if name == "ViT":
        return [{"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": i % 2} for i in range(24)]
    tokens = torch.randint(0, 20, (24, 8), generator=generator)
    return [{"input_ids": row, "labels": i % 2 if name == "BERT, classifier" else row} for i, row in enumerate(tokens)]


def trainer_of(name, folder, *callbacks, model=None, **options):
    arguments = TrainingArguments(
        output_dir=str(folder),
        **{
            "max_steps": 6,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 0.01,
            "save_strategy": "no",
            "logging_steps": 2,
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            **options,
        },
    )
    model, data = build(name) if model is None else model, examples(name)
    return Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=list(callbacks))


def incoming_norms(module):
    """The norms of each neuron, by what is known of the layer and without the library."""
    weight = module.weight.detach()
    return weight.flatten(1).norm(dim=1) if isinstance(module, (nn.Linear, nn.Conv2d)) else weight.norm(dim=0)


@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_trains_on_the_sphere_and_is_saved_as_a_plain_one(name, tmp_path):
    model_type, _, constrained, left_alone = MODELS[name]
    callback = ProjectionCallback()
    trainer = trainer_of(name, tmp_path, callback)
    trainer.train()
    trainer.save_model(tmp_path / "saved")

    loaded = model_type.from_pretrained(tmp_path / "saved")
    assert callback.certificate.ok
    found = {weight.name for weight in callback.projection.selection.constrained}
    assert len(found) == constrained
    assert not found & left_alone
    assert left_alone <= {left.name for left in callback.projection.selection.left_alone}
    for weight in found:
        norms = incoming_norms(loaded.get_submodule(weight.removesuffix(".weight")))
        torch.testing.assert_close(norms, torch.ones_like(norms))
    for parameter in left_alone:
        norms = loaded.get_parameter(parameter).detach().norm(dim=-1)
        assert not torch.allclose(norms, torch.ones_like(norms), atol=1e-3)
    for parameter, tensor in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[parameter], tensor), parameter


@pytest.mark.parametrize("constraint", [pbwn.UnitNorm(), pbwn.UnitNorm(radius="initial")], ids=str)
def test_a_run_resumed_in_the_middle_of_an_interval_equals_an_uninterrupted_one(tmp_path, constraint):
    def callback():
        return ProjectionCallback(every=4, constraint=constraint)

    whole = trainer_of("GPT-2", tmp_path / "whole", callback())
    whole.train()
    assert not list((tmp_path / "whole").glob("checkpoint-*"))

    folder, first = tmp_path / "cut", callback()
    trainer_of("GPT-2", folder, first, StopAt(3), save_strategy="steps", save_steps=3).train()
    assert first.certificate.between_projections
    second = callback()
    resumed = trainer_of("GPT-2", folder, second)
    resumed.train(resume_from_checkpoint=True)
    assert second.projection.state_dict()["steps"] == [6]
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name


class StopAt(TrainerCallback):
    """Ends training after a step, as an interruption would."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **others):
        control.should_training_stop |= state.global_step >= self.step


def test_a_checkpoint_that_lies_elsewhere_is_found_when_named(tmp_path):
    callback = ProjectionCallback(every=4)
    whole = trainer_of("GPT-2", tmp_path / "old", callback, save_strategy="steps", save_steps=3)
    whole.train()
    folder = str(tmp_path / "old" / "checkpoint-3")

    unnamed = trainer_of("GPT-2", tmp_path / "new", ProjectionCallback(every=4))
    with pytest.raises(ValueError, match=r"from step 3, .*not in .*checkpoint-3/pbwn.pt: pass resume_from="):
        unnamed.train(resume_from_checkpoint=folder)
    wrong = ProjectionCallback(every=4, resume_from=tmp_path / "old" / "checkpoint-6")
    with pytest.raises(ValueError, match=r"state of that step is not in .*checkpoint-6"):
        trainer_of("GPT-2", tmp_path / "new", wrong).train(resume_from_checkpoint=folder)

    in_callback = trainer_of("GPT-2", tmp_path / "new", ProjectionCallback(every=4, resume_from=folder))
    in_arguments = trainer_of("GPT-2", tmp_path / "new", ProjectionCallback(every=4), resume_from_checkpoint=folder)
    for trainer in (in_callback, in_arguments):
        trainer.train(resume_from_checkpoint=folder)
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(trainer.model.state_dict()[name], tensor), name


def test_a_checkpoint_of_a_run_without_the_callback_is_gone_on_from_when_asked(tmp_path):
    trainer_of("GPT-2", tmp_path, save_strategy="steps", save_steps=3).train()
    callback = ProjectionCallback(resume_from=None)
    trainer_of("GPT-2", tmp_path, callback).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert callback.projection.state_dict()["steps"] == [3]
    assert callback.certificate.ok


def test_the_state_of_another_run_is_not_taken_for_that_of_the_weights(tmp_path):
    initial = pbwn.UnitNorm(radius="initial")
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    for folder, scale in (("a", 1.0), ("b", 50.0)):
        model = build("GPT-2")
        with torch.no_grad():
            for layer in model.transformer.h:
                layer.mlp.c_fc.weight.mul_(scale)
        trainer_of("GPT-2", tmp_path / folder, ProjectionCallback(constraint=initial), model=model, **saving).train()
    b = str(tmp_path / "b" / "checkpoint-2")
    mixed = trainer_of("GPT-2", tmp_path / "a", ProjectionCallback(constraint=initial), max_steps=4)
    with pytest.raises(ValueError, match="the weights are not those that the projection's state was saved with"):
        mixed.train(resume_from_checkpoint=b)
    named = ProjectionCallback(constraint=initial, resume_from=b)
    trainer_of("GPT-2", tmp_path / "a", named, max_steps=4).train(resume_from_checkpoint=b)
    assert named.certificate.ok


def test_a_run_with_a_dead_neuron_is_resumed(tmp_path):
    model = build("GPT-2")
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[:, 3] = 0  # a column: Conv1D stores weights the other way round
    model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda gradient: gradient * 0)
    saving = {"save_strategy": "steps", "save_steps": 2, "weight_decay": 0.0}
    trainer_of("GPT-2", tmp_path, ProjectionCallback(), model=model, max_steps=2, **saving).train()
    callback = ProjectionCallback()
    trainer_of("GPT-2", tmp_path, callback, model=model, max_steps=4).train(resume_from_checkpoint=True)
    assert callback.certificate.dead == {"transformer.h.0.mlp.c_fc.weight": (3,)}


def test_the_best_model_is_certified_as_it_was_saved(tmp_path):
    callback = ProjectionCallback(every=4)
    options = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3, "max_steps": 8}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    trainer = trainer_of("GPT-2", tmp_path, callback, learning_rate=0.5, **options, **best)
    trainer.train()
    assert not trainer.state.best_model_checkpoint.endswith("-8")
    assert callback.certificate.ok
    assert callback.certificate.between_projections
    assert callback.projection.state_dict()["steps"] == [int(trainer.state.best_model_checkpoint.rpartition("-")[2])]


def test_the_deviation_is_logged_on_request(tmp_path):
    callback = ProjectionCallback(every=3, log_deviation=True, name="net")
    trainer = trainer_of("GPT-2", tmp_path, callback)
    trainer.train()
    logged = {entry["step"]: entry.get("net_deviation") for entry in trainer.state.log_history if "loss" in entry}
    assert logged.keys() == {2, 4, 6}
    assert logged[2] > 1e-4
    assert logged[4] > 1e-4
    assert logged[6] < 2e-6
    assert not any("net_deviation" in entry for entry in trainer.state.log_history if "loss" not in entry)

    quiet = trainer_of("GPT-2", tmp_path, ProjectionCallback(name="net"))
    quiet.train()
    assert not any("net_deviation" in entry for entry in quiet.state.log_history)


def test_the_same_model_can_be_trained_again_and_again(tmp_path):
    first = trainer_of("GPT-2", tmp_path, ProjectionCallback())
    first.train()
    callback = ProjectionCallback()
    second = trainer_of("GPT-2", tmp_path, callback, model=first.model)
    second.train()
    second.train()
    assert callback.projection.state_dict()["steps"] == [6]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"evry": 3}, TypeError, "no argument 'evry': did you mean 'every'"),
        ({"name": "../elsewhere"}, ValueError, "name must be a word of letters"),
    ],
)
def test_a_wrong_argument_is_noticed_before_training(options, error, words):
    with pytest.raises(error, match=words):
        ProjectionCallback(**options)


def test_the_monitor_adds_the_latest_record_to_the_training_logs(tmp_path):
    callback = ProjectionCallback(monitor=2)
    trainer = trainer_of("Llama", tmp_path, callback)
    trainer.train()
    name = callback.monitor.records[0]["weight"]
    logged = [line[f"pbwn/angle/{name}"] for line in trainer.state.log_history if "loss" in line]
    assert logged == [each["angle"] for each in callback.monitor.records if each["weight"] == name]
