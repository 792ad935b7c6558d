"""transformers' models on CUDA: paged attention by a kernel of our own, whole forwards as CUDA
graphs."""
