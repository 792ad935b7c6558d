"""The verifier over a real vLLM server: what holds, and how fast it is."""
