"""What the numbers mean: the metric contract, alert rules, their runbook, and the views in a terminal."""
