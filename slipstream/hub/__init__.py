"""Models on Hugging Face's hub and in its cache on this machine."""
