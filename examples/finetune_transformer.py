"""Fine-tune a transformer while each neuron keeps the norm that it was trained to.

A small model with random weights stands in for a pretrained one, so that this runs without a download.

python examples/finetune_transformer.py
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import pbwn
from pbwn.integrations.transformers import ProjectionCallback

torch.manual_seed(0)
config = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)
model = BertForSequenceClassification(config)  # yours: BertForSequenceClassification.from_pretrained(...)

tokens = torch.randint(1, 50, (256, 12))
labels = (tokens == 7).any(dim=1).long()  # does the sentence have this word?
examples = [{"input_ids": sentence, "labels": label} for sentence, label in zip(tokens, labels, strict=True)]

# On the unit sphere the pretrained model would compute something else at once. This way only directions are learnt.
callback = ProjectionCallback(constraint=pbwn.UnitNorm(radius="initial"), log_deviation=True)  # the added line

with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model,
        TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            logging_steps=16,
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
        ),
        train_dataset=examples,
        callbacks=[callback],
    )
    trainer.train()
print(callback.projection)
print(f"\n{callback.certificate}")
