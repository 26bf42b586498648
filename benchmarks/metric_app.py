"""An app that handles nothing and declares one metric, so that the console has its pages of apps."""

from boathook import Boathook

hook = Boathook("benchmark")
visits = hook.counter("benchmark_visits_total", "Visits to the pages of the console.")
