"""Models that torch computes by a plan over pages: transformers' on CPU and CUDA, and the paper
model."""
