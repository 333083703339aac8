"""Reports: one view model of a run, and what is drawn and written from it."""
