"""Fine-tune a transformer while each neuron keeps the norm that it has after pretraining.

A small model with random weights stands in for a pretrained one, so that this runs without a download.

python examples/finetune_transformer.py
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import pbwn
from pbwn.integrations.transformers import ProjectionCallback

config = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)

torch.manual_seed(1)
tokens = torch.randint(1, 50, (1500, 12))
labels = (tokens == 7).any(dim=1).long()  # does the sentence contain this word?
examples = [{"input_ids": sentence, "labels": label} for sentence, label in zip(tokens, labels, strict=True)]
train_examples, test_examples = examples[:1000], examples[1000:]


def tune(*callbacks: ProjectionCallback) -> tuple[BertForSequenceClassification, float]:
    """Fine-tune; return the model and its test error in percent."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)  # yours: BertForSequenceClassification.from_pretrained(...)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            logging_steps=25,
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=train_examples, callbacks=list(callbacks))
        trainer.train()
        found = trainer.predict(test_examples)
    return model, 100 * (found.predictions.argmax(axis=1) != found.label_ids).mean().item()


_, baseline = tune()
# Norms of 1 would change what the pretrained model computes. With its own norms kept, only directions are learned.
callback = ProjectionCallback(constraint=pbwn.UnitNorm(radius="initial"), log_deviation=True)  # the added line
model, error = tune(callback)
print(callback.projection, callback.certificate, sep="\n\n")
print("\nof 500 test sentences, one seed each: differences under about 1 point are noise")
print(f"test error: {baseline:.1f} % without the constraint, {error:.1f} % with the norms kept")
