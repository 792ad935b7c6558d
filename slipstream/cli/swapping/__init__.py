"""Parts of ``slipstream swap``: a trial of a new draft under traffic, and its verdict."""
