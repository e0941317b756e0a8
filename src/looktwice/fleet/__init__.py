"""Many machines: pictures scored on Ray, with the verdicts of one machine."""
