"""The model that a run made: found, evaluated, continued, exported. No volunteer's daemon needs it."""
