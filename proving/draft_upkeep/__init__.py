"""The life of a draft in one session on real processes: it drifts, is seen, trained again, and
replaced under traffic."""
