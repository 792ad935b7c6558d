"""EleutherAI's lm-evaluation-harness."""
