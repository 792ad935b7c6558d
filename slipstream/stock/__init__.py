"""Stock engines behind the verifier: vLLM, and others that serve a model over an API of their own.

Such an engine returns only some log-probabilities of each position. The rest is ours: noise,
sampling rules, hints, runs, handles. `slipstream.stock.protocol` is what an engine has to do;
each engine is one more file.
"""
