"""The ops in a served model: synthetic V4.1 models with finite weights, launched with ops off and on, compared and timed."""
