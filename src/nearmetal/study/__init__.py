"""What to compare: the study file, the plan made from it, and the orders that hosts carry out."""
