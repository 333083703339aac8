"""The one place that knows figures: of one run, of two, of many; nothing here is drawn."""
