"""GGUF models through libllama, as an extra: `pip install 'slipstream-llm[llamacpp]'`. What
llama.cpp is stays in here."""
