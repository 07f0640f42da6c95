"""What follows from spec and facts: placement, ports, commands, memory budget, files. Pure functions and frozen values."""

from dsv41_serving.plan.build import make_plan
from dsv41_serving.plan.model import Installation, Plan, Service

__all__ = ["Installation", "Plan", "Service", "make_plan"]
