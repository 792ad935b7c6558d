"""Sessions on one verifier with a draft that sends hints, simulated in made-up time."""
