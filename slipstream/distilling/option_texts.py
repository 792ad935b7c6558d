"""The meaning of each option of ``slipstream distill``, for its help and for the settings. No large
library is imported here, so that the command line can show them."""

from __future__ import annotations

TEXTS = {
    "config": "YAML file whose keys are the names of these options. Options that are given win over it",
    "target": "target whose answers the data holds: a directory, a hub id or 'embedded'. Its tokenizer is read, and samples "
    "of its weights if they are here",
    "draft": "draft to train: a directory, a hub id or 'embedded'",
    "data": "folder of collected positions, with text (slipstream distill collect, or --collect-text of a verifier)",
    "out": "new folder for the trained draft",
    "any-target": "train also if the data holds the answers of another model with the same tokenizer; default: False",
    "device": "torch device to train on: cpu, cuda, cuda:1; default: cpu",
    "threads": "threads that compute on the cpu; default: 0, one for each core, or OMP_NUM_THREADS",
    "precision": "float32 or bfloat16, in which the forwards multiply; default: auto, bfloat16 on CUDA devices",
    "temperature": "temperature of the traffic, at which acceptance is trained and reported; default: 0.8",
    "kl": "weight of the KL divergence in the loss, beside 1 - acceptance; default: 0.5",
    "held-out": "share of the prompts that is not trained on; default: 0.1",
    "epochs": "passes over the data; default: 3",
    "learning-rate": "highest learning rate, after the warm-up; default: 0.0001",
    "optimizer": "adamw; or muon, which takes the matrices and leaves the rest to adamw; default: adamw",
    "weight-decay": "weight decay of the optimizer; default: 0.01",
    "batch-tokens": "most tokens in a batch, with the padding; default: 4096",
    "max-length": "tokens after which a sequence is cut; default: 2048",
    "lora-rank": "rank of adapters that are trained in place of all weights, and merged in the end; default: 0, all weights",
    "checkpoint-seconds": "seconds from one checkpoint to the next; default: 60",
    "seed": "seed of the order of the batches, of adapters and of dropout; default: 0",
}
"""By name, as a flag without its hyphens."""
