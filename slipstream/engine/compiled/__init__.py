"""Llama's family on CPUs: a forward that is compiled as a whole, in which a row's bits depend on
its own sequence alone."""
