"""Measure, and write down what was measured with everything needed to measure it again."""
