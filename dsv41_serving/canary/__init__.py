"""The canary: a short real conversation on a timer. `conversation` holds it, `result` keeps how it went."""
