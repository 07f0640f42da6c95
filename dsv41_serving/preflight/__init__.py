"""What must be right before anything is started: one question per check, each with the command that mends it."""

from dsv41_serving.preflight.check import Check, Outcome, Scene
from dsv41_serving.preflight.report import Report
from dsv41_serving.preflight.suite import CHECKS, run_checks

__all__ = ["CHECKS", "Check", "Outcome", "Report", "Scene", "run_checks"]
